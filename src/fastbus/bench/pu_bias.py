"""Bias of the optimum of positive-unlabelled learning, for every constraint and size of the set.

The model is a table: two kinds of instances, each with one probability of being positive. Labelled
positives are drawn from the positives, sets of n from everything; the expected loss is minimised over
the two probabilities with the exact gradient, and the minimum is compared with the truth. What is
left is the bias of the loss itself: no sampling error, no optimiser, no network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fastbus.inference.infer import infer
from fastbus.supervision import PositiveUnlabeled

Constraint = Literal["jeffrey", "likelihood", "count", "mean"]
CONSTRAINTS: tuple[Constraint, ...] = ("jeffrey", "likelihood", "count", "mean")
SET_SIZES = (8, 32, 128, 512, 1024)
STILL = 1e-6  # the largest slope of the expected loss that counts as none


class World(NamedTuple):
    """P(y = 1) of the two kinds, the share of the first, and labelled positives per unlabelled."""

    high: float = 0.95
    low: float = 0.05
    share: float = 0.5
    labelled: float = 0.25

    @property
    def prior(self) -> float:
        return self.share * self.high + (1 - self.share) * self.low


class BiasRow(NamedTuple):
    """The optimum of the expected loss for one constraint and set size."""

    world: World
    constraint: Constraint
    set_size: int
    high: float  # P(y = 1) of the first kind at the optimum
    low: float  # and of the second
    slope: float  # of the expected loss there, along the logits

    @property
    def bias(self) -> float:
        """Mean absolute error over the instances of a set."""
        share = self.world.share
        off_high, off_low = abs(self.high - self.world.high), abs(self.low - self.world.low)
        return share * off_high + (1 - share) * off_low

    @property
    def passed(self) -> bool:
        """The optimum was reached and tells the two kinds apart in the right order."""
        return self.slope <= STILL and self.high > self.low


def typical_sets(world: World, n: int) -> tuple[Tensor, Tensor]:
    """How many of n drawn instances are of the first kind, (M,), and with which weights, (M,).

    Every stride-th value of Binomial(n, share) within 6 deviations: a trapezoid rule, whose error
    for a bell of that width is below 1e-8 at strides of 0.8 deviations.
    """
    deviation = math.sqrt(n * world.share * (1 - world.share))
    stride = max(1, int(0.8 * deviation))
    middle = round(n * world.share)
    reach = math.ceil(6 * deviation / stride)
    first = middle + stride * torch.arange(-reach, reach + 1)
    first = first[(first >= 0) & (first <= n)]
    binomial = torch.distributions.Binomial(n, torch.tensor(world.share, dtype=torch.float64))
    log_weight = binomial.log_prob(first.double())
    return first, torch.softmax(log_weight, 0)


def optimum(world: World, constraint: Constraint, n: int, start: tuple[float, float] = (1.0, -1.0)) -> BiasRow:
    """Minimise the expected loss per unlabelled instance over the two logits, from `start`."""
    first, weight = typical_sets(world, n)
    is_first = torch.arange(n) < first[:, None]  # (M, n)
    unlabelled = torch.full((len(first), n), -1)
    supervision = PositiveUnlabeled(world.prior, constraint=constraint)
    among_positives = world.share * world.high / world.prior
    theta = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [theta],
        max_iter=100,
        tolerance_grad=STILL / 10,
        tolerance_change=1e-13,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = torch.where(is_first, theta[0], theta[1])[..., None]
        post = infer(supervision, logits, unlabelled, head="sigmoid", validate=False)
        log_p = logsigmoid(theta)
        gold = among_positives * log_p[0] + (1 - among_positives) * log_p[1]
        value = -(weight @ post.log_likelihood) / n - world.labelled * gold
        value.backward()
        return value

    optimiser.step(loss)
    loss()
    slope = math.inf if theta.grad is None else float(theta.grad.abs().max())
    high, low = torch.sigmoid(theta.detach()).tolist()
    return BiasRow(world, constraint, n, high, low, slope)


def bias_table(world: World | None = None, set_sizes: tuple[int, ...] = SET_SIZES) -> Iterator[BiasRow]:
    """All constraints and sizes; each optimum starts from that of the next smaller size."""
    world = world or World()
    for constraint in CONSTRAINTS:
        start: tuple[float, float] = (1.0, -1.0)
        for n in set_sizes:
            row = optimum(world, constraint, n, start)
            yield row
            # a kind that is certain at one size must be free to move at the next
            safe = torch.tensor([row.high, row.low]).clamp(0.01, 0.99).logit()
            start = float(safe[0]), float(safe[1])


def least_biased(rows: list[BiasRow]) -> dict[int, BiasRow]:
    """For each set size the row with the least bias."""
    sizes = sorted({row.set_size for row in rows})
    return {n: min((r for r in rows if r.set_size == n), key=lambda r: r.bias) for n in sizes}
