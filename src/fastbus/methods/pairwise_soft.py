"""Risks of pairs with a confidence: how probable it is that both are of one class, or how far the two differ.

Every weight below is the conditional mean of a label given its instance, so that the risk of any classifier is met
in expectation over independent pairs. l+ and l- are the logistic losses of a positive and a negative label.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

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
from fastbus.training.step_objective import StepInputs, StepObjective

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun

Parts = Callable[[PairScores, Tensor, float], list[Tensor]]


def similarity_member_parts(pairs: PairScores, similar: Tensor, prior: float) -> list[Tensor]:
    """Partial risks by label and member: l+ of first, l+ of second, l- of first, l- of second.

    similar (P,): P(same class). E[similar | x] = prior r + (1 - prior)(1 - r) with r = P(positive | x), so that
    (similar - (1 - prior)) / (2 prior - 1) has the mean r.
    """
    scale = 2 * (2 * prior - 1)
    positive, negative = (similar - (1 - prior)) / scale, (prior - similar) / scale
    return [
        pair_mean(weight * loss(f), pairs.weight)
        for weight, loss in ((positive, positive_loss), (negative, negative_loss))
        for f in (pairs.first, pairs.second)
    ]


def similarity_parts(pairs: PairScores, similar: Tensor, prior: float) -> list[Tensor]:
    """Partial risks by label: that of positives, that of negatives."""
    first_plus, second_plus, first_minus, second_minus = similarity_member_parts(pairs, similar, prior)
    return [first_plus + second_plus, first_minus + second_minus]


def difference_parts(pairs: PairScores, difference: Tensor, prior: float) -> list[Tensor]:
    """Partial risks by label and member, of difference (P,) = P(second positive) - P(first positive).

    E[difference | first] = prior - r(first) and E[difference | second] = r(second) - prior.
    """
    weighed = (
        (prior - difference) * positive_loss(pairs.first),
        (1 - prior - difference) * negative_loss(pairs.second),
        (prior + difference) * positive_loss(pairs.second),
        (1 - prior + difference) * negative_loss(pairs.first),
    )
    return [pair_mean(values, pairs.weight) / 2 for values in weighed]


class SoftPairRisk(BoundedScores):
    """A corrected sum of partial risks, averaged over the two views."""

    def __init__(
        self, run: ImageRun, prior: float, parts: Parts, correction: Correction, bound: float, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.recipe, self.prior, self.parts, self.correction = run.recipe, prior, parts, correction
        self.bound, self.scale = bound, scale
        self.weak, self.told = told_pairs(run)

    def __call__(self, inputs: StepInputs) -> Tensor:
        bags = inputs.step.bags

        def risk(logits: Tensor) -> Tensor:
            pairs = pair_scores(logits, inputs.step, self.told[bags], self.bound)
            return self.scale * corrected(self.parts(pairs, self.weak[bags], self.prior), self.correction)

        return blend(self.recipe, *(risk(logits) for logits in view_logits(inputs)))


def _make(run: ImageRun, options: MethodOptions, *, name: str, parts: Parts, correction: Correction) -> StepObjective:
    assert options.prior is not None  # one of its needs
    prior, scale = options.prior, 1.0
    if name.startswith("sc_"):  # divided by 2 prior - 1
        prior = uneven_prior(prior, name)
        scale = gentle_scale(prior)
    return SoftPairRisk(run, prior, parts, correction, bound_of(options, correction), scale)


_SIMILARITY: dict[str, tuple[str, Parts, Correction, str]] = {
    "sc_unbiased": ("ScUnbiased", similarity_parts, "none", ""),
    "sc_relu": ("ScReLU", similarity_parts, "relu", " The authors call it NN."),
    "sc_abs": ("ScABS", similarity_parts, "abs", ""),
    "sc_nn_abs": (
        "ScNN-ABS",
        similarity_parts,
        "abs",
        " The authors have NN, max(0, .), and ABS. The name NN-ABS is that of the GLWS code, where it is |.| of the "
        "two partial risks, the authors' ABS: it equals sc_abs. What that code calls ABS adds half the risk to |.|.",
    ),
}
_DIFFERENCE: dict[str, tuple[str, Correction]] = {
    "cd_unbiased": ("CdUnbiased", "none"),
    "cd_relu": ("CdReLU", "relu"),
    "cd_abs": ("CdABS", "abs"),
}
_VIEWS = "Both views enter, the scores are those of a two-class softmax."

for _name, (_title, _parts, _correction, _note) in _SIMILARITY.items():
    register(
        Method(
            name=_name,
            title=_title,
            settings=("similarity_confidence",),
            reference="Cao, Feng, Xu, An, Niu, Sugiyama, Learning from similarity-confidence data, ICML 2021",
            differs=f"{_VIEWS}{_note} {GENTLE}" + f" {BOUNDED}" * (_correction == "none"),
            make=partial(_make, name=_name, parts=_parts, correction=_correction),
            extra=("bound",),
            needs=("prior",),
            binary=True,
            instead="glws and FastBUS itself need none.",
        )
    )
for _name, (_title, _correction) in _DIFFERENCE.items():
    register(
        Method(
            name=_name,
            title=_title,
            settings=("confidence_difference",),
            reference="Wang, Feng, Jiang, Niu, Zhang, Sugiyama, Binary classification with confidence difference, "
            "NeurIPS 2023",
            differs=_VIEWS
            + " Negative differences keep their sign, which published harnesses cut off."
            + f" {BOUNDED}" * (_correction == "none"),
            make=partial(_make, name=_name, parts=difference_parts, correction=_correction),
            extra=("bound",),
            needs=("prior",),
            binary=True,
            instead="glws and FastBUS itself need none.",
        )
    )
