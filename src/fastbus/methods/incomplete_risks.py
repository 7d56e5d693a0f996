"""Risks of a binary classifier written with unlabelled data: uPU, nnPU and UU.

f = logit_1 - logit_0; l(f, y) = softplus(-y f) is the logistic loss, sigmoid(-y f) the sigmoid loss.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fastbus.errors import InputError, choice
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import (
    BOUND,
    BoundedScores,
    blend,
    bounded,
    classes_of,
    labelled_part,
    mean_where,
    score,
    view_logits,
)
from fastbus.supervision.incomplete import UnlabeledUnlabeled
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import UNNORMALISED, Recipe
from fastbus.training.step_objective import StepInputs, StepObjective

BaseLoss = Callable[[Tensor], Tensor]  # of the margin y f


def logistic(margin: Tensor) -> Tensor:
    """log(1 + exp(-margin))."""
    return softplus(-margin)


def sigmoid(margin: Tensor) -> Tensor:
    """1 / (1 + exp(margin)), symmetric: l(z) + l(-z) = 1."""
    return torch.sigmoid(-margin)


LOSSES: dict[str, BaseLoss] = {"logistic": logistic, "sigmoid": sigmoid}


def pu_parts(positive: Tensor, unlabelled: Tensor, prior: float, loss: BaseLoss) -> tuple[Tensor, Tensor]:
    """What positives and what negatives cost: prior E_P[l(f, 1)] and E_U[l(f, -1)] - prior E_P[l(f, -1)]."""
    negative = loss(-unlabelled).mean() - prior * loss(-positive).mean()
    return prior * loss(positive).mean(), negative


def upu_risk(positive: Tensor, unlabelled: Tensor, prior: float, loss: BaseLoss = logistic) -> Tensor:
    """The unbiased risk of scores f of labelled positives (P,) and of unlabelled instances (U,)."""
    gain, negative = pu_parts(positive, unlabelled, prior, loss)
    return gain + negative


def nnpu_risk(positive: Tensor, unlabelled: Tensor, prior: float, loss: BaseLoss = logistic) -> Tensor:
    """The same with the negatives' part, which cannot be below 0 in truth, cut at 0."""
    gain, negative = pu_parts(positive, unlabelled, prior, loss)
    return gain + negative.clamp(min=0)


def nnpu_descent(
    positive: Tensor, unlabelled: Tensor, prior: float, loss: BaseLoss = logistic, beta: float = 0.0, gamma: float = 1.0
) -> Tensor:
    """What a step of nnPU descends: the risk, or -gamma times the negatives' part where that is below -beta."""
    gain, negative = pu_parts(positive, unlabelled, prior, loss)
    return torch.where(negative < -beta, -gamma * negative, gain + negative)


def uu_weights(high: float, low: float, prior: float) -> tuple[float, float, float, float]:
    """(a, b, c, d) of sets with shares high > low of positives, for a test share `prior`.

    R = a E_1[l(f, 1)] + b E_1[l(f, -1)] + c E_2[l(f, -1)] + d E_2[l(f, 1)]
    """
    apart = high - low
    return (
        (1 - low) * prior / apart,
        -low * (1 - prior) / apart,
        high * (1 - prior) / apart,
        -(1 - high) * prior / apart,
    )


def uu_parts(
    scores: Tensor, first: Tensor, second: Tensor, weights: tuple[float, float, float, float], loss: BaseLoss
) -> tuple[Tensor, Tensor]:
    """What positives and what negatives cost; scores (M,), `first` and `second` (M,) say who is in which set."""
    a, b, c, d = weights
    plus, minus = loss(scores), loss(-scores)
    positive = a * mean_where(plus, first) + d * mean_where(plus, second)
    negative = b * mean_where(minus, first) + c * mean_where(minus, second)
    return positive, negative


def uu_risk(
    scores: Tensor,
    first: Tensor,
    second: Tensor,
    weights: tuple[float, float, float, float],
    loss: BaseLoss = logistic,
    corrected: bool = True,
) -> Tensor:
    """The unbiased risk, or with the absolute value of either part, none of which is negative in truth."""
    positive, negative = uu_parts(scores, first, second, weights, loss)
    return positive.abs() + negative.abs() if corrected else positive + negative


class PositiveUnlabeledRisk(BoundedScores):
    """A risk of the scores of labelled and of unlabelled rows, averaged over both views."""

    def __init__(
        self, risk: Callable[[Tensor, Tensor], Tensor], labelled: int, recipe: Recipe, bound: float = 0.0
    ) -> None:
        super().__init__()
        self.risk, self.labelled, self.recipe, self.bound = risk, labelled, recipe, bound

    def __call__(self, inputs: StepInputs) -> Tensor:
        L = self.labelled
        scores = (bounded(score(logits), self.bound) for logits in view_logits(inputs))
        weak, strong = (self.risk(f[:L], f[L:]) for f in scores)
        return blend(self.recipe, weak, strong)


class TwoSetsRisk(StepObjective):
    """The corrected risk of two unlabelled sets."""

    def __init__(
        self,
        sets: Tensor,
        order: tuple[int, int],
        weights: tuple[float, float, float, float],
        loss: BaseLoss,
        recipe: Recipe,
    ) -> None:
        """sets (N,): 0 or 1, -1 for neither; order: which of them has more positives, which less."""
        super().__init__()
        self.sets, self.order, self.weights, self.loss, self.recipe = sets, order, weights, loss, recipe

    def __call__(self, inputs: StepInputs) -> Tensor:
        sets = self.sets.index_select(0, inputs.step.rows)
        first, second = (inputs.real & (sets == index) for index in self.order)
        weak, strong = (uu_risk(score(x), first, second, self.weights, self.loss) for x in view_logits(inputs))
        return blend(self.recipe, weak, strong)


def _base_loss(options: MethodOptions, default: str) -> BaseLoss:
    return LOSSES[_loss_name(options, default)]


def _loss_name(options: MethodOptions, default: str) -> str:
    name: str = options.extra.get("loss", default)
    choice(name, tuple(LOSSES), "loss", InputError)
    return name


def _steep_loss(run: ImageRun) -> str:
    """The sigmoid loss is flat where a network is sure, and one without normalisation soon is, of a single class."""
    return "logistic" if run.recipe.backbone in (*UNNORMALISED, "mlp", "linear") else "sigmoid"


def _upu(run: ImageRun, options: MethodOptions) -> StepObjective:
    assert options.prior is not None
    prior, name = float(options.prior), _loss_name(options, _steep_loss(run))
    loss, labelled = LOSSES[name], labelled_part(run, "upu")
    bound = options.number("bound", BOUND if name == "logistic" else 0.0)
    return PositiveUnlabeledRisk(lambda p, u: upu_risk(p, u, prior, loss), labelled, run.recipe, bound)


def _nnpu(run: ImageRun, options: MethodOptions) -> StepObjective:
    assert options.prior is not None
    prior, loss = float(options.prior), _base_loss(options, _steep_loss(run))
    return PositiveUnlabeledRisk(lambda p, u: nnpu_descent(p, u, prior, loss), labelled_part(run, "nnpu"), run.recipe)


def _uu(run: ImageRun, options: MethodOptions) -> StepObjective:
    assert isinstance(run.supervision, UnlabeledUnlabeled)
    priors = run.supervision.priors
    if len(priors) != 2 or priors[0] == priors[1]:
        raise InputError(
            f"uu on sets with shares {list(priors)} of positives; expected two sets with different shares. Keep two of "
            "them, or leave the method out to train with FastBUS, which takes any number."
        )
    sets = classes_of(run.weak, 2, "unlabeled_unlabeled").flatten().repeat_interleave(run.sizes)
    order = (0, 1) if priors[0] > priors[1] else (1, 0)
    counts = torch.bincount(sets[sets >= 0], minlength=2).double()
    pooled = float((counts * torch.tensor(priors).double()).sum() / counts.sum().clamp(min=1))
    prior = float(options.prior) if options.prior is not None else pooled
    weights = uu_weights(priors[order[0]], priors[order[1]], prior)
    return TwoSetsRisk(sets.to(run.device), order, weights, _base_loss(options, "logistic"), run.recipe)


INSTEAD = "Or use method='cvir', which estimates it."
register(
    Method(
        name="upu",
        title="uPU",
        settings=("positive_unlabeled",),
        needs=("prior",),
        binary=True,
        reference="du Plessis, Niu and Sugiyama, Convex formulation for learning from positive and unlabeled data, "
        "ICML 2015",
        differs="On a deep network with the sigmoid loss, as the authors of nnPU run it on CIFAR-10, averaged over "
        "both views; they take Adam. loss='logistic' is the paper's, and the default for networks without "
        "normalisation, which end with one class under the sigmoid loss at usual rates. A flexible network can push "
        "its risk below any bound: bound=10, the default then, keeps scores within 10 softly.",
        make=_upu,
        extra=("loss", "bound"),
        instead=INSTEAD,
    )
)
register(
    Method(
        name="nnpu",
        title="nnPU",
        settings=("positive_unlabeled",),
        needs=("prior",),
        binary=True,
        reference="Kiryo et al., Positive-unlabeled learning with non-negative risk estimator, NeurIPS 2017",
        differs="Sigmoid loss, beta 0 and gamma 1 as in the paper; the authors take Adam. The negatives' part is "
        "judged for each view by itself, and the two are averaged. loss='logistic' is the default for networks without "
        "normalisation, which end with one class under the sigmoid loss at usual rates.",
        make=_nnpu,
        extra=("loss",),
        instead=INSTEAD,
    )
)
register(
    Method(
        name="uu",
        title="UU",
        settings=("unlabeled_unlabeled",),
        binary=True,
        reference="Lu et al., On the minimal supervision for training any binary classifier from only unlabeled data, "
        "ICLR 2019, with the correction of Lu et al., AISTATS 2020",
        differs="Both parts are corrected by their absolute value; the share of positives at test time is that of both "
        "sets together unless prior= says otherwise; averaged over both views. Logistic loss, which needs the "
        "correction; loss='sigmoid' is what the first paper's code takes.",
        make=_uu,
        extra=("loss",),
    )
)
