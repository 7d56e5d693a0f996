"""Crowds: majority vote, Dawid and Skene's annotators, and a layer for each annotator on top of the network.

Shapes: N instances, A annotators, C classes, M rows; answers (N, A), -1 where there is none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fastbus.errors import WeakLabelError
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import at_rate, blend, classes_of, mean_where, soft_cross_entropy, view_logits
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective

SETTINGS = ("crowd_label",)
SMOOTHING = 0.01  # pseudo-answers of each kind, so that no annotator is believed never to err


class Annotators(NamedTuple):
    """What Dawid and Skene's model says of tasks, annotators and classes."""

    posterior: Tensor  # (N, C)
    transitions: Tensor  # (A, C, C)
    prior: Tensor  # (C,)
    log_likelihood: list[float]  # of the answers, smoothing included, after each round


def votes_of(answers: Tensor, num_classes: int) -> Tensor:
    """How often each class was answered, (N, C)."""
    given = (answers >= 0)[..., None]
    return (one_hot(answers.clamp(min=0), num_classes) * given).sum(1).double()


def majority_targets(answers: Tensor, num_classes: int) -> Tensor:
    """The class most answers name, shared equally among those that tie; 0 without answers. (N, C)"""
    votes = votes_of(answers, num_classes)
    top = (votes == votes.amax(1, keepdim=True)) & (votes > 0)
    return top.double() / top.sum(1, keepdim=True).clamp(min=1)


def dawid_skene(answers: Tensor, num_classes: int, rounds: int = 200, tolerance: float = 1e-8) -> Annotators:
    """Maximum likelihood by EM, from the shares of the votes; confusions and prior are smoothed a little."""
    said = (one_hot(answers.clamp(min=0), num_classes) * (answers >= 0)[..., None]).double()  # (N, A, C)
    votes = said.sum(1)
    posterior = (votes + 1e-12) / (votes + 1e-12).sum(1, keepdim=True)
    path: list[float] = []
    while True:
        counts = torch.einsum("ny,naw->ayw", posterior, said) + SMOOTHING
        transitions = counts / counts.sum(-1, keepdim=True)
        share = posterior.sum(0) + SMOOTHING
        prior = share / share.sum()
        log_joint = prior.log() + torch.einsum("naw,ayw->ny", said, transitions.log())
        smoothing = SMOOTHING * (transitions.log().sum() + prior.log().sum())
        path.append(float(torch.logsumexp(log_joint, 1).sum() + smoothing))
        posterior = torch.softmax(log_joint, 1)
        if len(path) >= rounds or (len(path) > 1 and path[-1] - path[-2] < tolerance * abs(path[-1])):
            return Annotators(posterior, transitions, prior, path)


def crowd_layer_loss(logits: Tensor, answers: Tensor, layer: Tensor) -> Tensor:
    """Mean over a row's answers of -log softmax(W_a p)_answer, (M,); layer W (A, C, C), p = softmax(logits)."""
    p = torch.softmax(logits, 1)
    said = torch.einsum("acd,md->mac", layer, p).log_softmax(-1)
    given = answers >= 0
    losses = -said.gather(2, answers.clamp(min=0)[..., None])[..., 0]
    return (losses * given).sum(1) / given.sum(1).clamp(min=1)


class SoftTargets(StepObjective):
    """Cross-entropy of both views with fixed targets (N, C); rows of zeros have none."""

    def __init__(self, targets: Tensor, recipe: Recipe) -> None:
        super().__init__()
        self.targets, self.recipe = targets, recipe

    def __call__(self, inputs: StepInputs) -> Tensor:
        target = self.targets.index_select(0, inputs.step.rows)
        given = inputs.real & (target > 0).any(1)
        weak, strong = (mean_where(soft_cross_entropy(x, target), given) for x in view_logits(inputs))
        return blend(self.recipe, weak, strong)


class CrowdLayer(StepObjective):
    """A matrix for each annotator turns the prediction into what that annotator answers."""

    def __init__(self, answers: Tensor, num_classes: int, recipe: Recipe) -> None:
        super().__init__()
        self.answers, self.recipe = answers, recipe
        start = torch.eye(num_classes, device=answers.device).repeat(answers.shape[1], 1, 1)
        self.learned["layer"] = start.requires_grad_()
        # the trainer gives learned tensors no momentum, which would multiply their steps in the long run
        self.rates["layer"] = 1 / (1 - recipe.momentum)
        # a mean over all answers leaves each annotator's matrix the slope of its own share of them
        number = (answers >= 0).sum(0)
        self.share = (number.sum() / number.clamp(min=1)).float()[:, None, None]

    def __call__(self, inputs: StepInputs) -> Tensor:
        answers = self.answers.index_select(0, inputs.step.rows)
        given = (answers >= 0).sum(1) * inputs.real  # every answer counts alike
        layer = at_rate(self.learned["layer"], self.share)
        losses = [mean_where(crowd_layer_loss(x, answers, layer), given) for x in view_logits(inputs)]
        return blend(self.recipe, *losses)


def answers_of(run: ImageRun) -> Tensor:
    """Answers (N, A) on the CPU."""
    if run.weak.dim() != 2:
        raise WeakLabelError(
            f"crowd_label: weak label of shape {tuple(run.weak.shape)}; expected answers (N, A), one column an "
            "annotator. Use fastbus.answers_from_table for (task, worker, label) rows."
        )
    return classes_of(run.weak, run.num_classes, "crowd_label").cpu()


def _majority_vote(run: ImageRun, options: MethodOptions) -> StepObjective:
    return SoftTargets(majority_targets(answers_of(run), run.num_classes).float().to(run.device), run.recipe)


def _dawid_skene(run: ImageRun, options: MethodOptions) -> StepObjective:
    answers = answers_of(run)
    posterior = dawid_skene(answers, run.num_classes).posterior
    silent = (answers < 0).all(1, keepdim=True)
    return SoftTargets(posterior.masked_fill(silent, 0.0).float().to(run.device), run.recipe)


def _crowd_layer(run: ImageRun, options: MethodOptions) -> StepObjective:
    return CrowdLayer(answers_of(run).to(run.device), run.num_classes, run.recipe)


register(
    Method(
        name="majority_vote",
        title="Majority vote",
        settings=SETTINGS,
        reference="The class that most annotators name, learned as if it were true; the plain baseline",
        differs="Ties are shared among the classes that tie instead of drawn.",
        make=_majority_vote,
    )
)
register(
    Method(
        name="dawid_skene",
        title="Dawid-Skene",
        settings=SETTINGS,
        reference="Dawid and Skene, Maximum likelihood estimation of observer error-rates using the EM algorithm, "
        "Applied Statistics 1979",
        differs="Confusions and prior are smoothed by a hundredth of an answer; the network learns from the posterior, "
        "not from its most probable class.",
        make=_dawid_skene,
    )
)
register(
    Method(
        name="crowd_layer",
        title="CrowdLayer",
        settings=SETTINGS,
        reference="Rodrigues and Pereira, Deep learning from crowds, AAAI 2018",
        differs="The matrices learn without momentum or weight decay, at the rate that makes up for it, each by the "
        "mean over its own annotator's answers: the authors' Adam does not mind the scale of a slope, SGD does. The "
        "loss is averaged over both views.",
        make=_crowd_layer,
    )
)
