"""CEGE: the labels enter a squared loss only through a centroid, estimated without bias and with least variance.

(1 - y f)^2 / 4 = (1 + f^2) / 4 - y f / 2, so the risk needs E[y f(x)] alone. A group of instances with a known
share t of positives has the mean t E+ + (1 - t) E-; weighing the groups' means by a_g with sum a_g t_g = prior and
sum a_g = 2 prior - 1 gives prior E+ - (1 - prior) E- = E[y f]. Among such weights those with the least sum of
a_g^2 / n_g are a_g = n_g (intercept + slope t_g): every instance weighs intercept + slope * (share of its group).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fastbus.errors import InputError
from fastbus.methods.bag_rows import counts_of, seen_classes
from fastbus.methods.registry import Method, MethodOptions, register
from fastbus.methods.rows import BoundedScores, blend, bounded, classes_of, labelled_part, score, view_logits
from fastbus.supervision.incomplete import UnlabeledUnlabeled
from fastbus.training.step_objective import StepInputs

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun


def centroid_weights(shares: Tensor, sizes: Tensor, prior: float) -> Tensor:
    """What one instance of each group weighs, (G,) float64, from the groups' shares of positives and sizes (G,)."""
    shares, sizes = shares.double(), sizes.double()
    total, first, second = sizes.sum(), (sizes * shares).sum(), (sizes * shares**2).sum()
    determinant = total * second - first**2
    if float(determinant) <= 1e-9 * float(total) ** 2:
        raise InputError(
            "cege: all groups have one share of positives; expected at least two different shares, otherwise nothing "
            "tells the classes apart. Add bags or sets of another share."
        )
    intercept = ((2 * prior - 1) * second - prior * first) / determinant
    slope = (prior * total - (2 * prior - 1) * first) / determinant
    return intercept + slope * shares


# Of scores, softly. Squared loss wants them within 1; but labelled rows that are none of the others only enter through
# the centroid, and a network that knows them by heart follows that to infinity, where the authors' kernel model has a
# norm to mind.
BOUND = 2.0


class Groups(NamedTuple):
    """Shares of positives (N,) of the group of each instance, NaN for none; first as labelled ones, then as others."""

    labelled: Tensor
    others: Tensor
    prior: float
    drawn: Tensor | None = None  # (N,) which stand for all there are; None for every one that is not labelled


class CentroidRisk(BoundedScores):
    """Mean of (1 + f^2) / 4 minus half the centroid's estimate.

    Rows are drawn evenly from the labelled instances and from the others; each pool's sum is its size times a mean.
    """

    def __init__(self, run: ImageRun, groups: Groups, bound: float = BOUND) -> None:
        super().__init__()
        self.recipe, self.bound = run.recipe, bound
        self.known = labelled_part(run, "cege") if bool((~groups.labelled.isnan()).any()) else 0
        shares = torch.cat([groups.labelled, groups.others])
        held = ~shares.isnan()
        values, group, sizes = torch.unique(shares[held], return_inverse=True, return_counts=True)
        weight = torch.zeros(len(shares), dtype=torch.float64)
        weight[held] = centroid_weights(values, sizes, groups.prior)[group]
        drawn = torch.ones(len(shares) // 2, dtype=torch.bool) if groups.drawn is None else groups.drawn
        self.drawn = drawn.to(run.device)
        first, rest = weight.chunk(2)
        pool = held.chunk(2)
        self.labelled = (first * int(pool[0].sum())).float().to(run.device)
        self.others = (rest * int(pool[1].sum())).float().to(run.device)

    def __call__(self, inputs: StepInputs) -> Tensor:
        rows, L = inputs.step.rows, self.known
        real = inputs.real[L:] & self.drawn[rows[L:]]
        many = real.sum().clamp(min=1)

        def risk(f: Tensor) -> Tensor:
            f = bounded(f, self.bound)
            charged = (1 + f[L:] ** 2) / 4 - self.others[rows[L:]] * f[L:] / 2
            others = torch.where(real, charged, 0.0).sum() / many
            return others - (self.labelled[rows[:L]] * f[:L]).mean() / 2 if L else others

        return blend(self.recipe, *(risk(score(logits)) for logits in view_logits(inputs)))


def groups_of(run: ImageRun, options: MethodOptions) -> Groups:
    """What each instance's group knows about its share of positives."""
    name, weak, sizes = run.supervision.name, run.weak, run.sizes
    none = torch.full((int(sizes.sum()),), float("nan"), dtype=torch.float64)
    if name == "positive_unlabeled":
        prior = _needed(options.prior, "prior")
        labelled = torch.where(weak == 1, 1.0, none)
        return Groups(labelled, torch.where(weak == 1, none, prior), prior)
    if name == "semi_supervised":
        gold = classes_of(weak, 2, name)
        known = gold >= 0
        prior = float(gold[known].double().mean()) if options.prior is None else options.prior
        return Groups(torch.where(known, gold.double(), none), torch.full_like(none, prior), prior)
    if name == "unlabeled_unlabeled":
        assert isinstance(run.supervision, UnlabeledUnlabeled)
        given = torch.tensor(run.supervision.priors, dtype=torch.float64)
        index = classes_of(weak, len(given), name)
        shares = torch.where(index >= 0, given[index.clamp(min=0)], none)
        return Groups(none, shares, _share(options.prior, shares[index >= 0]), index >= 0)
    if name == "noisy_label":
        rate = _needed(options.noise_rate, "noise_rate")
        said = classes_of(weak, 2, name)
        told = said >= 0
        prior = (float(said[told].double().mean()) - rate) / (1 - 2 * rate) if options.prior is None else options.prior
        right, wrong = (1 - rate) * prior, rate * prior
        after = [wrong / (wrong + (1 - rate) * (1 - prior)), right / (right + rate * (1 - prior))]
        return Groups(none, torch.where(told, none.new_tensor(after)[said.clamp(min=0)], none), prior)
    if name == "label_proportion":
        shares = (counts_of(run)[:, 1] / sizes).double().repeat_interleave(sizes)
        return Groups(none, shares, _share(options.prior, shares))
    prior = _needed(options.prior, "prior")
    seen = seen_classes(weak, 2, name)[:, -1].repeat_interleave(sizes).double()
    return Groups(none, seen * min(1.0, prior / max(float(seen.mean()), 1e-9)), prior)


def _share(given: float | None, shares: Tensor) -> float:
    return float(shares.mean()) if given is None else given


def _needed(value: float | None, name: str) -> float:
    if value is None:
        example = "prior=0.4" if name == "prior" else "noise_rate=0.2"
        raise InputError(f"cege needs to know the share; expected {name}=. Pass it, e.g. {example}.")
    return value


register(
    Method(
        name="cege",
        title="CEGE (centroid estimation)",
        settings=(
            "positive_unlabeled",
            "unlabeled_unlabeled",
            "semi_supervised",
            "noisy_label",
            "multi_instance",
            "label_proportion",
        ),
        reference="Gong, Yang, You, Sugiyama, Centroid estimation with guaranteed efficiency: a general framework for "
        "weakly supervised learning, TPAMI 2022",
        differs="A network instead of a kernel model, so that the centroid is that of its scores in the batch. The "
        "authors combine two synthesised data sets with least variance; here all groups of known share are combined "
        "so, their scores taken to vary alike. Squared loss. Scores are kept within 2 softly, bound=0 lifts it: the "
        "risk has no least one for a network that knows labelled positives by heart. noisy_label needs noise_rate, "
        "multi_instance prior.",
        make=lambda run, options: CentroidRisk(run, groups_of(run, options), float(options.extra.get("bound", BOUND))),
        binary=True,
        extra=("bound",),
    )
)
