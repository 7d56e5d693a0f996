"""Exact counts of large bags: P(count) and every leave-one-out count by quadrature, O(K) for a chain.

A known count makes the posterior blind to a common shift of the log odds, so they are shifted until the count is
the expected one. The probability of a count is an integral of the characteristic function
    phi(t) = e^(-iwt) prod_k f_k(t),  f_k(t) = 1 - p_k + p_k e^(it),
and the same integral over phi / f_k leaves instance k out. The trapezoid rule with M nodes on the circle errs by
the probability of counts M away, and |phi| falls like e^(-2 V sin^2(t/2)), V the variance: some 15 nodes do for
large V, and 35 at most. Counts that hardly vary have a series of their own, which keeps its relative precision
where the integral would be left with rounding.
Shapes: N chains, K instances.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fastbus.inference.shift import Open, conclude, find_shift, known, leave_open
from fastbus.numerics import NEG_INF, log1mexp, log_softmax, logsumexp, safe_log

# what is left out of an integral or a sum is below e^-NEGLIGIBLE
NEGLIGIBLE = 46.0
MOST_NODES = 36
# complex numbers worked on at once: few enough for the cache
AT_ONCE = 2**16
# chances of a second exchange of labels below which the series is taken, up to its second order
NEARLY_CERTAIN = math.log(1e-6)


class Tilted(NamedTuple):
    """Chains whose wanted count lies inside (0, room), shifted to make it the expected one."""

    log_odds: Tensor  # (N, K) shifted, 0 where not free
    free: Tensor  # (N, K)
    wanted: Tensor  # (N,)
    room: Tensor  # (N,)

    @property
    def likely(self) -> Tensor:
        """(N, K): the more probable label is the positive one."""
        return (self.log_odds > 0) & self.free


def solve_hard_count(log_potential: Tensor, lengths: Tensor, log_evidence: Tensor) -> tuple[Tensor, Tensor]:
    """Log posterior (N, K, 2) and log-likelihood (N,), where log_evidence (N, Z) allows a single count each."""
    chain = leave_open(log_potential, lengths)
    stated = (log_evidence > NEG_INF).to(torch.int8).argmax(-1)
    wanted = stated - chain.sure
    inside = (wanted > 0) & (wanted < chain.room)
    tilted, theta = _tilt(chain, wanted, inside)
    near, log_rest, near_posterior = _series(tilted)
    log_count, posterior = _integrals(tilted)
    doubts = -logsigmoid(tilted.log_odds.abs()).masked_fill(~tilted.free, 0.0).sum(1)
    # taken apart this way, a shift of any size leaves no trace in the sum
    chosen = torch.where(tilted.likely, chain.move, chain.stay).sum(1)
    unbalanced = theta * (tilted.wanted - tilted.likely.sum(1))
    likelihood = chosen + torch.where(near, log_rest, log_count + doubts - unbalanced)
    log_posterior = torch.where(near[:, None, None], near_posterior, posterior)
    log_posterior, likelihood = conclude(chain, wanted, inside, log_posterior, likelihood)
    return log_posterior, likelihood + log_evidence.gather(1, stated[:, None]).squeeze(1)


def _tilt(chain: Open, wanted: Tensor, inside: Tensor) -> tuple[Tilted, Tensor]:
    """The shift is a constant to derivatives, because nothing depends on it."""
    free = chain.free & inside[:, None]
    asked = torch.where(inside, wanted, 1).to(chain.stay.dtype)
    theta = find_shift(chain.log_odds.detach(), free, asked, 1e-6)
    log_odds = (chain.log_odds + theta[:, None]).masked_fill(~free, 0.0)
    return Tilted(log_odds, free, asked, free.sum(1)), theta


# -- counts that vary ------------------------------------------------------------------------------


def _integrals(tilted: Tilted) -> tuple[Tensor, Tensor]:
    """log P(count) under the shifted odds (N,), and the log posterior (N, K, 2).

    phi / f_k = phi conj(f_k) / |f_k|^2, and f_k has two terms: three sums over the nodes, weighted by 1 / |f_k|^2,
    give both leave-one-out counts of every instance.
    """
    log_odds, free = tilted.log_odds, tilted.free
    yes = torch.sigmoid(log_odds).masked_fill(~free, 0.0)
    no = torch.sigmoid(-log_odds).masked_fill(~free, 1.0)
    period, count = _nodes((yes * no).sum(1).detach(), tilted.room)
    N, K = yes.shape
    most = MOST_NODES if known(count <= MOST_NODES) is None else int(count.max())
    step = max(1, AT_ONCE // max(N * K, 1))
    total = yes.new_zeros(N)
    sums = yes.new_zeros(N, 3, K)
    for start in range(0, most, step):
        node = torch.arange(start, min(start + step, most), device=yes.device)
        angle = node * (2 * math.pi / period)[:, None]  # (N, nodes)
        weight = torch.where(node == 0, 1.0, 2.0).to(yes.dtype) * (node < count[:, None]) / period[:, None]
        real, imaginary = _characteristic(yes, no, angle, angle * tilted.wanted[:, None])
        real, imaginary = weight * real, weight * imaginary
        total = total + real.sum(1)
        cos, sin = angle.cos(), angle.sin()
        parts = torch.stack([real, real * cos + imaginary * sin, real * cos - imaginary * sin], 1)  # (N, 3, nodes)
        squared = 1 - (4 * yes * no)[:, None] * ((angle / 2).sin() ** 2)[..., None]  # (N, nodes, K) |f|^2
        sums = sums + parts @ squared.reciprocal()
    rest_wanted = no * sums[:, 0] + yes * sums[:, 1]  # P(rest = w)
    rest_less = no * sums[:, 2] + yes * sums[:, 0]  # P(rest = w - 1)
    log_rest = torch.stack([safe_log(rest_wanted), safe_log(rest_less)], -1)
    log_prob = torch.stack([logsigmoid(-log_odds), logsigmoid(log_odds)], -1)
    return safe_log(total), log_softmax(log_prob + log_rest, -1)


def _characteristic(yes: Tensor, no: Tensor, angle: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of phi (N, nodes)."""
    real = no[:, None] + yes[:, None] * angle.cos()[..., None]  # (N, nodes, K)
    imaginary = yes[:, None] * angle.sin()[..., None]
    if torch.is_grad_enabled() and yes.requires_grad:
        # a product has no derivative that is both quick and safe; its logarithm has
        size = ((real**2 + imaginary**2).log().sum(-1) / 2).exp()
        turned = torch.atan2(imaginary, real).sum(-1) - back
        return size * turned.cos(), size * turned.sin()
    phi = torch.complex(real, imaginary).prod(-1) * torch.polar(torch.ones_like(back), -back)
    return phi.real, phi.imag


def _nodes(variance: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """How many nodes the circle is divided into (N,), an odd number, and how many of its first half count."""
    # Bernstein's inequality: how far from its mean a sum of so small a variance can be
    third = NEGLIGIBLE / 3
    reach = third + (third**2 + 2 * NEGLIGIBLE * variance).sqrt()
    period = torch.minimum(reach.ceil() + 2, room.to(variance.dtype) + 1)
    period = period + (period % 2 == 0)
    # with one instance left out the variance is less by a quarter at most
    decay = NEGLIGIBLE / (2 * (variance - 0.25).clamp(min=1.0))
    widest = 2 * decay.clamp(max=1.0).sqrt().asin()
    count = torch.minimum((widest * period / (2 * math.pi)).ceil(), (period - 1) / 2) + 1
    return period, count


# -- counts that hardly vary -----------------------------------------------------------------------


def _series(tilted: Tilted) -> tuple[Tensor, Tensor, Tensor]:
    """Chains that are nearly certain (N,), the log of P(count) over P(all likely labels), and the log posterior.

    With w likely positives, other labellings exchange j of them for as many unlikely ones. Their odds are
    products of elementary symmetric sums, small beside each other: c^j E_j F_j, c the two first sums' product.
    """
    log_odds, free, likely = tilted.log_odds, tilted.free, tilted.likely
    against = -log_odds.abs()
    gain = against.masked_fill(likely | ~free, NEG_INF)
    loss = against.masked_fill(~likely, NEG_INF)
    log_gain, log_loss = logsumexp(gain, 1), logsumexp(loss, 1)
    log_chance = log_gain + log_loss
    near = (likely.sum(1) == tilted.wanted) & (log_chance.detach() < NEARLY_CERTAIN) & (log_chance.detach() > NEG_INF)
    log_chance = log_chance.masked_fill(~near, NEARLY_CERTAIN)
    chance = log_chance.exp()
    gains = _share(gain, log_gain)
    losses = _share(loss, log_loss)
    second_gain, third_gain = _symmetric(gains)
    second_loss, third_loss = _symmetric(losses)
    log_total = torch.log1p(chance + chance**2 * second_gain * second_loss)
    share = torch.where(likely, losses, gains)
    second = torch.where(likely, second_loss[:, None], second_gain[:, None])
    other_second = torch.where(likely, second_gain[:, None], second_loss[:, None])
    other_third = torch.where(likely, third_gain[:, None], third_loss[:, None])
    rest, rest_second = 1 - share, second - share * (1 - share)
    c = chance[:, None]
    correction = torch.log1p(c * rest * other_second + c**2 * rest_second * other_third)
    own = torch.where(likely, log_loss[:, None], log_gain[:, None]).masked_fill(~near[:, None], 0.0)
    scale = (log_chance - log_total)[:, None]
    unlikely = (against - own + scale + correction).masked_fill(~near[:, None], NEARLY_CERTAIN)
    both = torch.stack([log1mexp(unlikely), unlikely], -1)
    return near, log_total, torch.where(likely[..., None], both.flip(-1), both)


def _share(terms: Tensor, total: Tensor) -> Tensor:
    return (terms - total.masked_fill(total == NEG_INF, 0.0)[:, None]).exp()


def _symmetric(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Second and third elementary symmetric sums of numbers that sum to 1, by Newton's identities."""
    squares, cubes = (shares**2).sum(1), (shares**3).sum(1)
    return (1 - squares) / 2, (1 - 3 * squares + 2 * cubes) / 6
