"""Loopy message passing: multi-instance labels under a softmax head, when the joint lattice is too large.

Variables are the instances' classes; each class has one factor "was it seen?" over all instances. A
factor tells an instance k two numbers: how likely the bag label is if y_k is its class (nu_has, the
same for all k) and if it is not (nu_not). Sweeps are damped; the likelihood is Bethe's, whose
gradient at a fixed point is the beliefs minus the prediction. Shapes: n bags, K instances, C
classes; all numbers are logs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.inference.solution import Solution
from fastbus.numerics import NEG_INF, log_complement, log_softmax, logaddexp, logsumexp

SWEEPS = 200
DAMPING = 0.3
TOLERANCE = 1e-12
GRAPH_SWEEPS = 60


def solve_loop(log_potential: Tensor, log_evidence: Tensor, mask: Tensor) -> Solution:
    """Beliefs of n bags: log potentials (n, K, C), log P(w | none), log P(w | some) as (n, C, 2)."""
    absent, nu_has = log_evidence[:, None, :, 0], log_evidence[:, None, :, 1]  # (n, 1, C)
    with torch.no_grad():
        start = torch.zeros_like(log_potential)
        nu_not, change, used = _sweep(log_potential, absent, nu_has, start, mask, SWEEPS)
    if torch.is_grad_enabled() and log_potential.requires_grad:
        # from the fixed point on, as many sweeps as led to it carry its derivative
        sweeps = min(used, GRAPH_SWEEPS)
        nu_not, _, _ = _sweep(log_potential, absent, nu_has, nu_not, mask, sweeps, tolerance=-1.0)
    score = _scores(log_potential, nu_has, nu_not)
    log_belief = log_softmax(score, -1).masked_fill(~mask[..., None], NEG_INF)
    bethe = _bethe(log_potential, absent, nu_has, nu_not, mask)
    return Solution(log_belief, bethe, change <= 1e-6)


def _sweep(
    log_potential: Tensor,
    absent: Tensor,
    nu_has: Tensor,
    nu_not: Tensor,
    mask: Tensor,
    sweeps: int,
    tolerance: float = TOLERANCE,
) -> tuple[Tensor, Tensor, int]:
    """Messages after some sweeps, the last change of each bag (n,), and the number of sweeps."""
    change = log_potential.new_zeros(log_potential.shape[0])
    for sweep in range(sweeps):
        yes, no = _cavity(log_potential, nu_has, nu_not, mask)
        none_else, some_else = _without_each(yes, no)
        updated = logaddexp(absent + none_else, nu_has + some_else)
        updated = updated.masked_fill(~mask[..., None], 0.0)
        settled = updated == nu_not  # also where both are -inf, whose difference is no number
        blended = torch.where(settled, updated, (1 - DAMPING) * updated + DAMPING * nu_not)
        change = (blended - nu_not).detach().masked_fill(settled, 0.0).abs().amax((1, 2))
        nu_not = blended
        if not bool((change > tolerance).any()):
            return nu_not, change, sweep + 1
    return nu_not, change, sweeps


def _sum_of_others(x: Tensor, dim: int) -> Tensor:
    """Sum over `dim` without each entry itself, where entries may be -inf."""
    blocked = x == NEG_INF
    finite = x.masked_fill(blocked, 0.0)
    total = finite.sum(dim, keepdim=True) - finite
    return total.masked_fill(blocked.sum(dim, keepdim=True) > blocked.long(), NEG_INF)


def _scores(log_potential: Tensor, nu_has: Tensor, nu_not: Tensor) -> Tensor:
    """Unnormalised log beliefs: own class has it, all other classes have not."""
    return log_potential + nu_has + _sum_of_others(nu_not, -1)


def _cavity(log_potential: Tensor, nu_has: Tensor, nu_not: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """log P(y_k = c) and log P(y_k != c) as factor c sees them, without its own message.

    An instance that some class cannot do without (nu_not = -inf) is no longer free for the others.
    """
    needed = nu_not == NEG_INF
    ratio = (nu_has - nu_not.masked_fill(needed, 0.0)).masked_fill(needed, NEG_INF)
    free = log_potential + ratio
    total = logsumexp(free, -1)[..., None]
    others = total + log_complement(log_softmax(free, -1))
    others = others.masked_fill(total == NEG_INF, NEG_INF)
    norm = logaddexp(log_potential, others)
    norm = norm.masked_fill(norm == NEG_INF, 0.0)
    taken = needed.any(-1, keepdim=True) & ~needed
    yes = (log_potential - norm).masked_fill(taken, NEG_INF)
    no = (others - norm).masked_fill(taken, 0.0)
    padding = ~mask[..., None]
    return yes.masked_fill(padding, NEG_INF), no.masked_fill(padding, 0.0)


def _without_each(yes: Tensor, no: Tensor) -> tuple[Tensor, Tensor]:
    """log P(none) and log P(some) among the other instances, for each instance, (n, K, C)."""
    some_before, none_before = _before(yes, no)
    some_after, none_after = (x.flip(1) for x in _before(yes.flip(1), no.flip(1)))
    return none_before + none_after, logaddexp(some_before, none_before + some_after)


def _before(yes: Tensor, no: Tensor) -> tuple[Tensor, Tensor]:
    """log P(some), log P(none) among the instances before each; summed over the first positive."""
    nothing = torch.zeros_like(no[:, :1])
    none = torch.cat([nothing, no.cumsum(1)[:, :-1]], 1)
    first = none + yes
    if torch.is_grad_enabled() and first.requires_grad:
        running = [first[:, 0]]
        for k in range(1, first.shape[1]):
            running.append(logaddexp(running[-1], first[:, k]))
        some = torch.stack(running, 1)
    else:
        some = torch.logcumsumexp(first, 1)
    return torch.cat([nothing.masked_fill(nothing == 0, NEG_INF), some[:, :-1]], 1), none


def _bethe(log_potential: Tensor, absent: Tensor, nu_has: Tensor, nu_not: Tensor, mask: Tensor) -> Tensor:
    """Bethe log-likelihood (n,): factors, plus variables, minus the messages between them."""
    yes, no = _cavity(log_potential, nu_has, nu_not, mask)
    some_before, none_before = _before(yes, no)
    none = none_before[:, -1] + no[:, -1]
    some = logaddexp(some_before[:, -1], none_before[:, -1] + yes[:, -1])
    factor = logaddexp(absent[:, 0] + none, nu_has[:, 0] + some).sum(1)
    variable = logsumexp(_scores(log_potential, nu_has, nu_not), -1)
    message = logaddexp(yes + nu_has, no + nu_not)
    real = mask[..., None]
    return factor + variable.masked_fill(~mask, 0.0).sum(1) - message.masked_fill(~real, 0.0).sum((1, 2))
