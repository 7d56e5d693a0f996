"""Noisy labels: forward correction, early-learning regularisation, sparse over-parameterisation.

Shapes: N instances, M rows, C classes; labels (M,), -1 where there is none, which then say nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import (
    MANY_CLASSES,
    at_rate,
    blend,
    classes_of,
    indicator,
    mean_where,
    remember,
    soft_cross_entropy,
    strong_share,
    transition_of,
    view_logits,
)
from fastbus.methods.second_network import learning_rate
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective

SETTINGS = ("noisy_label",)
FAR_MORE = 3.0  # times as many wrong labels of one class of two as of the other count as asymmetric noise
SOP_START = 1e-8  # deviation of the first values of both over-parameterisations
SOP_ROWS = 128  # of the authors' steps, whose mean an instance's own noise has a share of
SOP_CONSISTENCY, SOP_BALANCE = 0.9, 0.1


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
    plus, minus = ((x**2).clamp(max=1.0) for x in (u, v))
    plus, minus = plus * said, minus * (1 - said)
    log_prob = sop_prediction(logits, plus, minus.detach()).log()
    entropy = nll_loss(log_prob, labels.clamp(min=0), reduction="none")
    chosen = indicator(logits.detach().argmax(1), C).to(logits)
    squared = ((chosen + plus.detach() - minus - said) ** 2).sum(1)
    return entropy, squared


def sop_prediction(logits: Tensor, plus: Tensor, minus: Tensor) -> Tensor:
    """Predictions (M, C) with the noise, bounded away from 0 and normalised."""
    changed = (torch.softmax(logits, 1) + plus - minus).clamp(min=1e-4)
    return changed / changed.sum(1, keepdim=True)


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
            remember(self.target, rows, target)
        said = indicator(labels, target.shape[1])
        losses = []
        for logits in views:
            entropy = mean_where(soft_cross_entropy(logits, said), given)
            losses.append(entropy + self.weight * mean_where(elr_regulariser(logits, target), inputs.real))
        return blend(self.recipe, *losses)


class SparseNoise(NoisyObjective):
    """SOP: every instance has noise of its own, over-parameterised so that descent keeps it sparse.

    plus: the strong view only has to agree with the weak one, and no class may be forgotten.
    """

    def __init__(self, run: ImageRun, rates: tuple[float, float], plus: bool) -> None:
        """rates: of u and of v in steps of as many rows as the authors', the same all the time."""
        super().__init__(noisy_labels(run), run.recipe)
        self.plus, self.steps = plus, run.steps_per_epoch * run.recipe.epochs
        source = torch.Generator().manual_seed(run.seed)
        for name, width, rate in zip("uv", (1, run.num_classes), rates, strict=True):
            start = torch.randn(len(self.labels), width, generator=source) * SOP_START
            self.learned[name] = start.to(run.device).requires_grad_()
            self.rates[name] = rate * run.recipe.rows / SOP_ROWS / run.recipe.learning_rate

    def __call__(self, inputs: StepInputs) -> Tensor:
        labels, given = self._labels(inputs)
        # the trainer's rate follows its schedule, which is taken out here
        steady = self.recipe.learning_rate / learning_rate(self.recipe, inputs.progress, self.steps)
        u, v = (at_rate(self.learned[name].index_select(0, inputs.step.rows), steady) for name in ("u", "v"))
        views = view_logits(inputs)
        losses = []
        for logits in views[:1] if self.plus else views:
            entropy, squared = sop_losses(logits, labels, u, v)
            losses.append(mean_where(entropy, given) + mean_where(squared, given))
        if not self.plus:
            return blend(self.recipe, *losses)
        said = indicator(labels, views[0].shape[1])
        with_noise = sop_prediction(views[0], (u**2).clamp(max=1) * said, (v.detach() ** 2).clamp(max=1) * (1 - said))
        balance = -with_noise.mean(0).clamp(min=1e-4).log().mean()
        seen = torch.softmax(views[0].detach(), 1)
        apart = soft_cross_entropy(views[1], seen) - torch.special.entr(seen).sum(1)  # KL(weak || strong)
        consistency = SOP_CONSISTENCY * strong_share(self.recipe)
        return losses[0] + consistency * mean_where(apart, inputs.real) + SOP_BALANCE * balance


def _bounded(logits: Tensor) -> Tensor:
    return torch.softmax(logits, 1).clamp(1e-4, 1 - 1e-4)


def noisy_labels(run: ImageRun) -> Tensor:
    """Labels (N,) on the run's device, -1 for none."""
    return classes_of(run.weak, run.num_classes, run.supervision.name).flatten().to(run.device)


def noise_of(run: ImageRun, options: MethodOptions) -> tuple[float | None, bool]:
    """The share of wrong labels where it is known, and whether a class's wrong labels go mostly to one other."""
    matrix: Tensor | None = getattr(run.supervision, "transition", None)
    if matrix is None:
        return options.noise_rate, False
    wrong = matrix.detach().double().clone().fill_diagonal_(0.0)
    return float(wrong.sum() / len(wrong)), one_sided(wrong)


def one_sided(wrong: Tensor) -> bool:
    """Whether a class's wrong labels (C, C) go mostly to one other; of two classes, whether those of one do.

    Halfway between the share of one class among evenly spread ones, 1 / (C - 1), and all of them.
    """
    C = len(wrong)
    if C == 2:
        return bool(wrong.sum(1).max() > FAR_MORE * wrong.sum(1).min())
    share = float(wrong.amax(1).sum() / wrong.sum().clamp(min=1e-12))
    return share > (1 + 1 / (C - 1)) / 2


def _forward(run: ImageRun, options: MethodOptions) -> StepObjective:
    matrix = transition_of(run, options.noise_rate, "forward")
    assert matrix is not None  # one of its needs
    return ForwardCorrection(noisy_labels(run), run.recipe, matrix.float().to(run.device))


def _elr(run: ImageRun, options: MethodOptions) -> StepObjective:
    _, asymmetric = noise_of(run, options)
    keep, weight = (0.9, 7.0) if run.num_classes > MANY_CLASSES else (0.9, 1.0) if asymmetric else (0.7, 3.0)
    keep, weight = options.number("keep", keep, below=1.0), options.number("weight", weight)
    return EarlyLearning(noisy_labels(run), run.recipe, run.num_classes, keep, weight)


def _sop(run: ImageRun, options: MethodOptions) -> StepObjective:
    _, asymmetric = noise_of(run, options)
    rate = options.number("rate", 1.0 if run.num_classes > MANY_CLASSES else 10.0)
    rate_elsewhere = options.number("rate_elsewhere", 100.0 if asymmetric else 10.0)
    return SparseNoise(run, (rate, rate_elsewhere), bool(options.extra.get("plus", True)))


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
        needs=("noise_rate",),
        instead="Or give NoisyLabel a transition, e.g. by NoisyLabel.estimate, or use method='elr', which needs none.",
    )
)
register(
    Method(
        name="elr",
        title="ELR",
        settings=SETTINGS,
        reference="Liu et al., Early-learning regularization prevents memorization of noisy labels, NeurIPS 2020",
        differs="One network, as in the paper's ELR without the plus; both views are held to targets that follow the "
        "weak one. keep= and weight= are as published: 0.7 and 3 for CIFAR-10, 0.9 and 1 where a known transition is "
        "asymmetric, 0.9 and 7 beyond 50 classes (CIFAR-100). The authors restart the learning rate; here it falls "
        "once.",
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
        differs="SOP+, which the authors compare with others: the weak view learns, the strong one agrees (0.9), "
        "classes are balanced (0.1); plus=False is SOP alone, averaged over both views. Rates of u and v are 10 and "
        "10 (rate=, rate_elsewhere=), v's 100 where a known transition is asymmetric, u's 1 beyond 50 classes, "
        "constant as with the authors, and in proportion where a step has other than their 128 rows. In runs much "
        "shorter than their 300 passes u tells little; rates raised in proportion take clean labels for wrong ones "
        "(10,000 clothes, 25 passes, held-out labels of three seeds: -1.496 so, -1.452 with a third of that, -1.442 "
        "with a tenth, which is nearly the rate itself). u learns from the cross-entropy alone, as in the paper; a "
        "version of the published code lets it learn from the squared error, too.",
        make=_sop,
        extra=("rate", "rate_elsewhere", "plus"),
    )
)
