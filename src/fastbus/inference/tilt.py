"""Tilted chains: exact counts under a softmax head, when the joint lattice is too large.

Fixed counts make the posterior blind to per-class factors: multiplying every class's odds by a
constant changes nothing. So the factors are chosen such that the expected counts meet the given
ones (Sinkhorn, then Newton), and one-vs-rest chains run on the result. The likelihood is composite:
    log P(w) ~ sum_c log P_theta(w_c) + sum_k log Z_k - sum_c theta_c w_c
Shapes: n bags, K instances, C classes and one pooled rest, P = C + 1 columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastbus.inference.solution import Solution
from fastbus.numerics import NEG_INF, log_complement, log_softmax, logsumexp

CountSolver = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def exact_counts(support: Tensor, informed: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Counts (B, C), -1 where missing, and the bags (B,) whose evidence is nothing but counts."""
    states = torch.arange(support.shape[-1], device=support.device)
    possible = (support > NEG_INF) & (states <= sizes[:, None, None])
    single = possible.sum(-1) == 1
    counts = possible.to(torch.int8).argmax(-1)
    return counts.masked_fill(~informed, -1), (single | ~informed).all(1)


def solve_tilted(log_potential: Tensor, counts: Tensor, mask: Tensor, count_chains: CountSolver) -> Solution:
    """Posterior of n bags with log potentials (n, K, C) and counts (n, C), -1 where missing."""
    pooled, wanted, missing = _pool(log_potential, counts, mask)
    theta, converged = _multipliers(pooled.detach(), wanted, mask)
    theta = _differentiable(theta, pooled, wanted, mask)
    shifted = (pooled + _finite(theta)[:, None, :]).masked_fill(~mask[..., None], 0.0)
    norm = logsumexp(shifted, -1).masked_fill(~mask, 0.0)
    log_prob = log_softmax(shifted, -1)
    binary = torch.stack([log_complement(log_prob), log_prob], -1)  # (n, K, P, 2)
    binary = binary.masked_fill(~mask[..., None, None], 0.0)
    log_chain, chain_likelihood = count_chains(binary, wanted)
    log_columns = _renormalised(log_chain[..., 1], log_prob)
    log_posterior = _unpool(log_columns, log_potential, missing)
    outlay = (_finite(theta) * wanted).sum(1)
    likelihood = chain_likelihood.sum(1) + norm.sum(1) - outlay
    return Solution(log_posterior, likelihood, converged)


def _finite(theta: Tensor) -> Tensor:
    return theta.masked_fill(theta == NEG_INF, 0.0)


def _renormalised(log_columns: Tensor, log_prior: Tensor) -> Tensor:
    """Normalise over the columns; an instance that every chain rules out keeps its prediction."""
    nothing = (log_columns == NEG_INF).all(-1, keepdim=True)
    return log_softmax(torch.where(nothing, log_prior, log_columns), -1)


def _pool(log_potential: Tensor, counts: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Columns of the known classes plus one for all others, with complete counts (n, P)."""
    missing = counts < 0
    known = log_potential.masked_fill((missing | (counts == 0))[:, None, :], NEG_INF)
    rest = logsumexp(log_potential.masked_fill(~missing[:, None, :], NEG_INF), -1)
    left = mask.sum(1) - counts.clamp(min=0).sum(1)
    rest = rest.masked_fill((left == 0)[:, None], NEG_INF)
    wanted = torch.cat([counts.clamp(min=0), left[:, None]], 1).to(log_potential.dtype)
    return torch.cat([known, rest[..., None]], -1), wanted, missing


def _unpool(log_columns: Tensor, log_potential: Tensor, missing: Tensor) -> Tensor:
    """Share the rest's posterior among the missing classes as the predictions do."""
    among = log_softmax(log_potential.masked_fill(~missing[:, None, :], NEG_INF), -1)
    shared = log_columns[..., -1:] + among
    return torch.where(missing[:, None, :], shared, log_columns[..., :-1])


def _expected(pooled: Tensor, theta: Tensor, mask: Tensor) -> Tensor:
    """Probabilities (n, K, P) under multipliers theta (n, P), zeros at padding."""
    prob = log_softmax(pooled + theta[:, None, :], -1).exp()
    return prob.masked_fill(~mask[..., None], 0.0)


def _multipliers(pooled: Tensor, wanted: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """theta (n, P) with sum_k p_k = wanted, and whether it was reached (n,)."""
    used = wanted > 0
    theta = torch.zeros_like(wanted)
    log_wanted = wanted.masked_fill(~used, 1.0).log()
    for _ in range(30):
        log_total = logsumexp(log_softmax(pooled + theta[:, None, :], -1).masked_fill(~mask[..., None], NEG_INF), 1)
        reachable = used & (log_total > NEG_INF)
        theta = theta + (log_wanted - log_total.masked_fill(~reachable, 0.0)).masked_fill(~reachable, 0.0)
    for _ in range(30):
        prob = _expected(pooled, theta, mask)
        gap = (prob.sum(1) - wanted).masked_fill(~used, 0.0)
        if not bool((gap.abs() > 1e-11).any()):
            break
        step = _newton(prob, gap, used)
        theta = _line_search(pooled, wanted, mask, used, theta, step)
    gap = (_expected(pooled, theta, mask).sum(1) - wanted).abs().amax(1)
    return theta, gap <= 1e-6


def _newton(prob: Tensor, gap: Tensor, used: Tensor) -> Tensor:
    """Solve the curvature of the dual for the gap; it is flat along equal shifts, which are fixed."""
    curvature = torch.diag_embed(prob.sum(1)) - prob.transpose(1, 2) @ prob
    eye = torch.eye(prob.shape[-1], dtype=prob.dtype, device=prob.device)
    both = (used[:, :, None] & used[:, None, :]).to(prob.dtype)
    curvature = curvature * both + both / prob.shape[-1] + 1e-12 * eye
    curvature = curvature + torch.diag_embed((~used).to(prob.dtype))
    step: Tensor = torch.linalg.solve(curvature, gap[..., None])[..., 0]
    return step.masked_fill(~used, 0.0)


def _line_search(pooled: Tensor, wanted: Tensor, mask: Tensor, used: Tensor, theta: Tensor, step: Tensor) -> Tensor:
    """Halve the Newton step of each bag until its gap shrinks."""

    def gap_of(candidate: Tensor) -> Tensor:
        total = _expected(pooled, candidate, mask).sum(1)
        return (total - wanted).masked_fill(~used, 0.0).abs().sum(1)

    before = gap_of(theta)
    size = torch.ones_like(before)
    for _ in range(12):
        worse = ~(gap_of(theta - size[:, None] * step) <= before)
        if not bool(worse.any()):
            break
        size = torch.where(worse, size / 2, size)
    better = gap_of(theta - size[:, None] * step) <= before
    return torch.where(better[:, None], theta - size[:, None] * step, theta)


def _differentiable(theta: Tensor, pooled: Tensor, wanted: Tensor, mask: Tensor) -> Tensor:
    """Newton steps in the graph: each makes one more derivative of the root right."""
    if not (torch.is_grad_enabled() and pooled.requires_grad):
        return theta
    for _ in range(2):
        prob = _expected(pooled, theta, mask)
        total = prob.sum(1)
        theta = theta - _newton(prob.detach(), total - total.detach(), wanted > 0)
    return theta
