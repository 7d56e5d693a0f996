"""Bags of a step in one padded block and back, in operations of fixed shape.

Shapes: M rows of a step, B bags, K the longest bag of the set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fastbus.errors import InputError, WeakLabelError, where
from fastbus.inference.fixed import Step
from fastbus.supervision.aggregate import LabelProportion

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun


class Block(NamedTuple):
    """Where the instances of every bag stand among the rows."""

    rows: Tensor  # (B, K) rows, any row where there is no instance
    inside: Tensor  # (B, K) instances
    held: Tensor  # (B,) bags that there are


def block_of(step: Step, longest: int, M: int) -> Block:
    """The places of a step's bags."""
    place = torch.arange(longest, device=step.starts.device)
    inside = place < step.sizes[:, None]
    return Block((step.starts[:, None] + place).clamp(max=M - 1), inside, step.sizes > 0)


def back_to_rows(values: Tensor, block: Block, M: int) -> Tensor:
    """Values (B, K, C) of instances as rows (M, C); zeros in rows that belong to no bag."""
    out = values.new_zeros(M + 1, values.shape[-1])  # the last row takes what is padding
    target = torch.where(block.inside, block.rows, M)
    return out.index_copy(0, target.flatten(), values.flatten(0, 1))[:M]


def whole_counts(weak: Tensor, sizes: Tensor, num_classes: int, name: str) -> Tensor:
    """Counts (B, C) of every class, from (B, C) or from the positives (B,) of two classes; all must be known."""
    counts = weak.round().long() if weak.is_floating_point() else weak.long()
    if counts.dim() == 1 and num_classes == 2:
        counts = torch.stack([sizes - counts, counts], 1)
    bad = (counts < 0).any(1) | (counts.sum(1) != sizes)
    if bool(bad.any()):
        raise WeakLabelError(
            f"{name}: counts that are missing or do not add up to the bag's size; expected a count for every class; "
            f"{where(bad)}. Complete the counts, or train with FastBUS, which takes incomplete ones."
        )
    return counts


def counts_of(run: ImageRun) -> Tensor:
    """Counts (B, C) of a run's bags; refused where they are not told exactly."""
    rule, weak = run.supervision, run.weak
    assert isinstance(rule, LabelProportion)
    if rule.kind != "exact":
        raise InputError(
            f'{rule.name}: kind="{rule.kind}"; expected kind="exact", the method reads counts alone. '
            "Train with FastBUS, which takes intervals and distributions."
        )
    if rule.unit == "fraction":
        weak = weak * (run.sizes[:, None] if weak.dim() == 2 else run.sizes)
    return whole_counts(weak, run.sizes, run.num_classes, rule.name)


def seen_classes(weak: Tensor, num_classes: int, name: str) -> Tensor:
    """Which classes occur (B, C) 0/1, or (B, 1) for the positive one of two classes; all must be known."""
    seen = (weak if weak.dim() == 2 else weak[:, None]).long()
    bad = ((seen < 0) | (seen > 1)).any(1)
    if bool(bad.any()):
        raise WeakLabelError(
            f"{name}: a bag label that is neither 0 nor 1; expected 0 or 1 for every class; {where(bad)}. "
            "Complete the labels, or train with FastBUS, which takes incomplete ones."
        )
    if seen.shape[1] not in (1, num_classes):
        raise WeakLabelError(f"{name}: labels of {seen.shape[1]} classes; expected {num_classes}. Give one a class.")
    return seen
