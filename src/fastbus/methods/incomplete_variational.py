"""Variational PU learning: phi = P(y = 1 | x) up to its scale, and of all passes the one with the least held-out risk.

f = logit_1 - logit_0; L labelled rows of a step come first, the U others are unlabelled.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fastbus.methods.mixing import BetaShares
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import blend, held_rows, labelled_part, mean_where, score
from fastbus.training.image_run import PREDICTED_AT_ONCE, ImageRun
from fastbus.training.step_objective import StepInputs, StepObjective

ALPHA, WEIGHT = 0.3, 0.03
HELD_OUT = 0.1  # share of positives and of unlabelled instances that only choose among the passes


def variational_risk(
    positive: Tensor, unlabelled: Tensor, used_positive: Tensor | None = None, used_unlabelled: Tensor | None = None
) -> Tensor:
    """log E_U[phi] - E_P[log phi] with phi = sigmoid(f): smallest where phi is proportional to P(y = 1 | x).

    used_positive, used_unlabelled: the rows that count, booleans; None for all.
    """
    used_p, used_u = (
        torch.ones_like(f, dtype=torch.bool) if used is None else used
        for f, used in ((positive, used_positive), (unlabelled, used_unlabelled))
    )
    log_phi = logsigmoid(unlabelled).masked_fill(~used_u, float("-inf"))
    log_mean = torch.logsumexp(log_phi, 0) - used_u.sum().to(log_phi.dtype).log()
    return log_mean - mean_where(logsigmoid(positive), used_p)


class VariationalRisk(StepObjective):
    """VPU: the variational risk, and phi nearly linear between positives and unlabelled instances."""

    def __init__(self, run: ImageRun, labelled: int, weight: float) -> None:
        super().__init__()
        assert run.labelled is not None
        self.labelled, self.recipe, self.weight = labelled, run.recipe, weight
        self.shares = BetaShares(ALPHA, run.device)
        self.positive = torch.from_numpy(run.labelled)
        self.held = held_rows(run, HELD_OUT)
        self.used = (~self.held).to(run.device)
        self.kept = [p.detach().clone().to(run.device) for p in run.network.parameters() if p.requires_grad]
        self.least = torch.full((), float("inf"), dtype=torch.float64)
        self.highest: tuple[int, bool, float] | None = None  # log phi among the training images, after so many passes

    def state(self) -> dict[str, Tensor]:
        return {"least": self.least} | {f"kept.{index}": x for index, x in enumerate(self.kept)}

    def start_epoch(self, run: ImageRun) -> None:
        if run.epoch:
            self._compare(run)

    def end(self, run: ImageRun) -> None:
        self._compare(run)
        if bool(self.least.isfinite()):
            run.training.replace_average(self.kept)

    @torch.no_grad()
    def _compare(self, run: ImageRun) -> None:
        """Keep the averaged weights where their risk on held-out instances is the least so far."""
        if not bool(self.held.any()):
            return
        f = score(run.logits(run.training.images[self.held.to(run.device)], plain=True).double())
        known = self.positive[self.held]
        risk = variational_risk(f[known], f[~known])
        if bool(risk < self.least):
            self.least.copy_(risk)
            for mine, latest in zip(self.kept, run.training.averaged, strict=True):
                mine.copy_(latest)

    def judged(self, run: ImageRun, x: Tensor, logits: Tensor, average: bool) -> Tensor:
        """phi divided by its largest value: the risk leaves its scale open."""
        if self.highest is None or self.highest[:2] != (run.epoch, average):
            parts = run.training.images.split(PREDICTED_AT_ONCE)
            best = max(float(score(run.training.logits(run.views.plain(part), average)).max()) for part in parts)
            self.highest = (run.epoch, average, float(logsigmoid(torch.tensor(best, dtype=torch.float64))))
        log_phi = (logsigmoid(score(logits).double()) - self.highest[2]).clamp(max=-1e-6)
        return torch.stack([torch.log(-torch.expm1(log_phi)), log_phi], 1).float()

    def __call__(self, inputs: StepInputs) -> Tensor:
        L, M = self.labelled, len(inputs.weak)
        U = M - L
        partner = torch.arange(U, device=inputs.weak.device) % L
        share = self.shares(U, inputs.generator)
        weight = share.reshape(U, *[1] * (inputs.weak.dim() - 1))  # images, or rows of a table
        between = weight * inputs.weak.index_select(0, partner) + (1 - weight) * inputs.weak[L:]
        f = score(inputs.network(torch.cat([inputs.weak, inputs.strong])))
        weak, strong = f[:M], f[M:]
        middle = score(inputs.network(between))  # normalised by themselves, as with the authors
        used = self.used.index_select(0, inputs.step.rows)
        # a small step may hold nothing but held-out rows of a kind; then they count, for there must be some
        first, rest = (part | ~part.any() for part in (used[:L], used[L:]))
        target = share[:, 0] + (1 - share[:, 0]) * torch.sigmoid(weak[L:])
        bent = (target.clamp(min=1e-12).log() - logsigmoid(middle)) ** 2
        risks = [variational_risk(x[:L], x[L:], first, rest) for x in (weak, strong)]
        return blend(self.recipe, *risks) + self.weight * mean_where(bent, first.index_select(0, partner) & rest)


def _var_pu(run: ImageRun, options: MethodOptions) -> StepObjective:
    return VariationalRisk(run, labelled_part(run, "var_pu"), options.number("weight", WEIGHT))


register(
    Method(
        name="var_pu",
        title="VarPU",
        settings=("positive_unlabeled",),
        binary=True,
        reference="Chen et al., A variational approach for learning from positive and unlabeled data, NeurIPS 2020",
        differs="The mean of phi is taken over unlabelled rows, which are disjoint from the labelled ones here; the "
        "risk is averaged over both views, mixing uses the weak one with a share for each pair and weighs 0.03 "
        "(weight=), as published. Of all passes the averaged weights with the least risk on a tenth of the positives "
        "and of the unlabelled instances are kept, which do not train; the authors choose so among the plain weights. "
        "Of a single positive none is held out, and the last pass is kept. Runs evaluate phi divided by its largest "
        "value, as the authors do, the estimator phi itself.",
        make=_var_pu,
        extra=("weight",),
    )
)
