"""The yardstick: exact posteriors the obvious way, in batched torch, with the posterior by one autograd pass.

Counts: one log-space pass over the bag. Any positive: closed form. Pairs: the four labellings. The lattice of a
softmax head: one table a bag. Every function returns the posterior, (B, K, C) or a list of (K, C), and the
log-likelihood. A file that defines `lprop` and `mil` takes the place of the first two.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid

from fastbus.bench.speed.cells import Inputs
from fastbus.bench.speed.timing import Call
from fastbus.errors import InputError

NEVER = -1e30  # a stand-in that gradients pass through; this is how it is commonly written
ABSENT = -1e4  # logit of an instance that is not there
Answer = tuple[Any, Any]
Plain = Callable[[Tensor, Tensor], Answer]


def counts(logits: Tensor, weak: Tensor) -> Answer:
    """logits (B, K, C), counts (B, C)."""
    x = logits.detach().clone().requires_grad_(True)
    B, K, C = x.shape
    yes, no = logsigmoid(x), logsigmoid(-x)
    table = x.new_full((B, C, K + 1), NEVER)
    table[..., 0] = 0.0
    first = x.new_full((B, C, 1), NEVER)
    for k in range(K):
        moved = torch.cat([first, table[..., :-1] + yes[:, k, :, None]], -1)
        table = torch.logaddexp(table + no[:, k, :, None], moved)
    likelihood = table.gather(-1, weak[..., None])[..., 0]
    (gradient,) = torch.autograd.grad(likelihood.sum(), x)
    return torch.sigmoid(x.detach()) + gradient, likelihood.detach()


def any_positive(logits: Tensor, weak: Tensor) -> Answer:
    """logits (B, K, C), weak (B, C) 0/1."""
    none = logsigmoid(-logits).sum(1)
    some = torch.log(-torch.expm1(none))
    posterior = torch.sigmoid(logits) / some.exp()[:, None]
    told = weak[:, None] > 0
    return torch.where(told, posterior, torch.zeros_like(posterior)), torch.where(weak > 0, some, none)


def pairs(kind: str) -> Plain:
    """logits (B, 2, 2), weak (B,)."""

    def solve(logits: Tensor, weak: Tensor) -> Answer:
        x = logits.detach().clone().requires_grad_(True)
        log_p = log_softmax(x, -1)
        joint = log_p[:, 0, :, None] + log_p[:, 1, None, :]  # (B, first, second)
        likelihood = _PAIRS[kind](joint, weak)
        (gradient,) = torch.autograd.grad(likelihood.sum(), x)
        return log_p.detach().exp() + gradient, likelihood.detach()

    return solve


def _compared(joint: Tensor, weak: Tensor) -> Tensor:
    sure = torch.where(weak > 0, joint[:, 1, 0], joint[:, 0, 1])
    tie = torch.logaddexp(joint[:, 0, 0], joint[:, 1, 1]) + torch.log(joint.new_tensor(0.5))
    return torch.logaddexp(sure, tie)


def _alike(joint: Tensor) -> tuple[Tensor, Tensor]:
    same = torch.logaddexp(joint[:, 0, 0], joint[:, 1, 1])
    return same, torch.logaddexp(joint[:, 0, 1], joint[:, 1, 0])


def _similar(joint: Tensor, weak: Tensor) -> Tensor:
    same, other = _alike(joint)
    return torch.where(weak > 0, same, other)


def _similarity(joint: Tensor, weak: Tensor) -> Tensor:
    same, other = _alike(joint)
    return weak * same + (1 - weak) * other


def _difference(joint: Tensor, weak: Tensor) -> Tensor:
    """Log-normaliser of the nearest distribution whose mean of second minus first is `weak`."""
    p = joint.detach().exp()
    up, down, even = p[:, 0, 1], p[:, 1, 0], p[:, 0, 0] + p[:, 1, 1]
    root = torch.sqrt((weak * even) ** 2 + 4 * (1 - weak**2) * up * down)
    # of the two forms of the root the one that does not subtract
    above, below = (weak * even + root) / (2 * (1 - weak) * up), 2 * (1 + weak) * down / (root - weak * even)
    theta = torch.log(torch.where(weak > 0, above, below))
    tilted = joint + theta[:, None, None] * joint.new_tensor([[0.0, 1.0], [-1.0, 0.0]])
    return torch.logsumexp(tilted.flatten(1), 1) - theta * weak


_PAIRS = {
    "pair_comparison": _compared,
    "pair_similarity": _similar,
    "similarity_confidence": _similarity,
    "confidence_difference": _difference,
}


def lattice(seen: bool, sizes: list[int]) -> Plain:
    """logits (B, K, C) of a softmax head, weak (B, C): counts, or with `seen` which classes occur."""

    def solve(logits: Tensor, weak: Tensor) -> Answer:
        found = [_one_lattice(logits[b, : sizes[b]], weak[b].tolist(), seen) for b in range(len(sizes))]
        return [posterior for posterior, _ in found], torch.stack([likelihood for _, likelihood in found])

    return solve


def _one_lattice(logits: Tensor, weak: list[int], seen: bool) -> Answer:
    """One bag (K, C): a table with an axis for every class that it holds."""
    x = logits.detach().clone().requires_grad_(True)
    log_p = log_softmax(x, -1)
    held = [c for c, w in enumerate(weak) if w > 0]
    table = x.new_full([2 if seen else weak[c] + 1 for c in held], NEVER)
    table[(0,) * len(held)] = 0.0
    for k in range(len(x)):
        ways = []
        for axis, c in enumerate(held):
            before = table.narrow(axis, 0, table.shape[axis] - 1)
            if seen:  # a class seen once stays seen
                before = torch.logaddexp(before, table.narrow(axis, 1, 1))
            start = torch.full_like(table.narrow(axis, 0, 1), NEVER)
            ways.append(torch.cat([start, before], axis) + log_p[k, c])
        table = torch.logsumexp(torch.stack(ways), 0)
    likelihood = table[(-1,) * len(held)]
    (gradient,) = torch.autograd.grad(likelihood, x)
    return log_p.detach().exp() + gradient, likelihood.detach()


def load_yardstick(path: Path) -> Any | None:
    """A file with `lprop(logits, counts)` and `mil(logits, weak)`; None where there is none."""
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("speed_yardstick", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}; expected a Python file with lprop and mil. Pass another --yardstick.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not (hasattr(module, "lprop") and hasattr(module, "mil")):
        raise InputError(f"{path} lacks lprop or mil; expected both. Pass another --yardstick.")
    return module


def plain_call(inputs: Inputs, yardstick: Any | None) -> tuple[Call, str]:
    """A call without arguments, and whose code it runs."""
    cell = inputs.cell
    logits, weak = inputs.logits, inputs.weak
    own, whose = _choose(inputs), "our own"
    if cell.head == "sigmoid" and yardstick is not None:
        own = yardstick.lprop if cell.kind == "label_proportion" else yardstick.mil
        whose = "yardstick file"
    if inputs.mask is not None and cell.head == "sigmoid":
        # neither knows ragged bags: an instance that is surely negative changes no count
        logits = torch.where(inputs.mask[..., None], logits, logits.new_tensor(ABSENT))
    return (lambda: own(logits, weak)), whose


def _choose(inputs: Inputs) -> Plain:
    cell = inputs.cell
    if cell.group == "pairs":
        return pairs(cell.kind)
    if cell.head == "softmax":
        return lattice(cell.kind == "multi_instance", inputs.sizes.tolist())
    return counts if cell.kind == "label_proportion" else any_positive
