"""Positives and unlabelled instances beyond risk rewriting: CVIR with best bin estimation, Dist-PU, variational PU.

f = logit_1 - logit_0; L labelled rows of a step come first, the U others are unlabelled.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, softplus

from fastbus.errors import InputError
from fastbus.methods.mixing import BetaShares, mix, shuffled
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, labelled_part, mean_where, score, view_logits
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective

HELD_OUT = 0.2  # share of positives and of unlabelled instances that only estimate the prior
WARM = 0.1  # share of the passes in which every unlabelled instance is taken for a negative
BIN_SLACK, BIN_DOUBT = 0.01, 0.1  # gamma and delta of the best bin
ALIGN_ALONE = 0.5  # share of the steps in which only the label distributions are aligned
ENTROPY, MIXUP, MIXUP_ENTROPY, MIXUP_ALPHA = 0.004, 1.0, 0.04, 6.0
VAR_ALPHA, VAR_WEIGHT = 0.3, 0.03


def best_bin_estimate(
    positive: Tensor, unlabelled: Tensor, slack: float = BIN_SLACK, doubt: float = BIN_DOUBT
) -> float:
    """The share of positives among the unlabelled, from scores of held-out positives (P,) and of unlabelled (U,).

    q_u(c) / q_p(c), with q the share of scores from c on, bounds that share from above wherever negatives score
    below c. The threshold c is the one at which the bound with its uncertainty,
    (q_u + (1 + slack) (w_u + w_p)) / q_p with w = sqrt(log(4 / doubt) / 2n), is smallest.
    """
    positive, unlabelled = positive.double().sort().values, unlabelled.double().sort().values
    cuts = torch.cat([positive, unlabelled])
    at_least = [(len(x) - torch.searchsorted(x, cuts, right=False)).double() / len(x) for x in (positive, unlabelled)]
    q_p, q_u = (q[at_least[0] > 0] for q in at_least)
    width = sum(math.sqrt(math.log(4 / doubt) / (2 * len(x))) for x in (positive, unlabelled))
    best = int(((q_u + (1 + slack) * width) / q_p).argmin())
    return min(1.0, float(q_u[best] / q_p[best]))


def lowest_share(scores: Tensor, share: float) -> Tensor:
    """The scores (U,) that are among the lowest `share` of all, as booleans."""
    kept = torch.zeros(len(scores), dtype=torch.bool)
    kept[scores.argsort(stable=True)[: max(1, round(share * len(scores)))]] = True
    return kept


def alignment_risk(positive: Tensor, unlabelled: Tensor, prior: float) -> Tensor:
    """2 prior |E_P[s] - 1| + |E_U[s] - prior| with s = sigmoid(f): mean predictions as the labels' shares are."""
    far = (torch.sigmoid(positive).mean() - 1).abs()
    return 2 * prior * far + (torch.sigmoid(unlabelled).mean() - prior).abs()


def binary_entropy(scores: Tensor) -> Tensor:
    """Entropy of sigmoid(f), (M,)."""
    s = torch.sigmoid(scores)
    return s * softplus(-scores) + (1 - s) * softplus(scores)


def variational_risk(positive: Tensor, unlabelled: Tensor) -> Tensor:
    """log E_U[phi] - E_P[log phi] with phi = sigmoid(f): smallest where phi is proportional to P(y = 1 | x)."""
    log_mean = torch.logsumexp(logsigmoid(unlabelled), 0) - math.log(len(unlabelled))
    return log_mean - logsigmoid(positive).mean()


class ValueIgnoringRisk(StepObjective):
    """CVIR: unlabelled instances that look most like positives, as many as there must be, are left out."""

    def __init__(self, run: ImageRun, labelled: int, prior: float | None) -> None:
        """prior: None estimates it before every pass."""
        super().__init__()
        assert run.labelled is not None
        self.recipe, self.labelled, self.known = run.recipe, labelled, prior
        self.warm_epochs = max(1, round(WARM * run.recipe.epochs))
        rng = np.random.default_rng([run.seed, 7])
        held = np.zeros(len(run.labelled), dtype=bool)
        for pool in (np.flatnonzero(run.labelled), np.flatnonzero(~run.labelled)) if prior is None else ():
            if len(pool) < 2:
                raise InputError(
                    f"cvir: a pool of {len(pool)} instance; expected 2 or more positives and unlabelled ones, of which "
                    "some estimate the prior. Give more, or pass known_prior=True with a prior."
                )
            held[rng.permutation(pool)[: max(1, round(HELD_OUT * len(pool)))]] = True
        self.held, self.positive = torch.from_numpy(held), torch.from_numpy(run.labelled)
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
            losses.append(self.prior * positive + (1 - self.prior) * negative)
        return blend(self.recipe, *losses)


class DistributionAlignment(StepObjective):
    """Dist-PU: aligned label distributions; later also low entropy and consistency under mixing."""

    def __init__(self, labelled: int, prior: float, recipe: Recipe, device: torch.device) -> None:
        super().__init__()
        self.labelled, self.prior, self.recipe = labelled, prior, recipe
        self.shares = BetaShares(MIXUP_ALPHA, device)

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, M = self.labelled, len(inputs.weak)
        later = inputs.progress >= ALIGN_ALONE
        partner = shuffled(M - L, inputs.generator, inputs.strong.device)
        share = torch.where(later, self.shares.own(M - L, inputs.generator), 1.0)
        mixed = mix(inputs.strong[L:], partner, share)
        f = score(inputs.network(torch.cat([inputs.weak, inputs.strong[:L], mixed])))
        weak, strong = f[:M], f[M:]
        aligned = alignment_risk(weak[:L], weak[L:], self.prior)
        both = blend(self.recipe, aligned, alignment_risk(strong[:L], strong[L:], self.prior))
        guess = torch.sigmoid(score(inputs.teacher(inputs.weak[L:])))
        target = mix(guess[:, None], partner, share)[:, 0]
        consistent = binary_cross_entropy_with_logits(strong[L:], target)
        extra = ENTROPY * binary_entropy(weak[L:]).mean() + MIXUP_ENTROPY * binary_entropy(strong[L:]).mean()
        return torch.where(later, aligned + MIXUP * consistent + extra, both)


class VariationalRisk(StepObjective):
    """VPU: the variational risk, and phi nearly linear between positives and unlabelled instances."""

    def __init__(self, labelled: int, recipe: Recipe, device: torch.device, weight: float) -> None:
        super().__init__()
        self.labelled, self.recipe, self.weight = labelled, recipe, weight
        self.shares = BetaShares(VAR_ALPHA, device)

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, M = self.labelled, len(inputs.weak)
        U = M - L
        partner = torch.arange(U, device=inputs.weak.device) % L
        share = self.shares(U, inputs.generator)
        weight = share[..., None, None]
        between = weight * inputs.weak.index_select(0, partner) + (1 - weight) * inputs.weak[L:]
        f = score(inputs.network(torch.cat([inputs.weak, inputs.strong, between])))
        weak, strong, middle = f[:M], f[M : 2 * M], f[2 * M :]
        target = share[:, 0] + (1 - share[:, 0]) * torch.sigmoid(weak[L:])
        bent = ((target.clamp(min=1e-12).log() - logsigmoid(middle)) ** 2).mean()
        risks = [variational_risk(x[:L], x[L:]) for x in (weak, strong)]
        return blend(self.recipe, *risks) + self.weight * bent


def _cvir(run: ImageRun, options: MethodOptions) -> StepObjective:
    prior = None
    if options.extra.get("known_prior", False):
        if options.prior is None:
            raise InputError("cvir: known_prior=True without a prior; expected prior=. Pass it, e.g. prior=0.4.")
        prior = float(options.prior)
    return ValueIgnoringRisk(run, labelled_part(run, "cvir"), prior)


def _dist_pu(run: ImageRun, options: MethodOptions) -> StepObjective:
    assert options.prior is not None
    return DistributionAlignment(labelled_part(run, "dist_pu"), float(options.prior), run.recipe, run.device)


def _var_pu(run: ImageRun, options: MethodOptions) -> StepObjective:
    weight = float(options.extra.get("weight", VAR_WEIGHT))
    return VariationalRisk(labelled_part(run, "var_pu"), run.recipe, run.device, weight)


register(
    Method(
        name="cvir",
        title="CVIR",
        settings=("positive_unlabeled",),
        binary=True,
        reference="Garg et al., Mixture proportion estimation and PU learning: a modern approach, NeurIPS 2021",
        differs="The prior is estimated by the best bin before every pass, from a fifth of the instances that do not "
        "train, even where the supervision has one; known_prior=True takes that instead and holds nothing out. "
        "Positives and kept instances weigh by the estimated shares, not alike; the loss is averaged over both views.",
        make=_cvir,
        extra=("known_prior",),
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
        differs="One schedule instead of two stages with restarts: alignment alone for half of the steps, then entropy "
        "and mixing with constant weights. Unlabelled strong views are mixed among themselves, since labelled rows are "
        "more frequent in a batch than in the data; their guesses are the averaged network's and mixing weighs 1, not "
        "5: on small digits own guesses could confirm themselves into one class, and the heavier weight was worse.",
        make=_dist_pu,
        instead="Or use method='cvir', which estimates it.",
    )
)
register(
    Method(
        name="var_pu",
        title="VarPU",
        settings=("positive_unlabeled",),
        binary=True,
        reference="Chen et al., A variational approach for learning from positive and unlabeled data, NeurIPS 2020",
        differs="The mean of phi is taken over unlabelled rows, which are disjoint from the labelled ones here; the "
        "risk is averaged over both views, mixing uses the weak one with a share for each pair and weighs 0.03 "
        "(weight=). Few positives are learnt by heart in long runs: on small digits a weight of 0.3 was better there.",
        make=_var_pu,
        extra=("weight",),
    )
)
