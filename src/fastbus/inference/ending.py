"""How a chain ends: evidence about its last state, hard or soft, turned into weights and a likelihood.

Shapes: N chains, Z states, S groups of states that a soft statement tells apart.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fastbus.numerics import NEG_INF, logsumexp, safe_log, scatter_logsumexp


class SoftEnding(NamedTuple):
    """A distribution to set, or a mean to meet, once all hard evidence is in."""

    kind: Literal["jeffrey", "mean"]
    target: Tensor  # (N, S) a distribution, or (N,) a mean
    active: Tensor  # (N,)
    group: Tensor  # (N, Z) or (1, Z): the group of each state
    value: Tensor  # (S,) the number whose mean is meant


class Ending(NamedTuple):
    """Everything known about the last state."""

    log_evidence: Tensor  # (N, Z)
    soft: SoftEnding | None = None

    def rows(self, index: Tensor | slice) -> Ending:
        """The endings of some of the chains."""
        soft = self.soft
        if soft is not None:
            group = soft.group if soft.group.shape[0] == 1 else soft.group[index]
            soft = soft._replace(target=soft.target[index], active=soft.active[index], group=group)
        return Ending(self.log_evidence[index], soft)


def close(log_last: Tensor, ending: Ending) -> tuple[Tensor, Tensor]:
    """Weights of the last states (N, Z), in logs, and the log-likelihood (N,).

    `log_last` (N, Z) is log P(last state, instance evidence). Multiplying it by the weights gives the
    posterior of the last state, up to a constant for hard evidence.
    """
    log_evidence, soft = ending
    joint = log_last + log_evidence
    likelihood = logsumexp(joint, -1)
    if soft is None:
        return log_evidence, likelihood
    group = soft.group.expand_as(joint)
    if soft.kind == "jeffrey":
        factor, soft_likelihood = _jeffrey(joint, soft, group)
    else:
        factor, soft_likelihood = _mean(joint, soft, group)
    # a chain without hard support has no soft answer either, and must not leave NaN behind
    on = soft.active
    weight = torch.where(on[:, None], log_evidence + factor, log_evidence)
    return weight, torch.where(on, soft_likelihood, likelihood)


def _jeffrey(joint: Tensor, soft: SoftEnding, group: Tensor) -> tuple[Tensor, Tensor]:
    """q = sum_s r(s) q(. | s): every state is weighed by r(s) / P(s)."""
    log_group = scatter_logsumexp(joint, group, soft.target.shape[-1])  # (N, S)
    needed = soft.target > 0
    lost = needed & (log_group == NEG_INF)
    finite = log_group.masked_fill(~needed | lost, 0.0)
    likelihood = (soft.target * finite).sum(-1).masked_fill(lost.any(-1), NEG_INF)
    factor = (safe_log(soft.target) - finite).masked_fill(lost, NEG_INF)
    return factor.gather(1, group), likelihood


def _mean(joint: Tensor, soft: SoftEnding, group: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest distribution with the given mean: weights exp(theta * value), theta by root finding.

    At the ends of the attainable range only the extreme states remain, the hard case.
    """
    value = soft.value[group]
    target = soft.target
    possible = joint > NEG_INF
    highest = value.masked_fill(~possible, NEG_INF).amax(-1)
    lowest = value.masked_fill(~possible, -NEG_INF).amin(-1)
    # with nothing possible highest < lowest, and the bag falls under "outside"
    outside = (target > highest) | (target < lowest)
    at_end = (target == highest) | (target == lowest)
    inside = ~outside & ~at_end
    theta = _solve_tilt(joint.detach(), value, target, inside)
    theta = _differentiable(theta, joint, value, target, inside)
    shift = theta[:, None] * value
    log_norm = logsumexp(joint + shift, -1)
    log_norm = log_norm.masked_fill(~inside, 0.0)
    extreme = (value == target[:, None]) & possible
    hard = logsumexp(joint.masked_fill(~extreme, NEG_INF), -1)
    likelihood = torch.where(inside, log_norm - theta * target, hard).masked_fill(outside, NEG_INF)
    only = torch.zeros_like(joint).masked_fill(~extreme, NEG_INF)
    return torch.where(inside[:, None], shift - log_norm[:, None], only), likelihood


def _moments(joint: Tensor, value: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(joint + theta[:, None] * value, -1)
    mean = (weights * value).sum(-1)
    return mean, (weights * (value - mean[:, None]) ** 2).sum(-1)


def _solve_tilt(joint: Tensor, value: Tensor, target: Tensor, inside: Tensor) -> Tensor:
    """Newton's method kept inside a shrinking bracket; theta (N,), 0 where it is not asked for."""
    joint = torch.where(inside[:, None], joint, torch.zeros_like(joint))
    reach = joint.new_ones(joint.shape[0])
    for _ in range(64):
        too_low = inside & (_moments(joint, value, reach)[0] < target)
        too_high = inside & (_moments(joint, value, -reach)[0] > target)
        widen = too_low | too_high
        if not bool(widen.any()):
            break
        reach = torch.where(widen, reach * 2, reach)
    low, high = -reach, reach.clone()
    theta = torch.zeros_like(reach)
    for _ in range(200):
        mean, variance = _moments(joint, value, theta)
        low = torch.where(mean <= target, theta, low)
        high = torch.where(mean >= target, theta, high)
        newton = theta - (mean - target) / variance.clamp(min=1e-300)
        kept = (newton > low) & (newton < high)
        proposed = torch.where(kept, newton, (low + high) / 2)
        moved = inside & ((proposed - theta).abs() > 1e-15 * theta.abs().clamp(min=1.0))
        theta = torch.where(moved, proposed, theta)
        if not bool(moved.any()):
            break
    return theta.masked_fill(~inside, 0.0)


def _differentiable(theta: Tensor, joint: Tensor, value: Tensor, target: Tensor, inside: Tensor) -> Tensor:
    """Newton steps in the graph: each makes one more derivative of the root right."""
    if not (torch.is_grad_enabled() and joint.requires_grad):
        return theta
    calm = torch.where(inside[:, None], joint, torch.zeros_like(joint))
    for _ in range(2):
        mean, variance = _moments(calm, value, theta)
        slope = variance.detach()
        flat = (slope <= 0) | ~inside
        step = (mean - mean.detach()) / slope.masked_fill(flat, 1.0)
        theta = theta - step.masked_fill(flat, 0.0)
    return theta
