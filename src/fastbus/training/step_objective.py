"""What a training step minimises: two views of a batch in, one number out, in tensor operations of fixed shape.

An objective decides which views pass through the network. It may keep running statistics, as tensors that it
updates in place, so that a captured step keeps them up to date.
Shapes: M rows of a step, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fastbus.errors import InputError
from fastbus.inference.fixed import FixedPosterior, Step
from fastbus.training.recipes import Recipe

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun

Network = Callable[[Tensor], Tensor]
MOST_TOLD = 20.0  # log-odds that a label adds, as far as a stride goes by them: beyond, float32 may be at its end
EARLY = 0.25  # of all steps: where labels name no class or say little, EM leaves its start slowly
SURE_DECAY = 0.99  # of the running confidence that decided targets are weighed by


class StepInputs(NamedTuple):
    """One step: its batch, its views, and the networks that may look at them."""

    step: Step
    real: Tensor  # (M,) rows that belong to a bag
    weak: Tensor  # (M, channels, height, width)
    strong: Tensor
    network: Network  # images to logits float32, differentiable
    teacher: Network  # the averaged network, without gradient
    features: Network  # images to what the network's last layer sees, differentiable
    teacher_features: Network
    classify: Network  # features to logits
    generator: torch.Generator
    progress: Tensor  # () share of all steps taken


class StepObjective:
    """Called once a step.

    capturable: whether a CUDA graph may hold it. learned: tensors of its own, by name, that are optimised with the
    network's, each at `rates` times its learning rate (1 where nothing is said).
    """

    capturable: bool = True
    learned: dict[str, Tensor]
    rates: dict[str, float]

    def __init__(self) -> None:
        self.learned, self.rates = {}, {}

    def __call__(self, inputs: StepInputs) -> Tensor:
        """The loss, one number."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Running statistics that must survive a restart, updated in place; without the learned tensors."""
        return {}

    def start_epoch(self, run: ImageRun) -> None:
        """Called before every pass over the data, outside of a captured step."""

    def end(self, run: ImageRun) -> None:
        """Called once, after the last pass."""

    def judged(self, run: ImageRun, x: Tensor, logits: Tensor, average: bool) -> Tensor:
        """Logits that are evaluated, from those of the averaged or last network at plain views x; on its device."""
        return logits


class RunningMean:
    """A mean over recent steps, kept in place; the first steps weigh as much as later ones, whatever `keep` is."""

    def __init__(self, size: int, keep: float, device: torch.device | str) -> None:
        self.keep = keep
        self.total, self.weight = torch.zeros(size, device=device), torch.zeros((), device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """The mean, x (size,) included."""
        self.total.mul_(self.keep).add_(x, alpha=1 - self.keep)
        self.weight.mul_(self.keep).add_(1 - self.keep)
        return self.total / self.weight

    def state(self, name: str) -> dict[str, Tensor]:
        return {name: self.total, f"{name}.weight": self.weight}


class SureLabels:
    """The most probable class of each row, and how much it counts: the more the surer it is, of itself and among all.

    Weight c exp(-d^2 / (2 (s/2)^2)), c a row's confidence, d how far it lies below the mean of recent ones, s their
    deviation. Without c a network that knows nothing yet learns its own guesses: 60 labels of 500 digits, 20 passes,
    10 to 91 % in six draws, with it 92 to 98 % in five of them.
    """

    def __init__(self, keep: float, device: torch.device | str) -> None:
        self.recent = RunningMean(2, keep, device)  # mean and variance of the confidence

    def __call__(self, probs: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Classes (M,) and weights (M,) of probabilities (M, C); rows that are not real weigh nothing."""
        confidence, label = probs.max(1)
        count = real.sum().clamp(min=1)
        mean = torch.where(real, confidence, 0.0).sum() / count
        variance = torch.where(real, (confidence - mean) ** 2, 0.0).sum() / count
        usual, spread = self.recent(torch.stack([mean, variance]))
        below = (confidence - usual).clamp(max=0)
        weight = confidence * torch.exp(-(below**2) / (spread / 2).clamp(min=torch.finfo(probs.dtype).tiny))
        return label, torch.where(real, weight, 0.0)

    def state(self) -> dict[str, Tensor]:
        return self.recent.state("sure")


class Recall:
    """What was predicted of each image in the passes before: a running mean of its own, kept in place.

    A prediction swings with the view and from pass to pass; the mean of several is right more often.
    """

    def __init__(self, number: int, num_classes: int, keep: float, device: torch.device | str) -> None:
        """number: of all images; keep: what remains of the mean from pass to pass."""
        self.keep = keep
        self.total, self.weight = torch.zeros(number, num_classes, device=device), torch.zeros(number, device=device)

    def __call__(self, probs: Tensor, rows: Tensor, real: Tensor) -> Tensor:
        """The means (M, C) of images `rows` (M,), the present predictions included."""
        new = torch.where(real, 1 - self.keep, 0.0)
        self.total.index_add_(0, rows, new[:, None] * (probs - self.total[rows]))
        self.weight.index_add_(0, rows, new * (1 - self.weight[rows]))
        known = self.weight[rows][:, None]
        return torch.where(known > 0, self.total[rows] / known.clamp(min=1 - self.keep), probs)

    def state(self) -> dict[str, Tensor]:
        return {"recall": self.total, "recall.weight": self.weight}


class PosteriorRisk(StepObjective):
    """Cross-entropy of both views with a posterior, by default that of the weak one: an EM step on exact inference.

    shares (C,): of the classes, which predictions are aligned with before their posterior is taken; None for no
        alignment.
    recall: joins what was predicted before to the predictions that are judged by; None for these alone.
    """

    def __init__(
        self,
        posterior: FixedPosterior,
        recipe: Recipe,
        shares: Tensor | None = None,
        device: torch.device | str = "cpu",
        recall: Recall | None = None,
    ) -> None:
        super().__init__()
        self.posterior, self.recipe = posterior, recipe
        self.capturable = posterior.capturable
        self.shares = shares
        self.mean = None if shares is None else RunningMean(len(shares), recipe.align, device)
        self.sure = SureLabels(SURE_DECAY, device) if recipe.decided else None
        self.recall = recall

    def state(self) -> dict[str, Tensor]:
        mean = {} if self.mean is None else self.mean.state("mean")
        sure = {} if self.sure is None else self.sure.state()
        return mean | sure | ({} if self.recall is None else self.recall.state())

    def __call__(self, inputs: StepInputs) -> Tensor:
        recipe, M = self.recipe, len(inputs.weak)
        strong, partner, share = mixed(inputs.strong, recipe.mixup, inputs.generator)
        logits = inputs.network(torch.cat([inputs.weak, strong]))
        with torch.no_grad():
            mine = logits.detach()
            judged = inputs.teacher(inputs.weak) if recipe.teacher else mine[:M]
            if self.recall is not None:
                known = self.recall(judged.softmax(1), inputs.step.rows, inputs.real)
                judged = known.clamp(min=torch.finfo(known.dtype).tiny).log()
            shift = self._alignment(judged, inputs.real)
            q = self._targets(judged + shift, inputs)
            if self.sure is None:
                own = partial(self._targets, mine[M:] + shift, inputs)
                q_strong = own_first(recipe.own, inputs.progress, own, q)
            else:
                q_strong = self._decided(q, inputs.real)
                if recipe.teacher or self.recall is not None:
                    own = partial(self._targets, mine[:M] + shift, inputs)
                    q = own_first(recipe.decided, inputs.progress, own, q)
            q_strong = q_strong if partner is None else share * q_strong + (1 - share) * q_strong[partner]
        risk = -recipe.weak * (q * torch.log_softmax(logits[:M], 1)).sum()
        risk = risk - recipe.strong * (q_strong * torch.log_softmax(logits[M:], 1)).sum()
        if self.sure is not None:
            return risk / inputs.real.sum().clamp(min=1)
        return risk / (q.sum() * recipe.weak + q_strong.sum() * recipe.strong)

    def _alignment(self, logits: Tensor, real: Tensor) -> Tensor:
        """What is added to logits (M, C), so that the classes have their shares among recent predictions."""
        if self.mean is None or self.shares is None:
            return logits.new_zeros(())
        p = torch.where(real[:, None], logits.softmax(1), 0.0).sum(0) / real.sum().clamp(min=1)
        tiny = torch.finfo(p.dtype).tiny
        return self.shares.clamp(min=tiny).log() - self.mean(p).clamp(min=tiny).log()

    def _targets(self, logits: Tensor, inputs: StepInputs) -> Tensor:
        logits = doubtful(logits, self.recipe.doubt)
        q, early = self.posterior(logits, inputs.step), inputs.progress < EARLY
        if self.recipe.stride or self.recipe.fade:
            q = strode(q, logits, torch.where(early, self.recipe.stride, -faded(self.recipe.fade, inputs.progress)))
        if self.recipe.sharpen != 1 or self.recipe.settle:
            q = sharpened(q, torch.where(early, self.recipe.sharpen, 1 + self.recipe.settle))
        return torch.where(inputs.real[:, None], q, 0.0)

    def _decided(self, q: Tensor, real: Tensor) -> Tensor:
        """All of a row's weight on the most probable class (M, C)."""
        assert self.sure is not None
        label, weight = self.sure(q, real)
        return torch.zeros_like(q).scatter(1, label[:, None], weight[:, None])


class AlignedConsistency(StepObjective):
    """Some rows have a gold label, the strong views of the others agree with their weak ones.

    Predictions of unlabelled rows are scaled to the class shares that labelled ones have, and count the more the
    surer they are (`SureLabels`).
    """

    def __init__(
        self, gold: Tensor, labelled: Tensor, num_classes: int, recipe: Recipe, recall: Recall | None = None
    ) -> None:
        """gold (N,): classes; labelled (N,): where they are known; rows without are unlabelled; recall as above.

        Batches begin with `rows_with_labels` of the recipe.
        """
        super().__init__()
        self.gold, self.recipe = torch.where(labelled, gold, 0).long(), recipe
        self.labelled = labelled
        if not bool(labelled.any()):
            raise InputError("no image with a label; expected some, the others -1. Give a few of them their class.")
        if not recipe.rows_with_labels:
            raise InputError(
                f"recipe: rows={recipe.rows} with labelled_rows={recipe.labelled_rows}; expected room for one at least "
                "beside unlabelled ones. Raise them."
            )
        shares = torch.bincount(self.gold[labelled], minlength=num_classes).double()
        self.target = (shares / shares.sum()).float()
        self.mean = RunningMean(num_classes, recipe.align, gold.device)
        self.sure = SureLabels(recipe.align, gold.device)
        self.recall = recall

    def state(self) -> dict[str, Tensor]:
        return self.mean.state("mean") | self.sure.state() | ({} if self.recall is None else self.recall.state())

    def __call__(self, inputs: StepInputs) -> Tensor:
        recipe = self.recipe
        L = recipe.rows_with_labels
        log_prob = torch.log_softmax(inputs.network(torch.cat([inputs.weak[:L], inputs.strong])), 1)
        gold = self.gold[inputs.step.rows[:L]]
        known, strong = (torch.nn.functional.nll_loss(log_prob[a : a + L], gold) for a in (0, L))
        known = (recipe.weak * known + recipe.strong * strong) / (recipe.weak + recipe.strong)
        with torch.no_grad():  # targets in a pass of their own: a third of the work of one that is learnt from
            p = (inputs.teacher if recipe.teacher else inputs.network)(inputs.weak[L:]).softmax(1)
            if self.recall is not None:
                p = self.recall(p, inputs.step.rows[L:], inputs.real[L:])
            tiny = torch.finfo(p.dtype).tiny
            if recipe.align:
                p = p * (self.target / self.mean(p.mean(0)).clamp(min=tiny))
                p = p / p.sum(1, keepdim=True).clamp(min=tiny)
            label, weight = self.sure(p, inputs.real[L:])
        agree = -log_prob[2 * L :].gather(1, label[:, None])[:, 0]
        return known + (weight * agree).mean()


def own_first(share: float, progress: Tensor, own: Callable[[], Tensor], other: Tensor) -> Tensor:
    """Targets of a view: those of its own predictions for a share of all steps, then the others."""
    if not share:
        return other
    return own() if share == 1 else torch.where(progress < share, own(), other)


def doubtful(logits: Tensor, doubt: float) -> Tensor:
    """Logits (M, C) of the predictions with a share of an even guess mixed in."""
    if not doubt:
        return logits
    return torch.log((1 - doubt) * logits.softmax(1) + doubt / logits.shape[1])


def mixed(images: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor | None, Tensor]:
    """A share of the images mixed with a random other one; its rows (M,), and how much (M, 1) is one's own."""
    M = len(images)
    if not share:
        return images, None, images.new_ones(M, 1)
    draws = torch.rand(3, M, generator=generator, device=images.device)
    partner = draws[0].argsort()
    own = torch.where(draws[1] < share, draws[2], 1.0)[:, None]
    weight = own.reshape(M, *[1] * (images.dim() - 1)).to(images.dtype)  # images, or rows of a table
    return weight * images + (1 - weight) * images[partner], partner, own


def faded(fade: float, progress: Tensor) -> Tensor:
    """How much () of what labels add is gone: from 0 to 1 over the last share `fade` of all steps."""
    return ((progress - 1 + fade) / fade).clamp(0, 1) if fade else torch.zeros_like(progress)


def strode(q: Tensor, logits: Tensor, stride: Tensor) -> Tensor:
    """Targets (M, C) further from the predictions: p (q / p)^(1 + stride), normalised; rows of zeros stay so."""
    told = (q.clamp(min=torch.finfo(q.dtype).tiny).log() - torch.log_softmax(logits, 1)).clamp(-MOST_TOLD, MOST_TOLD)
    further = stride * told
    q = q * (further - further.amax(1, keepdim=True)).exp()
    return q / q.sum(1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)


def sharpened(q: Tensor, power: Tensor) -> Tensor:
    """Targets (M, C) raised to a power and normalised; rows of zeros stay so."""
    q = q ** power.to(q.dtype)
    return q / q.sum(1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
