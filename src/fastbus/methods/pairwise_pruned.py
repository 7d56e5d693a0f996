"""Compared pairs as noisy labels: the more positive one is called positive, the other negative, the doubtful go.

Of the firsts a known share is negative, of the seconds a known share is positive; as many with the least fitting
scores are left out, and what is kept is weighed up to the classes' shares.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fastbus.methods.aggregation import sigmoid_ramp
from fastbus.methods.pair_rows import PairScores, negative_loss, pair_mean, positive_loss
from fastbus.methods.pairwise_hard import PCOMP, Comparisons
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, mean_where, score, soft_cross_entropy, view_logits
from fastbus.training.step_objective import StepInputs, StepObjective

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun

UNPRUNED = 0.1  # share of the epochs before scores are trusted
RAMP = 0.4  # share of all steps after which consistency counts fully
CONSISTENCY = 1.0  # of a cross-entropy


class Pruning(NamedTuple):
    """Shares of firsts and of seconds that are left out, and what a kept one of each weighs."""

    first: float
    second: float
    first_weight: float
    second_weight: float


def pruning_of(prior: float, pairs: str) -> Pruning:
    """From the share of negatives among the firsts and of positives among the seconds."""
    total = 1.0 if pairs == "sorted" else 1 - prior * (1 - prior)
    first, second = (1 - prior) ** 2 / total, prior**2 / total
    return Pruning(first, second, prior / (1 - first), (1 - prior) / (1 - second))


def pruned_risk(pairs: PairScores, keep_first: Tensor, keep_second: Tensor, pruning: Pruning) -> Tensor:
    """Risk of what is kept (P,); with a perfect order it is the supervised risk."""
    first = pruning.first_weight * positive_loss(pairs.first) * keep_first
    second = pruning.second_weight * negative_loss(pairs.second) * keep_second
    return pair_mean(first + second, pairs.weight)


def kept(fit: Tensor, pruned: float, counts: Tensor) -> Tensor:
    """All but the given share of those that count with the worst fit (P,), as booleans."""
    threshold = torch.quantile(fit[counts].double(), pruned) if bool(counts.any()) else fit.new_zeros(())
    return fit.double() >= threshold


class RankPruning(StepObjective):
    """Pruned afresh before every epoch by the averaged network's scores of the plain images."""

    def __init__(self, run: ImageRun, prior: float, consistency: float) -> None:
        super().__init__()
        self.recipe, self.consistency, self.comparisons = run.recipe, consistency, Comparisons(run)
        self.pruning = pruning_of(prior, self.comparisons.pairs)
        pairs = len(run.sizes)
        self.keep_first = torch.ones(pairs, dtype=torch.bool, device=run.device)
        self.keep_second = torch.ones(pairs, dtype=torch.bool, device=run.device)

    def state(self) -> dict[str, Tensor]:
        return {"keep_first": self.keep_first, "keep_second": self.keep_second}

    def start_epoch(self, run: ImageRun) -> None:
        if run.epoch < max(1, round(UNPRUNED * run.recipe.epochs)):
            return
        f = score(run.logits(run.training.images)).reshape(-1, 2).to(run.device)
        turned = self.comparisons.second_wins[:, None]
        f = torch.where(turned, f.flip(1), f)
        self.keep_first.copy_(kept(f[:, 0], self.pruning.first, self.comparisons.counts))
        self.keep_second.copy_(kept(-f[:, 1], self.pruning.second, self.comparisons.counts))

    def __call__(self, inputs: StepInputs) -> Tensor:
        bags = inputs.step.bags
        weak, strong = view_logits(inputs)
        keep = self.keep_first[bags], self.keep_second[bags]
        risks = [pruned_risk(self.comparisons.scores(x, inputs), *keep, self.pruning) for x in (weak, strong)]
        risk = blend(self.recipe, *risks)
        if not self.consistency:
            return risk
        agree = soft_cross_entropy(strong, inputs.teacher(inputs.weak).softmax(1))
        ramp = sigmoid_ramp(inputs.progress, RAMP)
        return risk + self.consistency * ramp * mean_where(agree, inputs.real)


def _make(run: ImageRun, options: MethodOptions, *, consistency: float) -> StepObjective:
    assert options.prior is not None  # one of its needs
    return RankPruning(run, options.prior, consistency)


_PRUNED = (
    "The shares of wrong labels follow from the prior instead of cross-validation. Ranks are renewed before every "
    "epoch by the averaged network, from the second tenth of the epochs on, in place of two separate fits."
)
register(
    Method(
        name="rank_pruning",
        title="Rank pruning",
        settings=("pair_comparison",),
        reference="Northcutt, Wu, Chuang, Learning with confident examples: rank pruning for robust classification "
        "with noisy labels, UAI 2017",
        differs=_PRUNED,
        make=partial(_make, consistency=0.0),
        needs=("prior",),
        binary=True,
        instead="gbm, glws and FastBUS itself need none.",
    )
)
register(
    Method(
        name="pc_teacher",
        title="PcTeacher",
        settings=("pair_comparison",),
        reference=PCOMP,
        differs=_PRUNED + " The strong view is drawn to the averaged network's prediction of the weak one by a "
        "cross-entropy of weight 1, as in the GLWS code, which has no averaged network; it ramps up over 40 % of the "
        "steps.",
        make=partial(_make, consistency=CONSISTENCY),
        needs=("prior",),
        binary=True,
        instead="gbm, glws and FastBUS itself need none.",
    )
)
