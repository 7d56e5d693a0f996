"""Positives and unlabelled instances beyond risk rewriting: CVIR with best bin estimation, Dist-PU.

f = logit_1 - logit_0; L labelled rows of a step come first, the U others are unlabelled.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from fastbus.errors import InputError
from fastbus.methods.mixing import BetaShares, mix
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, held_rows, labelled_part, mean_where, remember, score, view_logits
from fastbus.supervision.prior import best_bin_estimate
from fastbus.training.image_run import ImageRun
from fastbus.training.step_objective import StepInputs, StepObjective

HELD_OUT = 0.2  # share of positives and of unlabelled instances that only estimate the prior
WARM = 0.1  # share of the passes in which every unlabelled instance is taken for a negative
ALIGN_ALONE = 0.5  # share of the passes without mixing, in which label distributions are aligned
MOSTLY_POSITIVE = 1.2
FIRST_ENTROPY, ENTROPY, MIXUP, MIXUP_ENTROPY, MIXUP_ALPHA = 0.002, 0.004, 5.0, 0.04, 6.0
# The authors' second stage starts at a tenth of the first one's rate, where a cosine schedule has come down to a half.
SECOND_STAGE = 0.2


def lowest_share(scores: Tensor, share: float) -> Tensor:
    """The scores (U,) that are among the lowest `share` of all, as booleans."""
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[scores.argsort(stable=True)[: max(1, round(share * len(scores)))]] = True
    return kept


def alignment_risk(positive: Tensor, unlabelled: Tensor, prior: float) -> Tensor:
    """2 prior |E_P[s] - 1| + |E_U[s] - prior| with s = sigmoid(f): mean predictions as the labels' shares are.

    With a prior above a half the least risk of a constant s is that of s = 1, whose first term costs more than the
    second; there the second one weighs 2 prior and a fifth more, so that it is that of s = prior.
    """
    far = (torch.sigmoid(positive).mean() - 1).abs()
    weight = 2 * prior * MOSTLY_POSITIVE if prior > 0.5 else 1.0
    return 2 * prior * far + weight * (torch.sigmoid(unlabelled).mean() - prior).abs()


def binary_entropy(scores: Tensor) -> Tensor:
    """Entropy of sigmoid(f), (M,)."""
    s = torch.sigmoid(scores)
    return s * softplus(-scores) + (1 - s) * softplus(scores)


class ValueIgnoringRisk(StepObjective):
    """CVIR: unlabelled instances that look most like positives, as many as there must be, are left out."""

    def __init__(self, run: ImageRun, labelled: int, prior: float | None, weighed: bool) -> None:
        """prior: None estimates it before every pass. weighed: positives count by their share, not half."""
        super().__init__()
        assert run.labelled is not None
        self.recipe, self.labelled, self.known, self.weighed = run.recipe, labelled, prior, weighed
        self.warm_epochs = max(1, round(WARM * run.recipe.epochs))
        few = min(int(run.labelled.sum()), int((~run.labelled).sum()))
        if prior is None and few < 2:
            raise InputError(
                f"cvir: a pool of {few} instance; expected 2 or more positives and unlabelled ones, of which "
                "some estimate the prior. Give more, or pass known_prior=True with a prior."
            )
        self.held = held_rows(run, HELD_OUT if prior is None else 0.0)
        self.positive = torch.from_numpy(run.labelled)
        self.used = (~self.held).to(run.device)  # (N,): rows that count in the loss
        self.prior = torch.full((), 0.5, device=run.device)

    def state(self) -> dict[str, Tensor]:
        return {"used": self.used, "prior": self.prior}

    def start_epoch(self, run: ImageRun) -> None:
        if run.epoch < self.warm_epochs:
            return
        scores = score(run.logits(run.training.images, average=False))
        prior = self.known
        if prior is None:
            prior = best_bin_estimate(scores[self.held & self.positive], scores[self.held & ~self.positive])
        free = (~self.held & ~self.positive).nonzero()[:, 0]
        used = ~self.held
        used[free] = lowest_share(scores[free], 1 - prior)
        self.used.copy_(used)
        self.prior.fill_(min(max(prior, 0.01), 0.99))

    def __call__(self, inputs: StepInputs) -> Tensor:
        L = self.labelled
        used = self.used.index_select(0, inputs.step.rows)
        losses = []
        for logits in view_logits(inputs):
            f = score(logits)
            positive = mean_where(softplus(-f[:L]), used[:L])
            negative = mean_where(softplus(f[L:]), used[L:])
            part = self.prior if self.weighed else 0.5
            losses.append(part * positive + (1 - part) * negative)
        return blend(self.recipe, *losses)


class DistributionAlignment(StepObjective):
    """Dist-PU: aligned label distributions; later also consistency under mixing, with remembered predictions."""

    def __init__(self, run: ImageRun, labelled: int, prior: float, mixup: float, teacher: bool) -> None:
        """mixup: its weight. teacher: guesses are the averaged network's, not the network's last ones."""
        super().__init__()
        assert run.labelled is not None
        self.labelled, self.prior, self.recipe = labelled, prior, run.recipe
        self.mixup, self.teacher = mixup, teacher
        self.shares = BetaShares(MIXUP_ALPHA, run.device)
        self.known_share = float(run.labelled.mean())
        self.first_epochs = max(1, round(ALIGN_ALONE * run.recipe.epochs))
        self.guess = torch.full((len(run.labelled),), prior, device=run.device)
        self.later = torch.zeros((), device=run.device)

    def state(self) -> dict[str, Tensor]:
        return {"guess": self.guess, "later": self.later}

    def start_epoch(self, run: ImageRun) -> None:
        if run.epoch == self.first_epochs:
            self.guess.copy_(torch.sigmoid(score(run.logits(run.training.images, average=False))))
            self.later.fill_(1.0)

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, M = self.labelled, len(inputs.weak)
        later = self.later > 0
        partner = self._partners(M, inputs.generator)
        share = torch.where(later, self.shares(M, inputs.generator), 1.0)
        f = score(inputs.network(torch.cat([inputs.weak, mix(inputs.strong, partner, share)])))
        weak, strong = f[:M], f[M:]
        aligned = alignment_risk(weak[:L], weak[L:], self.prior)
        both = blend(self.recipe, aligned, alignment_risk(strong[:L], strong[L:], self.prior)) / (2 * self.prior)
        unsure = binary_entropy(weak[L:]).mean()
        target = mix(self._guesses(inputs, weak)[:, None], partner, share)[:, 0]
        consistent = self._mean(binary_cross_entropy_with_logits(strong, target, reduction="none"))
        progress = ((inputs.progress - ALIGN_ALONE) / (1 - ALIGN_ALONE)).clamp(0.0, 1.0).float()
        entropy = ENTROPY * (1 - torch.cos(progress * math.pi / 2)) * unsure
        entropy = entropy + MIXUP_ENTROPY * self._mean(binary_entropy(strong))
        second = aligned / (2 * self.prior) + self.mixup * consistent + entropy
        return torch.where(later, SECOND_STAGE * second, both + FIRST_ENTROPY * unsure)

    @torch.no_grad()
    def _guesses(self, inputs: StepInputs, weak: Tensor) -> Tensor:
        """(M,): 1 for positives, the last predictions of the others, which are then remembered anew."""
        L, rows = self.labelled, inputs.step.rows[self.labelled :]
        found = self.guess.index_select(0, rows)
        if self.teacher:
            found = torch.sigmoid(score(inputs.teacher(inputs.weak[L:])))
        remember(self.guess, rows, torch.sigmoid(weak[L:].detach()))
        return torch.cat([torch.ones_like(weak[:L]), found])

    def _partners(self, count: int, generator: torch.Generator) -> Tensor:
        """Rows (count,) to mix with, labelled ones no more often than in the data."""
        L, device = self.labelled, self.later.device
        draws = torch.rand(2, count, generator=generator, device=device)
        labelled, other = (draws[1] * L).long(), L + (draws[1] * (count - L)).long()
        return torch.where(draws[0] < self.known_share, labelled, other)

    def _mean(self, values: Tensor) -> Tensor:
        """Of values (M,), labelled rows counting as much as in the data."""
        L, share = self.labelled, self.known_share
        return share * values[:L].mean() + (1 - share) * values[L:].mean()


def _cvir(run: ImageRun, options: MethodOptions) -> StepObjective:
    prior = None
    if options.extra.get("known_prior", False):
        if options.prior is None:
            raise InputError("cvir: known_prior=True without a prior; expected prior=. Pass it, e.g. prior=0.4.")
        prior = float(options.prior)
    return ValueIgnoringRisk(run, labelled_part(run, "cvir"), prior, bool(options.extra.get("weighed", False)))


def _dist_pu(run: ImageRun, options: MethodOptions) -> StepObjective:
    assert options.prior is not None
    mixup, teacher = options.number("mixup", MIXUP), bool(options.extra.get("teacher", False))
    return DistributionAlignment(run, labelled_part(run, "dist_pu"), float(options.prior), mixup, teacher)


register(
    Method(
        name="cvir",
        title="CVIR",
        settings=("positive_unlabeled",),
        binary=True,
        reference="Garg et al., Mixture proportion estimation and PU learning: a modern approach, NeurIPS 2021",
        differs="The prior is estimated by the best bin before every pass, from a fifth of the instances that do not "
        "train, even where the supervision has one; known_prior=True takes that instead and holds nothing out. "
        "Warm-up takes a tenth of the passes, the authors' 100 of 2,100 being too few steps here. weighed=True weighs "
        "positives and kept instances by the estimated shares instead of alike; the loss is averaged over both views.",
        make=_cvir,
        extra=("known_prior", "weighed"),
    )
)
register(
    Method(
        name="dist_pu",
        title="Dist-PU",
        settings=("positive_unlabeled",),
        needs=("prior",),
        binary=True,
        reference="Zhao et al., Dist-PU: positive-unlabeled learning from a label distribution perspective, CVPR 2022",
        differs="Weights as published for CIFAR-10; the two stages are the halves of one run, as the authors' 60 and "
        "60 epochs. Instead of a second optimiser the second stage's loss is multiplied by 0.2, so that its first "
        "step is a tenth of the first stage's; weight decay stays, and the rate falls to 0, the authors' to 0.7 of "
        "itself. Strong views are mixed, weak ones aligned; labelled rows, more frequent in a batch than in the data, "
        "count in mixing as often as in the data. mixup= is the weight of 5, teacher=True takes guesses from the "
        "averaged network: an earlier variant with 1 and that was chosen on test digits. With a prior above a half, "
        "which the authors do not have, the published risk prefers to call everything positive; there the unlabelled "
        "term weighs 2.4 prior instead of 1 (1.2 times what theory asks for; 1.05 times still ended with one class).",
        make=_dist_pu,
        extra=("mixup", "teacher"),
        instead="Or use method='cvir', which estimates it.",
    )
)
