"""One shift of all log odds, such that the expected number of positives meets a wanted one.

Binary labels that are independent stay so under the shift. Two uses: a count is solved where it is the most
probable one (quadrature.py), and the distribution nearest to the predictions with a given mean is the shifted
one itself, which needs no states at all.
Shapes: N chains, K instances.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.numerics import NEG_INF, logsumexp

# of vmap, and of tensors that are traced; the types by name, since importing them would load the compiler
_REFUSALS = ("vmap:", "It appears that you're trying to get value out of a tracing tensor")
_REFUSING_TYPES = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")


class Open(NamedTuple):
    """What certain instances leave open."""

    stay: Tensor  # (N, K) log potential of label 0, 0 where the instance is not open
    move: Tensor  # (N, K) of label 1
    free: Tensor  # (N, K) real instances whose labels are both possible
    sure: Tensor  # (N,) certain positives
    room: Tensor  # (N,) instances that are open
    settled: Tensor  # (N,) log potential of all certain instances, -inf where one has no label left
    allowed: Tensor  # (N, K, 2) 0 for labels that are possible, -inf for others

    @property
    def log_odds(self) -> Tensor:
        return self.move - self.stay


def leave_open(log_potential: Tensor, lengths: Tensor) -> Open:
    """Tell open instances from certain ones, in chains with log potentials (N, K, 2)."""
    K = log_potential.shape[1]
    real = torch.arange(K, device=lengths.device) < lengths[:, None]
    can = log_potential.detach() > NEG_INF
    free = real & can.all(-1)
    certain = log_potential.amax(-1).masked_fill(free | ~real, 0.0).sum(1)
    stay, move = log_potential.masked_fill(~free[..., None], 0.0).unbind(-1)
    sure = (real & can[..., 1] & ~can[..., 0]).sum(1)
    allowed = torch.zeros_like(log_potential).masked_fill(~can, NEG_INF)
    return Open(stay, move, free, sure, free.sum(1), certain, allowed)


def known(flags: Tensor) -> bool | None:
    """Whether all flags are set; None inside a function transform, which cannot look at values."""
    try:
        return bool(flags.all())
    except RuntimeError as problem:
        if unseen(problem):
            return None
        raise


def unseen(problem: RuntimeError) -> bool:
    """Whether it is how a function transform or a tracer refuses to look at values: not so memory that is spent."""
    return str(problem).startswith(_REFUSALS) or type(problem).__name__ in _REFUSING_TYPES


def find_shift(log_odds: Tensor, free: Tensor, wanted: Tensor, tolerance: float) -> Tensor:
    """theta (N,) with sum_k sigmoid(log_odds_k + theta) = wanted over the free instances.

    wanted (N,) lies strictly between 0 and the number of free instances. Newton's method inside a shrinking
    bracket; theta is right to about `tolerance`, or the sum to a thousandth of it where it hardly varies.
    """
    room = free.sum(1).clamp(min=1).to(log_odds.dtype)
    nothing = ~free.any(1)
    spare = room.log() + 1.0 - torch.minimum(wanted, room - wanted).clamp(max=1.0, min=1e-300).log()
    low = -log_odds.masked_fill(~free, NEG_INF).amax(1).masked_fill(nothing, 0.0) - spare
    high = -log_odds.masked_fill(~free, -NEG_INF).amin(1).masked_fill(nothing, 0.0) + spare
    theta = torch.zeros_like(low).clamp(min=low, max=high)
    before = torch.full_like(theta, -NEG_INF)
    for _ in range(200):
        gap, variance = _gap(log_odds, free, wanted, theta)
        # a shift of 1e4 cannot be stated more finely than its own rounding
        done = (gap.abs() <= tolerance * (variance * (1 + theta.abs()) + 1e-3)) | nothing
        if known(done):
            break
        low = torch.where(gap <= 0, theta, low)
        high = torch.where(gap >= 0, theta, high)
        newton = theta - gap / variance.clamp(min=1e-300)
        kept = (newton > low) & (newton < high) & (gap.abs() < before / 2)
        theta = torch.where(done, theta, torch.where(kept, newton, (low + high) / 2))
        # a bisection may well land further away than Newton did, and must not be held against the next step
        before = torch.where(kept, gap.abs(), -NEG_INF)
    return theta


def _gap(log_odds: Tensor, free: Tensor, wanted: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The expected count minus the wanted one, and the variance of the count.

    Likely positives are counted whole and their doubts taken off, so that nothing cancels where all is nearly
    certain.
    """
    shifted = log_odds + theta[:, None]
    doubt = torch.sigmoid(-shifted.abs()).masked_fill(~free, 0.0)
    positive = shifted > 0
    whole = (positive & free).sum(1).to(log_odds.dtype)
    gap = (whole - wanted) + torch.where(positive, -doubt, doubt).sum(1)
    return gap, (doubt * (1 - doubt)).sum(1)


def solve_mean(log_potential: Tensor, lengths: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The distribution nearest to the predictions whose expected number of positives is `mean` (N,).

    Log posterior (N, K, 2), and minus the divergence: sum_k log Z_k(theta) - theta * mean.
    """
    chain = leave_open(log_potential, lengths)
    wanted = mean - chain.sure
    inside = (wanted > 0) & (wanted < chain.room)
    asked = torch.where(inside, wanted, chain.room / 2)
    theta = find_shift(chain.log_odds.detach(), chain.free & inside[:, None], asked, 1e-14)
    theta = _differentiable(theta, chain, inside)
    shifted = torch.stack([chain.stay, chain.move + theta[:, None]], -1)
    norm = logsumexp(shifted, -1)
    outlay = norm.masked_fill(~chain.free, 0.0).sum(1) - theta * asked
    log_posterior = shifted - norm[..., None]
    return conclude(chain, wanted, inside, log_posterior, outlay)


def conclude(
    chain: Open, wanted: Tensor, inside: Tensor, log_posterior: Tensor, log_likelihood: Tensor
) -> tuple[Tensor, Tensor]:
    """Put certain and forced labels beside the solution of chains whose wanted count lies inside (0, room)."""
    everyone = (wanted == chain.room) & ~inside
    possible = (inside | everyone | (wanted == 0)) & (chain.settled.detach() > NEG_INF)
    forced = torch.where(everyone[:, None], chain.move, chain.stay).sum(1)
    labels = torch.arange(2, device=wanted.device)
    only = torch.zeros_like(log_posterior).masked_fill(labels != everyone[:, None, None], NEG_INF)
    log_posterior = torch.where(inside[:, None, None], log_posterior, only)
    log_posterior = torch.where(chain.free[..., None], log_posterior, chain.allowed)
    likelihood = chain.settled + torch.where(inside, log_likelihood, forced)
    return (
        log_posterior.masked_fill(~possible[:, None, None], NEG_INF),
        likelihood.masked_fill(~possible, NEG_INF),
    )


def _differentiable(theta: Tensor, chain: Open, inside: Tensor) -> Tensor:
    """Newton steps in the graph: each makes one more derivative of the root right."""
    log_odds = chain.log_odds
    if not (torch.is_grad_enabled() and log_odds.requires_grad):
        return theta
    use = chain.free & inside[:, None]
    for _ in range(2):
        prob = torch.sigmoid(log_odds + theta[:, None]).masked_fill(~use, 0.0)
        slope = (prob * (1 - prob)).sum(1).detach()
        flat = slope <= 0
        total = prob.sum(1)
        theta = theta - ((total - total.detach()) / slope.masked_fill(flat, 1.0)).masked_fill(flat, 0.0)
    return theta
