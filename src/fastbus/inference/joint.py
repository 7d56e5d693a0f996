"""The joint lattice: exact inference over classes that exclude each other (softmax heads).

The state is the vector of per-class states of one bag, in mixed radix: counts so far, or the set of
classes seen so far. Classes whose label is missing share one "rest" axis; for counts the largest
axis is dropped, since its count follows from the others. Every bag has a table of its own, all of
them batched.
Shapes: n bags, K instances, C classes, Z lattice points.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.inference.chain import Chain
from fastbus.inference.ending import Ending, SoftEnding
from fastbus.numerics import NEG_INF
from fastbus.supervision.evidence import Rule


class Axes(NamedTuple):
    """The lattice of each bag; columns are the C classes and, last, the pooled rest."""

    caps: Tensor  # (B, C + 1) largest digit of each axis
    dropped: Tensor  # (B,) column without an axis, -1 for none
    counted: Tensor  # (B, C + 1) columns that stand for something in this bag
    log_size: Tensor  # (B,) log of the number of lattice points


def lattice_axes(rule: Rule, sizes: Tensor) -> Axes:
    """Radices of every bag, from what its evidence allows."""
    possible = rule.support() > NEG_INF  # (B, C, Z)
    states = torch.arange(possible.shape[-1], device=sizes.device)
    observed = rule.informed
    missing = ~observed
    counted = torch.cat([observed, missing.any(1, keepdim=True)], 1)
    if rule.fold == "any":
        caps = torch.cat([possible[..., 1] & observed, torch.zeros_like(missing[:, :1])], 1).long()
        # two instances at least are needed to see two classes, but a digit is one bit all the same
        dropped = torch.full_like(sizes, -1)
        return Axes(caps, dropped, counted, _log_size(caps, dropped))
    within = possible & (states <= sizes[:, None, None])
    largest = torch.where(within, states, -1).amax(-1)
    smallest = torch.where(within, states, states.shape[0]).amin(-1)
    needed = (smallest * observed).sum(1)
    # the others need at least their smallest counts, so no class can have more than what is left
    left = (sizes - needed).clamp(min=0)
    caps = torch.minimum(largest, left[:, None] + smallest).clamp(min=0) * observed
    rest = left * counted[:, -1]
    caps = torch.cat([caps, rest[:, None]], 1)
    dropped = torch.where(counted, caps, -1).argmax(1)
    return Axes(caps, dropped, counted, _log_size(caps, dropped))


def _log_size(caps: Tensor, dropped: Tensor) -> Tensor:
    log_radix = (caps + 1).double().log()
    column = torch.arange(caps.shape[1], device=caps.device)
    return log_radix.masked_fill(column == dropped[:, None], 0.0).sum(1)


def lattice_chain(rule: Rule, axes: Axes, sizes: Tensor, bags: Tensor) -> Chain:
    """The chains of some bags (n,), padded to the largest lattice among them."""
    caps, dropped = axes.caps[bags], axes.dropped[bags]
    sizes, counted = sizes[bags], axes.counted[bags]
    columns = torch.arange(caps.shape[1], device=caps.device)
    free = columns == dropped[:, None]  # (n, C + 1)
    radix = (caps + 1).masked_fill(free, 1)
    stride = torch.cat([torch.ones_like(radix[:, :1]), radix[:, :-1]], 1).cumprod(1)
    Z = int(radix.prod(1).max())
    point = torch.arange(Z, device=caps.device)
    digit = (point[None, :, None] // stride[:, None, :]) % radix[:, None, :]  # (n, Z, C + 1)
    outside = point >= radix.prod(1)[:, None]
    reads = torch.where(rule.informed[bags], columns[:-1], caps.shape[1] - 1)  # (n, C) label -> axis
    moved = _moves(rule, point, digit, stride, caps, free, counted)
    moved = moved.masked_fill(outside[..., None], Z).masked_fill(moved < 0, Z)
    table = moved.gather(2, reads[:, None, :].expand(-1, Z, -1))  # (n, Z, C)
    state = _class_states(rule, digit, dropped, sizes)
    ending = _lattice_ending(rule, bags, state, outside)
    return Chain(table.unsqueeze(1), sizes, ending)


def _moves(
    rule: Rule,
    point: Tensor,
    digit: Tensor,
    stride: Tensor,
    caps: Tensor,
    free: Tensor,
    counted: Tensor,
) -> Tensor:
    """Next lattice point (n, Z, C + 1) after one instance of each column, -1 where forbidden."""
    here = point[None, :, None].expand_as(digit)
    up = here + stride[:, None, :]
    full = digit >= caps[:, None, :]
    if rule.fold == "any":
        seen = torch.where(full, here, up)
        # a class that must not occur has no digit to raise; a missing one needs none
        banned = (caps == 0) & counted & (torch.arange(caps.shape[1]).to(caps.device) < caps.shape[1] - 1)
        return seen.masked_fill(banned[:, None, :], -1)
    return torch.where(free[:, None, :], here, up.masked_fill(full, -1))


def _class_states(rule: Rule, digit: Tensor, dropped: Tensor, sizes: Tensor) -> Tensor:
    """The state (n, Z, C) of every class at the end; -1 where the digits leave no room for it."""
    if rule.fold == "any":
        return digit[..., :-1]
    left = sizes[:, None] - digit.sum(-1)
    columns = torch.arange(digit.shape[-1], device=digit.device)
    implied = torch.where(columns == dropped[:, None, None], left[..., None], digit)
    return implied.masked_fill((left < 0)[..., None], -1)[..., :-1]


def _lattice_ending(rule: Rule, bags: Tensor, state: Tensor, outside: Tensor) -> Ending:
    """Evidence of all classes at every lattice point."""
    n, Z = state.shape[:2]
    silent = ~rule.informed[bags]
    support = rule.support()[bags].transpose(1, 2)  # (n, states, C)
    legal = (state >= 0) & (state < support.shape[1])
    log_class = support.gather(1, state.clamp(0, support.shape[1] - 1))
    log_class = log_class.masked_fill(~legal & ~silent[:, None], NEG_INF)
    log_class = log_class.masked_fill(silent[:, None], 0.0)
    log_evidence = log_class.sum(-1).masked_fill(outside, NEG_INF)
    soft = rule.soft
    if soft is None or not bool(soft.active[bags].any()):
        return Ending(log_evidence)
    active = soft.active[bags]  # (n, C), at most one class a bag
    which = active.to(torch.int8).argmax(1)
    group = state.gather(2, which[:, None, None].expand(n, Z, 1)).squeeze(2)
    group = group.clamp(0, soft.target.shape[-1] - 1)
    target = soft.target[bags, which]
    value = torch.arange(target.shape[-1], device=target.device, dtype=target.dtype)
    return Ending(log_evidence, SoftEnding("jeffrey", target, active.any(1), group, value))
