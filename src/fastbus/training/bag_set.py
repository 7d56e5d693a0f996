"""A training set in memory: flat instances, bag sizes and weak labels, cut into batches of whole bags.

Everything lies on one device, so that a batch is an index, not a copy from the host.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbus.errors import InputError, SupervisionError
from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination
from fastbus.supervision.incomplete import SimilarDissimilarUnlabeled, UnlabeledUnlabeled


class Batch(NamedTuple):
    """Some bags: instances (n, ...), their sizes, and weak labels as `infer` takes them with flat rows."""

    instances: Tensor
    sizes: Tensor  # (B,)
    weak: Any
    bag_weights: Tensor  # (B,)
    sample_weights: Tensor  # (n,)


@dataclass(frozen=True)
class BagSet:
    """Instances (N, ...) bag after bag, sizes (B,), and weak labels: (B, ...) or (N, ...) by their level."""

    supervision: Supervision
    instances: Tensor
    sizes: Tensor
    weak: Any  # a tensor, or a tuple of them for a combination
    bag_weights: Tensor | None = None
    sample_weights: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.supervision, SimilarDissimilarUnlabeled):
            raise SupervisionError(
                f"{self.supervision.title} is a sum over differently grouped bags; expected one grouping. "
                "Train with WeakLoss and tuples of logits and weak labels."
            )
        for part, weak in zip(self.parts, self.parts_of(self.weak), strict=True):
            wanted = len(self.sizes) if part.level == "bag" else len(self.instances)
            if len(weak) != wanted:
                noun = "bags" if part.level == "bag" else "instances"
                raise InputError(
                    f"{part.title}: {len(weak)} weak labels; expected {wanted}, one for each of the {noun}. "
                    "Give a weak label to every one of them, marked missing where nothing is known."
                )
        if len(self.sizes) == 0:
            raise InputError("a set without bags; expected at least one. Check how the bags were chosen.")
        if bool((self.sizes < 1).any()) or int(self.sizes.sum()) != len(self.instances):
            raise InputError(
                f"bags of {int(self.sizes.sum())} instances in all, the smallest of {int(self.sizes.min())}; expected "
                f"{len(self.instances)} and 1 or more. Give the size of every bag, and leave empty bags out."
            )
        for name, weights, wanted in (
            ("bag_weights", self.bag_weights, len(self.sizes)),
            ("sample_weights", self.sample_weights, len(self.instances)),
        ):
            if weights is not None and tuple(weights.shape) != (wanted,):
                raise InputError(
                    f"{name} of shape {tuple(weights.shape)}; expected ({wanted},). Give one weight for each."
                )
        if self.is_set and any(part.level == "bag" for part in self.parts):
            raise SupervisionError(
                f"{self.supervision.title}: a set of known prior beside bags; expected one grouping. Train with "
                "the two losses added instead."
            )

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def parts(self) -> tuple[Supervision, ...]:
        return self.supervision.parts if isinstance(self.supervision, Combination) else (self.supervision,)

    def parts_of(self, weak: Any) -> tuple[Any, ...]:
        return tuple(weak) if isinstance(self.supervision, Combination) else (weak,)

    @property
    def is_set(self) -> bool:
        """Whether a batch is a draw from sets of known prior, not a group of given bags."""
        return any(part.level == "set" for part in self.parts)

    def fingerprint(self) -> dict[str, int]:
        """Sizes, and checksums of the weak labels and of the first and last rows."""
        rows = torch.cat([self.instances[:64], self.instances[-64:]])
        found = {"bags": len(self.sizes), "instances": len(self.instances)}
        given = {
            "sizes": (self.sizes,),
            "weak labels": self.parts_of(self.weak),
            "rows": (rows,),
            "weights": tuple(x for x in (self.bag_weights, self.sample_weights) if x is not None),
        }
        for name, tensors in given.items():
            found[name] = 0
            for tensor in tensors:
                data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                found[name] = zlib.crc32(data.tobytes(), found[name])
        return found

    def to(self, device: torch.device) -> BagSet:
        """The same set on a device."""
        moved = [None if x is None else x.to(device) for x in (self.bag_weights, self.sample_weights)]
        weak = tuple(part.to(device) for part in self.parts_of(self.weak))
        return replace(
            self,
            instances=self.instances.to(device),
            sizes=self.sizes.to(device),
            weak=weak if isinstance(self.supervision, Combination) else weak[0],
            bag_weights=moved[0],
            sample_weights=moved[1],
        )

    def rows(self, bags: Tensor) -> Tensor:
        """Positions (n,) of the instances of some bags, in their order."""
        sizes = self.sizes[bags]
        starts = (self.sizes.cumsum(0) - self.sizes)[bags]
        first = sizes.cumsum(0) - sizes
        within = torch.arange(int(sizes.sum()), device=sizes.device) - first.repeat_interleave(sizes)
        return starts.repeat_interleave(sizes) + within

    def subset(self, bags: Tensor) -> BagSet:
        """Some of the bags as a set of their own."""
        rows = self.rows(bags)
        return replace(
            self,
            instances=self.instances[rows],
            sizes=self.sizes[bags],
            weak=self._weak_of(bags, rows),
            bag_weights=None if self.bag_weights is None else self.bag_weights[bags],
            sample_weights=None if self.sample_weights is None else self.sample_weights[rows],
        )

    def batch(self, bags: Tensor, weights: Tensor | None = None) -> Batch:
        """A batch of bags (B,); `weights` (B,) of repeated bags may be 0."""
        rows = self.rows(bags)
        sizes = self.sizes[bags]
        weight = torch.ones(len(bags), dtype=torch.float64, device=rows.device)
        if self.bag_weights is not None:
            weight = weight * self.bag_weights[bags]
        if weights is not None:
            weight = weight * weights
        sample = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
        if self.sample_weights is not None:
            sample = sample * self.sample_weights[rows]
        if not self.is_set:
            return Batch(self.instances[rows], sizes, self._weak_of(bags, rows), weight, sample)
        return self._as_sets(rows, sample * weight.repeat_interleave(sizes))

    def _weak_of(self, bags: Tensor, rows: Tensor) -> Any:
        picked = tuple(
            weak[bags] if part.level == "bag" else weak[rows]
            for part, weak in zip(self.parts, self.parts_of(self.weak), strict=True)
        )
        return picked if isinstance(self.supervision, Combination) else picked[0]

    def _as_sets(self, rows: Tensor, sample: Tensor) -> Batch:
        """All drawn instances as one bag, or as one bag for each of the unlabelled sets they come from."""
        index = torch.zeros_like(rows)
        for part, weak in zip(self.parts, self.parts_of(self.weak), strict=True):
            if isinstance(part, UnlabeledUnlabeled):
                index = weak[rows].long()
        order = torch.argsort(index, stable=True)
        rows, sample, index = rows[order], sample[order], index[order]
        present, sizes = torch.unique_consecutive(index, return_counts=True)
        picked = tuple(
            present if isinstance(part, UnlabeledUnlabeled) else weak[rows]
            for part, weak in zip(self.parts, self.parts_of(self.weak), strict=True)
        )
        weak = picked if isinstance(self.supervision, Combination) else picked[0]
        ones = torch.ones(len(sizes), dtype=torch.float64, device=rows.device)
        return Batch(self.instances[rows], sizes, weak, ones, sample)
