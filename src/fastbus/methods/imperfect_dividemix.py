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

from fastbus.methods.imperfect_noisy import SETTINGS, noise_of, noisy_labels
from fastbus.methods.mixing import BetaShares, mix, sharpen, shuffled
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import MANY_CLASSES, indicator, linear_ramp, mean_where, soft_cross_entropy, strong_share
from fastbus.methods.second_network import SecondNetwork, fresh_network
from fastbus.training.image_run import PREDICTED_AT_ONCE, ImageRun
from fastbus.training.step_objective import Network, StepInputs, StepObjective

THRESHOLD = 0.5  # probability of being clean beyond which a label is kept
TEMPERATURE = 0.5
ALPHA = 4.0
WARM_EPOCHS, WARM_OF_MANY, RAMP_EPOCHS = 10, 30, 16  # never more than a quarter of the run each
# weights are published for 20, 50, 80 and 90 % of labels drawn anew among ten classes, of which .18, .45, .72 and .81
# are wrong: halfway between them
FEW_WRONG, MOST_WRONG = 0.315, 0.765


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


def mixed_loss(logits: Tensor, targets: Tensor, kept: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy over the rows that keep their label, `weight` times the squared error over the others.

    counts (M,): what each row counts in the two means.
    """
    known = mean_where(soft_cross_entropy(logits, targets), kept * counts)
    squared = ((torch.softmax(logits, 1) - targets) ** 2).mean(1)
    return known + weight * mean_where(squared, ~kept * counts)


def published_weight(rate: float, asymmetric: bool, num_classes: int) -> float:
    """The weight of distrusted rows in the authors' tables for CIFAR-10 and, with many classes, CIFAR-100."""
    if num_classes > MANY_CLASSES:
        return 25.0 if rate < FEW_WRONG else 150.0
    if asymmetric or rate < FEW_WRONG:
        return 0.0
    return 25.0 if rate < MOST_WRONG else 50.0


def balance_penalty(logits: Tensor) -> Tensor:
    """KL(uniform || mean prediction): no class may be forgotten."""
    mean = torch.softmax(logits, 1).mean(0)
    return -(mean * len(mean)).clamp(min=1e-12).log().mean()


class DivideMix(StepObjective):
    """The trainer's network and a second one, each taught with the other's view of the labels."""

    def __init__(self, run: ImageRun, labels: Tensor, unlabelled_weight: float | None, asymmetric: bool) -> None:
        """unlabelled_weight: None chooses it by the share of labels that the first division distrusts."""
        super().__init__()
        self.labels, self.asymmetric, self.undecided = labels, asymmetric, unlabelled_weight is None
        self.strong = strong_share(run.recipe)
        self.unlabelled_weight = torch.full((), unlabelled_weight or 0.0, device=run.device)
        epochs = run.recipe.epochs
        warm = WARM_OF_MANY if run.num_classes > MANY_CLASSES else WARM_EPOCHS
        self.warm_epochs, ramp = (min(count, max(1, epochs // 4)) for count in (warm, RAMP_EPOCHS))
        self.ramp = (self.warm_epochs / epochs, (self.warm_epochs + ramp) / epochs)
        steps = run.steps_per_epoch * epochs
        self.second = SecondNetwork(fresh_network(run.network, run.seed + 1), run.recipe, steps, run.device)
        self.shares = BetaShares(ALPHA, run.device)
        given = (labels >= 0).float()
        self.clean = torch.stack([given, given])  # by the losses of the first and of the second network
        self.warm = torch.ones((), device=run.device)

    def state(self) -> dict[str, Tensor]:
        own = {"clean": self.clean, "warm": self.warm, "unlabelled_weight": self.unlabelled_weight}
        return own | self.second.state()

    def start_epoch(self, run: ImageRun) -> None:
        if run.epoch == 0 and run.recipe.pretrain:  # both know the images without labels
            self.second.begin_like(run.training.network)
        if run.epoch < self.warm_epochs:
            return
        self.warm.zero_()
        images = run.training.images
        for index, logits in enumerate((run.logits(images, average=False, plain=True), self._second_logits(run))):
            labels = self.labels.cpu()
            given = labels >= 0
            losses = nll_loss(torch.log_softmax(logits[given], 1), labels[given], reduction="none")
            clean = torch.zeros(len(labels), dtype=torch.float64)
            clean[given] = clean_probability(losses)
            self.clean[index].copy_(clean)
        if self.undecided and run.epoch == self.warm_epochs:
            distrusted = float((self.clean[:, self.labels >= 0] <= THRESHOLD).double().mean())
            self.unlabelled_weight.fill_(published_weight(distrusted, self.asymmetric, run.num_classes))

    def judged(self, run: ImageRun, x: Tensor, logits: Tensor, average: bool) -> Tensor:
        """The mean of both networks."""
        return (logits + (self.second.averaged(x, run.training) if average else self._second_at(x))) / 2

    def _second_logits(self, run: ImageRun) -> Tensor:
        parts = run.training.images.split(PREDICTED_AT_ONCE)
        return torch.cat([self._second_at(run.views.plain(x)).cpu() for x in parts])

    @torch.no_grad()
    def _second_at(self, x: Tensor) -> Tensor:
        self.second.network.eval()
        logits = self.second(x)
        self.second.network.train()
        return logits

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
        counts = torch.ones_like(logits[:, 0])
        counts[len(counts) // 2 :] = self.strong
        loss = mixed_loss(logits, mix(targets, partner, share), kept, weight, counts)
        if self.asymmetric:  # sure predictions are held back until labels are divided
            p = torch.softmax(logits, 1)
            loss = loss - self.warm * torch.special.entr(p).sum(1).mean()
        return loss + (1 - self.warm) * balance_penalty(logits)


def _dividemix(run: ImageRun, options: MethodOptions) -> StepObjective:
    rate, asymmetric = noise_of(run, options)
    weight = options.number("unlabelled_weight", 0.0) if "unlabelled_weight" in options.extra else None
    if weight is None and rate is not None:
        weight = published_weight(rate, asymmetric, run.num_classes)
    return DivideMix(run, noisy_labels(run), weight, asymmetric)


register(
    Method(
        name="dividemix",
        title="DivideMix",
        settings=SETTINGS,
        reference="Li, Socher and Hoi, DivideMix: learning with noisy labels as semi-supervised learning, ICLR 2020",
        differs="Both networks learn in every step, from pretrained features where there are any, and kept and "
        "distrusted labels share a batch instead of coming in equal parts; the two views are the weak and the strong "
        "one. The weight of distrusted rows (unlabelled_weight=) is what the authors tuned for the share of wrong "
        "labels (CIFAR-10: 0 at 20 % and for asymmetric noise, 25 at 50 and 80 %, 50 at 90 %), the share being the "
        "one known or else that of the first division. Warm-up and ramp take the authors' 10 (beyond 50 classes 30) "
        "and 16 passes, each a quarter of the run at most. Without the averaged losses and the threshold of 0.6 for "
        "90 % noise. Runs evaluate the mean of both networks, as the authors do; the estimator keeps the first one. "
        "The second network is of the first one's architecture; where that is the caller's own, weights of modules "
        "with reset_parameters are drawn anew, and all others, such as frozen ones, start as copies.",
        make=_dividemix,
        extra=("unlabelled_weight",),
    )
)
