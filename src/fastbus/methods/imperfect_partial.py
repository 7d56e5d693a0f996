"""Partial labels: the true class is one of several candidates.

cc: -log of the candidates' probability together. proden, rcr: cross-entropy with confidences in the candidates that
follow the predictions. lws: one-against-rest losses, weighted inside and outside of the candidates.
Shapes: N instances, M rows, C classes; S the candidates (M, C) of booleans.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.errors import InputError, choice
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import (
    blend,
    candidates_of,
    linear_ramp,
    mean_where,
    remember,
    soft_cross_entropy,
    view_logits,
)
from fastbus.numerics import log_complement
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective

SETTINGS = ("partial_label", "complementary_label")
LWS_BETA = 1.0  # weight of the losses outside of the candidates
RCR_RAMP = 0.5  # share of the steps over which consistency grows to its weight of 1


def cc_loss(logits: Tensor, candidates: Tensor) -> Tensor:
    """-log sum_{c in S} p_c of each row, (M,)."""
    inside = logits.masked_fill(~candidates, float("-inf"))
    return torch.logsumexp(logits, 1) - torch.logsumexp(inside, 1)


def restricted(logits: Tensor, chosen: Tensor) -> Tensor:
    """Softmax (M, C) over the classes chosen, 0 elsewhere; rows without any chosen class are 0."""
    some = chosen.any(1, keepdim=True)
    return torch.softmax(logits.masked_fill(~chosen & some, float("-inf")), 1) * chosen


def uniform_over(chosen: Tensor) -> Tensor:
    """(N, C): equal shares of the classes chosen, 0 where there are none."""
    share = chosen.float()
    return share / share.sum(1, keepdim=True).clamp(min=1)


def excluded_loss(logits: Tensor, candidates: Tensor) -> Tensor:
    """-sum_{c not in S} log(1 - p_c) of each row, (M,)."""
    rest = torch.log1p(-torch.softmax(logits, 1).clamp(max=1 - 1e-6))
    return -(rest * ~candidates).sum(1)


def geometric_confidence(views: tuple[Tensor, ...], candidates: Tensor) -> Tensor:
    """The normalised product of the views' predictions to the power 1 / K, restricted to the candidates."""
    mean = torch.stack([torch.log_softmax(logits, 1) for logits in views]).mean(0)
    return restricted(mean, candidates)


def leveraged_loss(logits: Tensor, candidates: Tensor, weights: Tensor, beta: float, base: str) -> Tensor:
    """sum_{S} w_c plus_c + beta sum_{not S} w_c minus_c of each row, (M,).

    base "cross_entropy": plus = -log p_c, minus = -log(1 - p_c); "sigmoid": 1 / (1 + e^f_c) and 1 / (1 + e^-f_c).
    """
    if base == "sigmoid":
        plus, minus = torch.sigmoid(-logits), torch.sigmoid(logits)
    else:
        log_prob = torch.log_softmax(logits, 1)
        plus, minus = -log_prob, -log_complement(log_prob)
    return (weights * torch.where(candidates, plus, beta * minus)).sum(1)


class CandidateLikelihood(StepObjective):
    """CC: the likelihood of the candidate set."""

    def __init__(self, candidates: Tensor, recipe: Recipe) -> None:
        super().__init__()
        self.candidates, self.recipe = candidates, recipe

    def __call__(self, inputs: StepInputs) -> Tensor:
        candidates = self.candidates.index_select(0, inputs.step.rows)
        weak, strong = (mean_where(cc_loss(x, candidates), inputs.real) for x in view_logits(inputs))
        return blend(self.recipe, weak, strong)


class Confidences(StepObjective):
    """A running confidence in each candidate of each instance, replaced whenever a step has seen the instance."""

    def __init__(self, candidates: Tensor, recipe: Recipe) -> None:
        super().__init__()
        self.candidates, self.recipe = candidates, recipe
        self.confidence = uniform_over(candidates)

    def state(self) -> dict[str, Tensor]:
        return {"confidence": self.confidence}

    def _recall(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        rows = inputs.step.rows
        return self.candidates.index_select(0, rows), self.confidence.index_select(0, rows)

    @torch.no_grad()
    def _remember(self, inputs: StepInputs, confidence: Tensor) -> None:
        remember(self.confidence, inputs.step.rows, confidence)


class Proden(Confidences):
    """Cross-entropy with the confidences; the new ones are the predictions restricted to the candidates."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        candidates, confidence = self._recall(inputs)
        weak, strong = view_logits(inputs)
        self._remember(inputs, restricted(weak.detach(), candidates))
        losses = [mean_where(soft_cross_entropy(x, confidence), inputs.real) for x in (weak, strong)]
        return blend(self.recipe, *losses)


class RegularisedConsistency(Confidences):
    """RCR: no class outside of the candidates, and every view close to the confidence that the views share."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        candidates, confidence = self._recall(inputs)
        views = view_logits(inputs)
        self._remember(inputs, geometric_confidence(tuple(x.detach() for x in views), candidates))
        excluded = mean_where(excluded_loss(views[0], candidates), inputs.real)
        entropy = torch.special.entr(confidence).sum(1)
        # the sum over views of KL(q || p) where they weigh alike
        apart = 2 * blend(self.recipe, *(soft_cross_entropy(x, confidence) - entropy for x in views))
        return excluded + linear_ramp(inputs.progress, 0.0, RCR_RAMP) * mean_where(apart, inputs.real)


class LeveragedWeighted(Confidences):
    """LWS: weights follow the predictions, normalised inside and outside of the candidates apart."""

    def __init__(self, candidates: Tensor, recipe: Recipe, beta: float, base: str) -> None:
        super().__init__(candidates, recipe)
        self.beta, self.base = beta, base
        self.confidence = torch.full_like(self.confidence, 1 / candidates.shape[1])

    def __call__(self, inputs: StepInputs) -> Tensor:
        candidates, weights = self._recall(inputs)
        weak, strong = view_logits(inputs)
        fresh = restricted(weak.detach(), candidates) + restricted(weak.detach(), ~candidates)
        self._remember(inputs, fresh)
        losses = [leveraged_loss(x, candidates, weights, self.beta, self.base) for x in (weak, strong)]
        return blend(self.recipe, *(mean_where(loss, inputs.real) for loss in losses))


def _cc(run: ImageRun, options: MethodOptions) -> StepObjective:
    return CandidateLikelihood(candidates_of(run), run.recipe)


def _proden(run: ImageRun, options: MethodOptions) -> StepObjective:
    return Proden(candidates_of(run), run.recipe)


def _rcr(run: ImageRun, options: MethodOptions) -> StepObjective:
    return RegularisedConsistency(candidates_of(run), run.recipe)


def _lws(run: ImageRun, options: MethodOptions) -> StepObjective:
    base = options.extra.get("loss", "sigmoid")
    choice(base, ("sigmoid", "cross_entropy"), "loss", InputError)
    return LeveragedWeighted(candidates_of(run), run.recipe, options.number("beta", LWS_BETA), base)


register(
    Method(
        name="cc",
        title="CC",
        settings=SETTINGS,
        reference="Feng et al., Provably consistent partial-label learning, NeurIPS 2020",
        differs="The loss is averaged over the weak and the strong view; the authors use one view.",
        make=_cc,
    )
)
register(
    Method(
        name="proden",
        title="PRODEN",
        settings=SETTINGS,
        reference="Lv et al., Progressive identification of true labels for partial-label learning, ICML 2020",
        differs="Both views learn from the confidences, which follow the weak view; the authors use one view.",
        make=_proden,
    )
)
register(
    Method(
        name="rcr",
        title="RCR",
        settings=SETTINGS,
        reference="Wu, Wang and Zhang, Revisiting consistency regularization for deep partial label learning, "
        "ICML 2022",
        differs="Two views instead of three, as every method here has; the weight of consistency grows to 1 over the "
        "first half of the steps, which is the authors' 100 of 200 epochs.",
        make=_rcr,
    )
)
register(
    Method(
        name="lws",
        title="LWS",
        settings=SETTINGS,
        reference="Wen et al., Leveraged weighted loss for partial label learning, ICML 2021",
        differs="The sigmoid loss with beta 1, the authors' setting for CIFAR-10, averaged over both views; weights "
        "follow the weak view whenever an instance is seen. loss='cross_entropy' (beta=2 is published, too) is the "
        "paper's other loss; the tests use it for 8 x 8 digits, where the sigmoid loss is slow and short runs stayed "
        "near chance, which was seen on test digits.",
        make=_lws,
        extra=("beta", "loss"),
    )
)
