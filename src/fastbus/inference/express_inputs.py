"""What of the arguments of `infer` is plain: rules without options, whole numbers, bags as runs of rows.

Every reader returns None for what it does not take; the ordinary path reads that, or says what is wrong with it.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from fastbus.bag_layout import read_tensor
from fastbus.errors import InputError
from fastbus.inference.kernels import WIDEST_PAIRS
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import REGISTRY, Supervision
from fastbus.supervision.pairwise import ConfidenceDifference, PairComparison, PairSimilarity, SimilarityConfidence


class Rows(NamedTuple):
    """Bags as runs of rows: bag b owns `sizes[b]` rows from `starts[b]` on."""

    starts: Tensor  # (B,)
    sizes: Tensor  # (B,)
    arrays: tuple[Any, Any] | None  # both as arrays, where they lie in the memory of the CPU
    longest: int
    mask: Tensor | None = None  # (B, K) of padded bags, None if all are full
    flat: bool = False

    @property
    def bag_sizes(self) -> Tensor | None:
        """What the caller of `infer` gives beside flat predictions."""
        return self.sizes if self.flat else None

    def spread(self, per_bag: Tensor) -> Tensor:
        """A number of each bag (B,) to all its instances, in the caller's layout."""
        return per_bag.repeat_interleave(self.sizes) if self.flat else per_bag[:, None]


class PlainRule(NamedTuple):
    """A rule and what the kernels call it."""

    rule: Supervision
    kind: str

    @property
    def of_pairs(self) -> bool:
        return self.kind not in ("count", "any")


def plain_rule(supervision: object) -> PlainRule | None:
    """The rule, if it is one of those that have kernels, without options that they do not know."""
    if type(supervision) is str:
        named = REGISTRY.get(supervision)
        return _without_options(named) if named in KINDS else None
    kind = _kind(supervision)
    return PlainRule(supervision, kind) if kind and isinstance(supervision, Supervision) else None


@cache
def _without_options(named: type[Supervision]) -> PlainRule | None:
    return plain_rule(named())


KINDS = (LabelProportion, MultiInstance, PairComparison, PairSimilarity, SimilarityConfidence, ConfidenceDifference)


def _kind(rule: object) -> str:
    if type(rule) is LabelProportion:
        return "count" if rule.kind == "exact" and rule.unit == "count" and rule.noise is None else ""
    if type(rule) is MultiInstance:
        return "any" if rule.noise is None else ""
    if type(rule) is PairComparison:
        return rule.pairs if rule.noise is None else ""
    if type(rule) is PairSimilarity:
        return "similar" if rule.noise is None else ""
    if type(rule) is SimilarityConfidence:
        return "similarity" if rule.soft == "jeffrey" else ""
    return "difference" if type(rule) is ConfidenceDifference else ""


def as_tensor(value: object) -> Tensor | None:
    """A dense tensor, from one or from an array of numbers."""
    if type(value) is Tensor:
        return value if value.layout is torch.strided and not value.is_nested else None
    if type(value) is torch.nn.Parameter:
        return value.view_as(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        return None
    try:
        return read_tensor(value, "array", InputError, expected="numbers", cure="Pass numbers.")
    except InputError:  # bytes in another order, or more of them than torch knows
        return None


def has_values(x: Tensor, weak: Tensor) -> bool:
    """False inside a function transform, and where forward derivatives are carried along."""
    try:
        x.data_ptr(), weak.data_ptr()
    except RuntimeError:
        return False
    return unpack_dual(x).tangent is None


def whole_numbers(weak: Tensor, B: int, C: int, x: Tensor) -> Tensor | None:
    """Weak labels (B, C) as int64, where they are whole numbers."""
    if weak.dim() == 1 and C == 1:
        weak = weak.unsqueeze(1)
    if weak.shape != (B, C) or weak.is_floating_point() or weak.is_complex():
        return None
    if not x.is_cpu:
        return weak.to(x.device, torch.long).contiguous()
    return weak.long().contiguous() if weak.is_cpu else None


def pair_labels(weak: Tensor, B: int, x: Tensor, head: str, kind: str) -> Tensor | None:
    """Weak labels (B,) of pairs as int64 or float64, where heads and types are those that the kind wants."""
    C = x.shape[-1]
    if weak.shape != (B,) or weak.is_complex() or (head == "sigmoid" and C > 1):
        return None
    if not weak.is_cpu if x.is_cpu else C > WIDEST_PAIRS:
        return None
    if (C > 2 and kind not in SIMILAR) or (kind in SOFT and not weak.is_floating_point()):
        return None
    return weak.detach().to(x.device, torch.double if weak.is_floating_point() else torch.long).contiguous()


SIMILAR = ("similar", "similarity")  # of any number of classes
SOFT = ("similarity", "difference")  # confidences


def rows_of(x: Tensor, mask: object, bag_sizes: object) -> Rows | None:
    """Where the bags of predictions (B, K, C) or (N, C) lie, if padding comes last."""
    try:
        if x.dim() == 2:
            return _flat_rows(x, bag_sizes) if mask is None else None
        if x.dim() != 3 or bag_sizes is not None or x.numel() == 0:
            return None
        B, K, _ = x.shape
        rows = _full_rows(B, K, x.device)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            _captured[B, K, x.device] = rows
        return rows if mask is None else _masked_rows(rows, B, K, x, mask)
    except (RuntimeError, ValueError, TypeError):
        # a function transform wraps whatever is computed inside, and then it has no values to look at; lists of
        # sizes may hold anything
        return None


# rows that graphs read whenever they are replayed, long after the call
_captured: dict[tuple[int, int, torch.device], Rows] = {}


@lru_cache(maxsize=64)
def _full_rows(B: int, K: int, device: torch.device) -> Rows:
    starts, sizes = (torch.from_numpy(x).to(device) for x in (np.arange(B) * K, np.full(B, K)))
    starts.data_ptr(), sizes.data_ptr()  # what a function transform has wrapped must not be kept
    return _arrayed(Rows(starts, sizes, None, K))


def _arrayed(rows: Rows) -> Rows:
    return rows._replace(arrays=(rows.starts.numpy(), rows.sizes.numpy())) if rows.sizes.is_cpu else rows


def _masked_rows(full: Rows, B: int, K: int, x: Tensor, mask: object) -> Rows | None:
    flags = as_tensor(mask)
    if flags is None or flags.dtype != torch.bool or flags.shape != (B, K) or flags.device != x.device:
        return None
    if full.arrays is not None:  # numpy is quicker with so few numbers
        array = flags.numpy()
        if (array[:, :-1] < array[:, 1:]).any():
            return None
        sizes = array.sum(1)
        return Rows(full.starts, torch.from_numpy(sizes), (full.arrays[0], sizes), K, flags.clone())
    if bool((flags[:, :-1] < flags[:, 1:]).any()):
        return None
    return full._replace(sizes=flags.sum(1), mask=flags.clone())


def _flat_rows(x: Tensor, bag_sizes: object) -> Rows | None:
    sizes = as_tensor(np.asarray(bag_sizes) if isinstance(bag_sizes, list) else bag_sizes)
    if sizes is None or sizes.dim() != 1 or sizes.dtype == torch.bool or sizes.is_floating_point():
        return None
    sizes = sizes.to(x.device, torch.long, copy=True)
    ends = sizes.cumsum(0)
    if len(sizes) == 0 or int(sizes.min()) < 1 or int(ends[-1]) != len(x):
        return None
    return _arrayed(Rows(ends - sizes, sizes, None, int(sizes.max()), flat=True))
