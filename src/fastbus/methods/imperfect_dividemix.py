"""DivideMix: two networks tell each other which labels are wrong, and learn from the rest as if half-labelled.

Before every pass a mixture of two Gaussians splits each network's losses: the component with the smaller mean holds
the clean labels. The OTHER network trusts labels by that probability, replaces the distrusted ones by guesses of
both, and learns from mixed images.
Shapes: N instances, M rows, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from fastbus.methods.imperfect_noisy import SETTINGS, noisy_labels
from fastbus.methods.mixing import BetaShares, mix, sharpen, shuffled
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import fresh_network, indicator, linear_ramp, mean_where, soft_cross_entropy
from fastbus.methods.second_network import SecondNetwork
from fastbus.training.image_run import PREDICTED_AT_ONCE, ImageRun
from fastbus.training.step_objective import Network, StepInputs, StepObjective

THRESHOLD = 0.5  # probability of being clean beyond which a label is kept
TEMPERATURE = 0.5
ALPHA = 4.0
UNLABELLED_WEIGHT = 25.0
WARM_EPOCHS, RAMP_EPOCHS = 10, 16


def clean_probability(losses: Tensor, rounds: int = 50, floor: float = 5e-4) -> Tensor:
    """P(component of the smaller mean | loss) of each loss (N,), under two Gaussians fitted by EM.

    Losses are scaled to [0, 1] first; `floor` is added to both variances.
    """
    x = losses.double()
    x = (x - x.min()) / (x.max() - x.min()).clamp(min=1e-12)
    mean = torch.stack([x.quantile(0.1), x.quantile(0.9)])
    variance = torch.full((2,), float(x.var()) + floor, dtype=x.dtype)
    share = torch.full((2,), 0.5, dtype=x.dtype)
    for _ in range(rounds):
        weight = _responsibilities(x, share, mean, variance)  # (N, 2)
        total = weight.sum(0).clamp(min=1e-12)
        share = total / len(x)
        mean = (weight * x[:, None]).sum(0) / total
        variance = (weight * (x[:, None] - mean) ** 2).sum(0) / total + floor
    return _responsibilities(x, share, mean, variance)[:, int(mean.argmin())]


def _responsibilities(x: Tensor, share: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    log_joint = share.log() - 0.5 * (variance.log() + (x[:, None] - mean) ** 2 / variance)
    return torch.softmax(log_joint, 1)


def refined_targets(clean: Tensor, said: Tensor, own: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Targets (M, C) and which rows keep their label (M,).

    A kept label is mixed with the network's own prediction by its probability of being clean; the others become
    what both networks guess on average. Both are sharpened.
    """
    kept = clean > THRESHOLD
    refined = sharpen(clean[:, None] * said + (1 - clean[:, None]) * own, TEMPERATURE)
    guessed = sharpen((own + other) / 2, TEMPERATURE)
    return torch.where(kept[:, None], refined, guessed), kept


def mixed_loss(logits: Tensor, targets: Tensor, kept: Tensor, weight: Tensor) -> Tensor:
    """Cross-entropy over the rows that keep their label, `weight` times the squared error over the others."""
    known = mean_where(soft_cross_entropy(logits, targets), kept)
    squared = ((torch.softmax(logits, 1) - targets) ** 2).mean(1)
    return known + weight * mean_where(squared, ~kept)


def balance_penalty(logits: Tensor) -> Tensor:
    """KL(uniform || mean prediction): no class may be forgotten."""
    mean = torch.softmax(logits, 1).mean(0)
    return -(mean * len(mean)).clamp(min=1e-12).log().mean()


class DivideMix(StepObjective):
    """The trainer's network and a second one, each taught with the other's view of the labels."""

    def __init__(self, run: ImageRun, labels: Tensor, unlabelled_weight: float) -> None:
        super().__init__()
        self.labels, self.unlabelled_weight = labels, unlabelled_weight
        epochs = run.recipe.epochs
        self.warm_epochs = min(WARM_EPOCHS, max(1, epochs // 4))
        self.ramp = (self.warm_epochs / epochs, (self.warm_epochs + RAMP_EPOCHS) / epochs)
        steps = run.steps_per_epoch * epochs
        self.second = SecondNetwork(fresh_network(run, run.seed + 1), run.recipe, steps, run.device)
        self.shares = BetaShares(ALPHA, run.device)
        given = (labels >= 0).float()
        self.clean = torch.stack([given, given])  # by the losses of the first and of the second network
        self.warm = torch.ones((), device=run.device)

    def state(self) -> dict[str, Tensor]:
        return {"clean": self.clean, "warm": self.warm, **self.second.state()}

    def start_epoch(self, run: ImageRun) -> None:
        if run.epoch < self.warm_epochs:
            return
        self.warm.zero_()
        images = run.training.images
        for index, logits in enumerate((run.logits(images, average=False), self._second_logits(run))):
            labels = self.labels.cpu()
            given = labels >= 0
            losses = nll_loss(torch.log_softmax(logits[given], 1), labels[given], reduction="none")
            clean = torch.zeros(len(labels), dtype=torch.float64)
            clean[given] = clean_probability(losses)
            self.clean[index].copy_(clean)

    @torch.no_grad()
    def _second_logits(self, run: ImageRun) -> Tensor:
        self.second.network.eval()
        parts = [self.second(run.views.plain(x)).cpu() for x in run.training.images.split(PREDICTED_AT_ONCE)]
        self.second.network.train()
        return torch.cat(parts)

    def __call__(self, inputs: StepInputs) -> Tensor:
        rows, M = inputs.step.rows, len(inputs.weak)
        images = torch.cat([inputs.weak, inputs.strong])
        networks: tuple[Network, Network] = (inputs.network, self.second)
        with torch.no_grad():
            guesses = [torch.softmax(network(images), 1) for network in networks]
            first, second = ((p[:M] + p[M:]) / 2 for p in guesses)
            labels = self.labels.index_select(0, rows)
            said = indicator(labels, first.shape[1])
            clean = self.clean.index_select(1, rows) * inputs.real
        own = self._loss(inputs, images, networks[0], refined_targets(clean[1], said, first, second))
        other = self._loss(inputs, images, networks[1], refined_targets(clean[0], said, second, first))
        self.second.descend(other, inputs.progress)
        return own

    def _loss(self, inputs: StepInputs, images: Tensor, network: Network, known: tuple[Tensor, Tensor]) -> Tensor:
        """Of one network on both views mixed; while warm there is no mixing and no distrust."""
        targets, kept = (torch.cat([x, x]) for x in known)
        partner = shuffled(len(images), inputs.generator, images.device)
        share = torch.maximum(self.shares.own(len(images), inputs.generator), self.warm)
        logits = network(mix(images, partner, share))
        weight = self.unlabelled_weight * linear_ramp(inputs.progress, *self.ramp)
        loss = mixed_loss(logits, mix(targets, partner, share), kept, weight)
        return loss + (1 - self.warm) * balance_penalty(logits)


def _dividemix(run: ImageRun, options: MethodOptions) -> StepObjective:
    return DivideMix(run, noisy_labels(run), float(options.extra.get("unlabelled_weight", UNLABELLED_WEIGHT)))


register(
    Method(
        name="dividemix",
        title="DivideMix",
        settings=SETTINGS,
        reference="Li, Socher and Hoi, DivideMix: learning with noisy labels as semi-supervised learning, ICLR 2020",
        differs="Both networks learn in every step, and kept and distrusted labels share a batch instead of coming in "
        "equal parts; the two views are the weak and the strong one; the first network alone is evaluated, the "
        "authors average both. The weight of distrusted rows is 25 (unlabelled_weight=), the paper tunes 0 to 150.",
        make=_dividemix,
        extra=("unlabelled_weight",),
    )
)
