"""What a cell costs at the least: operations, bytes, and the share of the device's ceiling that an answer reaches.

Operations: a chain of K instances whose count is w has w + 1 states, each moved on by one multiply-add an instance, in
two passes, so 2 passes x 2 operations x K (w + 1), summed over bags and classes. Any positive counts with w = 0 or 1.
A pair has K = 2 instances, 2 labels and 2 states. The lattice of a softmax head moves each of its points once for
every class that the bag holds. Exponentials, divisions and logarithms come on top and are not counted, so the shares
are low where K (w + 1) is small beside the exponentials of the predictions.
Bytes: predictions and weak labels in, posteriors and log-likelihoods out, once each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbus.bench.speed.cells import Inputs

PASSES, PER_MULTIPLY_ADD = 2, 2
FORMULA = "2 passes x 2 x K (w + 1), summed over bags and classes"


class Work(NamedTuple):
    operations: float
    bytes: float


class Share(NamedTuple):
    """How near a time is to the least that the device allows, and what sets that least time."""

    operations_per_second: float
    bytes_per_second: float
    binds: str  # operations, bytes or call
    share: float


def work_of(inputs: Inputs) -> Work:
    """The least operations and bytes of one E-step."""
    moves = float(_moves(inputs))
    entries = int(inputs.sizes.sum()) * inputs.cell.C
    item = inputs.logits.element_size()
    moved = 2 * entries * item + inputs.weak.numel() * inputs.weak.element_size() + inputs.cell.B * item
    return Work(PASSES * PER_MULTIPLY_ADD * moves, float(moved))


def _moves(inputs: Inputs) -> int:
    cell, sizes, weak = inputs.cell, inputs.sizes, inputs.weak
    if cell.group == "pairs":
        return cell.B * 2 * 2 * 2
    if cell.head == "sigmoid":
        return int((sizes[:, None] * (weak + 1)).sum())
    held = (weak > 0).sum(1)
    points = lattice_points(weak, cell.kind == "multi_instance")
    return int((sizes * points * held).sum())


def lattice_points(weak: Tensor, seen: bool) -> Tensor:
    """Points of each bag's lattice (B,): classes seen, or counts of all classes but the largest."""
    return 2 ** (weak > 0).sum(1) if seen else (weak + 1).prod(1) // (weak.amax(1) + 1)


def share_of(work: Work, seconds: float, ceilings: dict[str, Any]) -> Share:
    """The least time is the longest of: the operations, the bytes, and one call."""
    least = {
        "operations": work.operations / ceilings["operations_per_second"][ceilings["messages"]],
        "bytes": work.bytes / max(ceilings["copy_bytes_per_second"].values()),
        "call": ceilings["call_seconds"],
    }
    binds = max(least, key=lambda name: least[name])
    return Share(work.operations / seconds, work.bytes / seconds, binds, least[binds] / seconds)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
