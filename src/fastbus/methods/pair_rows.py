"""What methods for pairs of two classes share: the two scores of each pair, logistic losses, corrected risks.

Shapes: P pairs of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fastbus.errors import InputError
from fastbus.inference.fixed import Step
from fastbus.methods.rows import BOUND, bounded, score

if TYPE_CHECKING:
    from fastbus.methods.registry import MethodOptions
    from fastbus.training.image_run import ImageRun

Correction = Literal["none", "relu", "abs"]
# A risk that is not corrected has no lower end: at a rate of .1 a network follows it until its weights are no numbers.
BOUNDED = (
    "Scores are kept within 10 softly, since plain gradient descent follows an unbounded risk to infinity, where the "
    "authors' Adam takes steps of one size; the risk is unbiased for such scores too, bound=0 lifts it."
)
GENTLE = (
    "The objective is the risk times |2 prior - 1|, by which the risk itself is divided: the authors' Adam does not "
    "mind its scale, SGD does."
)


class PairScores(NamedTuple):
    """Scores f (P,) of the first and second instance, and which pairs (P,) count, as weights."""

    first: Tensor
    second: Tensor
    weight: Tensor


def positive_loss(f: Tensor) -> Tensor:
    """Logistic loss of f if the label is positive."""
    return softplus(-f)


def negative_loss(f: Tensor) -> Tensor:
    """Logistic loss of f if the label is negative."""
    return softplus(f)


def pair_scores(logits: Tensor, step: Step, counts: Tensor, bound: float = 0.0) -> PairScores:
    """From logits (M, 2); counts (P,): whether a pair's weak label may be used; bound: of the scores, 0 for none."""
    f = bounded(score(logits), bound)
    first = step.starts.clamp(max=len(f) - 2)
    return PairScores(f[first], f[first + 1], ((step.sizes == 2) & counts).to(f.dtype))


def bound_of(options: MethodOptions, correction: Correction = "none") -> float:
    """How far scores of an uncorrected risk may go, if the caller does not say."""
    return options.number("bound", BOUND if correction == "none" else 0.0)


def pair_mean(values: Tensor, weight: Tensor) -> Tensor:
    """Mean over the pairs that count."""
    return (values * weight).sum() / weight.sum().clamp(min=1)


def corrected(parts: Sequence[Tensor], correction: Correction) -> Tensor:
    """Sum of partial risks, each of which is positive in expectation, made so by max(0, .) or |.|."""
    change = {"none": lambda x: x, "relu": torch.relu, "abs": torch.abs}[correction]
    return torch.stack([change(part) for part in parts]).sum()


def told_pairs(run: ImageRun) -> tuple[Tensor, Tensor]:
    """Weak labels (P,) as float32 on the run's device, 0 where missing, and which are told."""
    weak = run.weak.double()
    hard = not run.weak.is_floating_point()
    told = weak >= 0 if hard else ~weak.isnan()
    return torch.where(told, weak, 0.0).float().to(run.device), told.to(run.device)


def uneven_prior(prior: float, method: str) -> float:
    """Refuse a prior of one half, at which similarity says nothing about which class is which."""
    if abs(2 * prior - 1) < 1e-3:
        raise InputError(
            f"{method}: prior={prior:g}; expected a share of positives other than 1/2, its risk divides by "
            "2 prior - 1. Use gbm or glws, or leave the method out to train with FastBUS."
        )
    return prior


def gentle_scale(prior: float) -> float:
    """What a risk that is divided by 2 prior - 1 is multiplied by: its minimum stays, SGD's steps are of usual length.

    Digits, a wide residual network of 10 layers, a prior of .45 and two draws: RiskSD 81 and 78 % so, 58 and 55 %
    without, and ScUnbiased 69 and 70 %, 51 and 51 % without; at .65 it makes no difference.
    """
    return abs(2 * prior - 1)
