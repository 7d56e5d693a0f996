"""Risks of compared pairs ("the first is at least as positive") and of similar and dissimilar pairs.

Comparisons come about in two ways. sorted: two independent draws put in order. labelled: pairs of the order
(-, +) are left out, as the authors assume. With p = prior and n = 1 - p, the first and second of a pair have densities
    sorted:   first  (1 + n) A + n B,         second  p A + (1 + p) B
    labelled: first  (A + n B) / (1 - p n),   second  (p A + B) / (1 - p n)
where A = p p(x | +) and B = n p(x | -). Solved for A and B they give weights of l+ and l- whose expectation is the
supervised risk.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fastbus.methods.pair_rows import (
    BOUNDED,
    GENTLE,
    Correction,
    PairScores,
    bound_of,
    corrected,
    gentle_scale,
    negative_loss,
    pair_mean,
    pair_scores,
    positive_loss,
    told_pairs,
    uneven_prior,
)
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import BoundedScores, blend, view_logits
from fastbus.supervision.pairwise import PairComparison
from fastbus.training.step_objective import StepInputs, StepObjective

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun


class ComparisonWeights(NamedTuple):
    """Risk = E_first[own_positive l+ - other_negative l-] + E_second[own_negative l- - other_positive l+]."""

    own_positive: float
    other_negative: float
    own_negative: float
    other_positive: float


def comparison_weights(prior: float, pairs: str) -> ComparisonWeights:
    """The inverse of the two densities above."""
    if pairs == "sorted":
        return ComparisonWeights((1 + prior) / 2, prior / 2, (2 - prior) / 2, (1 - prior) / 2)
    return ComparisonWeights(1.0, prior, 1.0, 1 - prior)


def comparison_parts(pairs: PairScores, weights: ComparisonWeights) -> list[Tensor]:
    """Partial risks of positives and of negatives; the first of every pair is the more positive one."""
    first, second, weight = pairs
    positives = weights.own_positive * positive_loss(first) - weights.other_positive * positive_loss(second)
    negatives = weights.own_negative * negative_loss(second) - weights.other_negative * negative_loss(first)
    return [pair_mean(positives, weight), pair_mean(negatives, weight)]


def pc_unbiased_risk(first: Tensor, second: Tensor, prior: float, pairs: str = "sorted") -> Tensor:
    """Unbiased risk of pairs with scores (P,), the more positive one first."""
    scores = PairScores(first, second, torch.ones_like(first))
    return corrected(comparison_parts(scores, comparison_weights(prior, pairs)), "none")


class Comparisons:
    """The comparisons of a run: which pairs count, and which of them have the more positive one second."""

    def __init__(self, run: ImageRun) -> None:
        assert isinstance(run.supervision, PairComparison)
        self.pairs = run.supervision.pairs
        first_wins, told = told_pairs(run)
        self.second_wins = (first_wins < 0.5) & told
        # labelled: "the second is strictly more positive" is what the authors leave out
        self.counts = told if self.pairs == "sorted" else told & ~self.second_wins

    def scores(self, logits: Tensor, inputs: StepInputs, bound: float = 0.0) -> PairScores:
        """With the more positive one first."""
        bags = inputs.step.bags
        first, second, weight = pair_scores(logits, inputs.step, self.counts[bags], bound)
        turned = self.second_wins[bags]
        return PairScores(torch.where(turned, second, first), torch.where(turned, first, second), weight)


class ComparisonRisk(BoundedScores):
    """The unbiased risk of comparisons, or a corrected one."""

    def __init__(self, run: ImageRun, prior: float, correction: Correction, bound: float) -> None:
        super().__init__()
        self.recipe, self.correction, self.comparisons = run.recipe, correction, Comparisons(run)
        self.bound = bound
        self.weights = comparison_weights(prior, self.comparisons.pairs)

    def __call__(self, inputs: StepInputs) -> Tensor:
        def risk(logits: Tensor) -> Tensor:
            parts = comparison_parts(self.comparisons.scores(logits, inputs, self.bound), self.weights)
            return corrected(parts, self.correction)

        return blend(self.recipe, *(risk(logits) for logits in view_logits(inputs)))


def similar_losses(first: Tensor, second: Tensor, similar: Tensor, prior: float) -> Tensor:
    """What a pair of one class (similar = 1) or of two (0) is charged, (P,); its mean is the unbiased risk.

    A member of a similar pair is charged L(+), of a dissimilar one L(-), with
    L(+) = (p l+ - n l-) / (p - n) and L(-) = (p l- - n l+) / (p - n).
    """
    scale = 2 * prior - 1

    def charged(f: Tensor) -> Tensor:
        same = (prior * positive_loss(f) - (1 - prior) * negative_loss(f)) / scale
        apart = (prior * negative_loss(f) - (1 - prior) * positive_loss(f)) / scale
        return similar * same + (1 - similar) * apart

    return (charged(first) + charged(second)) / 2


class SimilarRisk(BoundedScores):
    """Similar and dissimilar pairs, weighed so that each kind has the share that the prior gives it."""

    def __init__(self, run: ImageRun, prior: float, bound: float) -> None:
        super().__init__()
        self.recipe, self.prior, self.bound = run.recipe, prior, bound
        self.similar, self.told = told_pairs(run)
        expected = prior**2 + (1 - prior) ** 2
        found = float(self.similar[self.told].mean()) if bool(self.told.any()) else expected
        found = min(max(found, 1e-6), 1 - 1e-6)
        self.kinds = ((1 - expected) / (1 - found), expected / found)  # dissimilar, similar
        self.scale = gentle_scale(prior)

    def __call__(self, inputs: StepInputs) -> Tensor:
        bags = inputs.step.bags
        similar = self.similar[bags]
        kind = torch.where(similar > 0, self.kinds[1], self.kinds[0])

        def risk(logits: Tensor) -> Tensor:
            first, second, counts = pair_scores(logits, inputs.step, self.told[bags], self.bound)
            return self.scale * pair_mean(kind * similar_losses(first, second, similar, self.prior), counts)

        return blend(self.recipe, *(risk(logits) for logits in view_logits(inputs)))


def _make_comparison(run: ImageRun, options: MethodOptions, *, correction: Correction) -> StepObjective:
    assert options.prior is not None  # one of its needs
    return ComparisonRisk(run, options.prior, correction, bound_of(options, correction))


def _make_similar(run: ImageRun, options: MethodOptions) -> StepObjective:
    assert options.prior is not None  # one of its needs
    return SimilarRisk(run, uneven_prior(options.prior, "risk_sd"), bound_of(options))


PCOMP = (
    "Feng, Shu, Lu, Han, Xu, Niu, An, Sugiyama, Pointwise binary classification with pairwise confidence comparisons, "
    "ICML 2021"
)
SORTED = (
    "The authors leave out pairs drawn as (negative, positive); pairs put in order keep them, turned round, and the "
    'weights are derived anew for that. pairs="labelled" has the authors\' weights.'
)

_CORRECTIONS: dict[str, tuple[str, Correction]] = {
    "pc_unbiased": ("PcUnbiased", "none"),
    "pc_relu": ("PcReLU", "relu"),
    "pc_abs": ("PcABS", "abs"),
}
for _name, (_title, _correction) in _CORRECTIONS.items():
    register(
        Method(
            name=_name,
            title=_title,
            settings=("pair_comparison",),
            reference=PCOMP,
            differs=SORTED + f" {BOUNDED}" * (_correction == "none"),
            make=partial(_make_comparison, correction=_correction),
            extra=("bound",),
            needs=("prior",),
            binary=True,
            instead="gbm, glws and FastBUS itself need none.",
        )
    )
register(
    Method(
        name="risk_sd",
        title="RiskSD",
        settings=("pair_similarity",),
        reference="Shimada, Bao, Sato, Sugiyama, Classification from pairwise similarities/dissimilarities and "
        "unlabeled data via empirical risk minimization, Neural Computation 2021",
        differs="Both views enter. Where the data hold another share of similar pairs than the prior says, the two "
        f"kinds are weighed back. {GENTLE} {BOUNDED}",
        make=_make_similar,
        extra=("bound",),
        needs=("prior",),
        binary=True,
        instead="uum, gbm and FastBUS itself need none.",
    )
)
