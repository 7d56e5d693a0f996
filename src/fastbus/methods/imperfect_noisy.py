"""Noisy labels: forward correction, early-learning regularisation, sparse over-parameterisation.

Shapes: N instances, M rows, C classes; labels (M,), -1 where there is none, which then say nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from fastbus.errors import InputError
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, classes_of, indicator, mean_where, soft_cross_entropy, view_logits
from fastbus.supervision.confusion import symmetric_confusion
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective

SETTINGS = ("noisy_label",)
ELR_KEEP, ELR_WEIGHT = 0.7, 3.0
SOP_RATE = 10.0  # learning rate of both over-parameterisations at the start
SOP_START = 1e-8  # deviation of their first values


def forward_loss(logits: Tensor, labels: Tensor, transition: Tensor) -> Tensor:
    """-log (p T)_w of each row, (M,); T[y, w] = P(w | y)."""
    log_prob = torch.log_softmax(logits, 1)
    said = transition.T.index_select(0, labels.clamp(min=0)).to(logits)  # (M, C): P(w | y) of the label seen
    return -torch.logsumexp(log_prob + said.clamp(min=1e-12).log(), 1)


def elr_regulariser(logits: Tensor, target: Tensor) -> Tensor:
    """log(1 - <p, t>) of each row, (M,): it falls as predictions agree with their own past."""
    agreement = (_bounded(logits) * target).sum(1)
    return torch.log((1 - agreement).clamp(min=1e-6))


def elr_target(target: Tensor, logits: Tensor, keep: float) -> Tensor:
    """keep * t + (1 - keep) * p, p bounded away from 0 and normalised again."""
    p = _bounded(logits)
    return keep * target + (1 - keep) * p / p.sum(1, keepdim=True)


def sop_losses(logits: Tensor, labels: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy and squared error (M,) with the noise s = u^2 on the label and -v^2 elsewhere; u (M, 1), v (M, C).

    The first teaches network and u, the second only v, from the most probable class.
    """
    C = logits.shape[1]
    said = indicator(labels, C).to(logits)
    plus, minus = u**2 * said, v**2 * (1 - said)
    changed = (torch.softmax(logits, 1) + plus - minus.detach()).clamp(min=1e-4)
    log_prob = (changed / changed.sum(1, keepdim=True)).log()
    entropy = nll_loss(log_prob, labels.clamp(min=0), reduction="none")
    chosen = indicator(logits.detach().argmax(1), C).to(logits)
    squared = ((chosen + plus.detach() - minus - said) ** 2).sum(1)
    return entropy, squared


class NoisyObjective(StepObjective):
    """Base: labels of all instances, looked up for the rows of a step."""

    def __init__(self, labels: Tensor, recipe: Recipe) -> None:
        super().__init__()
        self.labels, self.recipe = labels, recipe

    def _labels(self, inputs: StepInputs) -> tuple[Tensor, Tensor]:
        """Labels (M,) and which rows have one."""
        labels = self.labels.index_select(0, inputs.step.rows)
        return labels, inputs.real & (labels >= 0)


class ForwardCorrection(NoisyObjective):
    """The likelihood of the noisy label under a known transition matrix."""

    def __init__(self, labels: Tensor, recipe: Recipe, transition: Tensor) -> None:
        super().__init__(labels, recipe)
        self.transition = transition

    def __call__(self, inputs: StepInputs) -> Tensor:
        labels, given = self._labels(inputs)
        views = view_logits(inputs)
        return blend(self.recipe, *(mean_where(forward_loss(x, labels, self.transition), given) for x in views))


class EarlyLearning(NoisyObjective):
    """ELR: cross-entropy, held to the running mean of an instance's own predictions."""

    def __init__(self, labels: Tensor, recipe: Recipe, num_classes: int, keep: float, weight: float) -> None:
        super().__init__(labels, recipe)
        self.keep, self.weight = keep, weight
        self.target = torch.zeros(len(labels), num_classes, device=labels.device)

    def state(self) -> dict[str, Tensor]:
        return {"target": self.target}

    def __call__(self, inputs: StepInputs) -> Tensor:
        labels, given = self._labels(inputs)
        views = view_logits(inputs)
        rows = inputs.step.rows
        with torch.no_grad():
            target = elr_target(self.target.index_select(0, rows), views[0], self.keep)
            self.target.index_copy_(0, rows, target)
        said = indicator(labels, target.shape[1])
        losses = []
        for logits in views:
            entropy = mean_where(soft_cross_entropy(logits, said), given)
            losses.append(entropy + self.weight * mean_where(elr_regulariser(logits, target), inputs.real))
        return blend(self.recipe, *losses)


class SparseNoise(NoisyObjective):
    """SOP: every instance has noise of its own, over-parameterised so that descent keeps it sparse."""

    def __init__(self, labels: Tensor, recipe: Recipe, num_classes: int, rate: float, seed: int) -> None:
        super().__init__(labels, recipe)
        source = torch.Generator().manual_seed(seed)
        for name, width in (("u", 1), ("v", num_classes)):
            start = torch.randn(len(labels), width, generator=source) * SOP_START
            self.learned[name] = start.to(labels.device).requires_grad_()
            self.rates[name] = rate / recipe.learning_rate

    def __call__(self, inputs: StepInputs) -> Tensor:
        labels, given = self._labels(inputs)
        u, v = (self.learned[name].index_select(0, inputs.step.rows) for name in ("u", "v"))
        losses = []
        for logits in view_logits(inputs):
            entropy, squared = sop_losses(logits, labels, u, v)
            losses.append(mean_where(entropy, given) + mean_where(squared, given))
        return blend(self.recipe, *losses)


def _bounded(logits: Tensor) -> Tensor:
    return torch.softmax(logits, 1).clamp(1e-4, 1 - 1e-4)


def noisy_labels(run: ImageRun) -> Tensor:
    """Labels (N,) on the run's device, -1 for none."""
    return classes_of(run.weak, run.num_classes, run.supervision.name).flatten().to(run.device)


def _forward(run: ImageRun, options: MethodOptions) -> StepObjective:
    matrix: Tensor | None = getattr(run.supervision, "transition", None)
    if matrix is None:
        if options.noise_rate is None:
            raise InputError(
                "forward needs the transition of the noise; expected noise_rate=, or a supervision that knows it. Pass "
                "NoisyLabel(transition), e.g. from NoisyLabel.estimate, or use method='elr', which needs neither."
            )
        matrix = symmetric_confusion(options.noise_rate, run.num_classes)
    return ForwardCorrection(noisy_labels(run), run.recipe, matrix.detach().float().to(run.device))


def _elr(run: ImageRun, options: MethodOptions) -> StepObjective:
    keep, weight = float(options.extra.get("keep", ELR_KEEP)), float(options.extra.get("weight", ELR_WEIGHT))
    return EarlyLearning(noisy_labels(run), run.recipe, run.num_classes, keep, weight)


def _sop(run: ImageRun, options: MethodOptions) -> StepObjective:
    rate = float(options.extra.get("rate", SOP_RATE))
    return SparseNoise(noisy_labels(run), run.recipe, run.num_classes, rate, run.seed)


register(
    Method(
        name="forward",
        title="Forward correction",
        settings=SETTINGS,
        reference="Patrini et al., Making deep neural networks robust to label noise: a loss correction approach, "
        "CVPR 2017",
        differs="The transition is given, as a matrix or as a rate of symmetric noise, not estimated from anchor "
        "points; the loss is averaged over both views.",
        make=_forward,
    )
)
register(
    Method(
        name="elr",
        title="ELR",
        settings=SETTINGS,
        reference="Liu et al., Early-learning regularization prevents memorization of noisy labels, NeurIPS 2020",
        differs="One network, as in the paper's ELR without the plus; both views are held to targets that follow the "
        "weak one. The paper's CIFAR-10 setting: keep 0.7, weight 3 (CIFAR-100: keep=0.9, weight=7).",
        make=_elr,
        extra=("keep", "weight"),
    )
)
register(
    Method(
        name="sop",
        title="SOP",
        settings=SETTINGS,
        reference="Liu et al., Robust training under label noise by over-parameterization, ICML 2022",
        differs="Without the consistency and balance terms of SOP+; the rates of u and v (10 at the start, rate=) "
        "follow the schedule of the network's; the loss is averaged over both views.",
        make=_sop,
        extra=("rate",),
    )
)
