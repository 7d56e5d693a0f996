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
from fastbus.methods.rows import (
    BoundedScores,
    blend,
    bounded,
    classes_of,
    labelled_part,
    score,
    transition_of,
    view_logits,
)
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


def shares_after(transition: Tensor, called: float, prior: float | None) -> tuple[float, list[float]]:
    """The share of positives of all, and of the instances said to be negative and to be positive.

    transition (2, 2): P(said | class). called: share of the labels that say positive, from which the prior follows if
    it is not told.
    """
    false, true = float(transition[0, 1]), float(transition[1, 1])
    if abs(true - false) < 1e-6:
        raise InputError(
            f"cege: {false:.3g} of the negatives and {true:.3g} of the positives are called positive; expected shares "
            "that differ, otherwise labels tell nothing. Correct noise_rate= or the transition."
        )
    if prior is None:
        prior = (called - false) / (true - false)
        if not 0 < prior < 1:
            raise InputError(
                f"cege: {called:.3g} of the labels say positive; expected more than {min(false, true):.3g} and less "
                f"than {max(false, true):.3g}, the shares of negatives and of positives that are called so. Correct "
                "noise_rate= or the transition, or pass prior=."
            )
    expected = true * prior + false * (1 - prior)
    return prior, [(1 - true) * prior / (1 - expected), true * prior / expected]


def groups_of(run: ImageRun, options: MethodOptions) -> Groups:
    """What each instance's group knows about its share of positives."""
    name, weak, sizes = run.supervision.name, run.weak, run.sizes
    none = torch.full((int(sizes.sum()),), float("nan"), dtype=torch.float64)
    if name == "positive_unlabeled":
        prior = _needed(options.prior)
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
        transition = transition_of(run, options.noise_rate, "cege")
        assert transition is not None  # one of its needs
        said = classes_of(weak, 2, name)
        told = said >= 0
        prior, after = shares_after(transition, float(said[told].double().mean()), options.prior)
        return Groups(none, torch.where(told, none.new_tensor(after)[said.clamp(min=0)], none), prior)
    if name == "label_proportion":
        shares = (counts_of(run)[:, 1] / sizes).double().repeat_interleave(sizes)
        return Groups(none, shares, _share(options.prior, shares))
    prior = _needed(options.prior)
    seen = seen_classes(weak, 2, name)[:, -1].repeat_interleave(sizes).double()
    return Groups(none, seen * min(1.0, prior / max(float(seen.mean()), 1e-9)), prior)


def _share(given: float | None, shares: Tensor) -> float:
    return float(shares.mean()) if given is None else given


def _needed(prior: float | None) -> float:
    assert prior is not None  # one of its needs
    return prior


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
        "risk has no least one for a network that knows labelled positives by heart. Where prior= is not told and not "
        "needed, it is that of the labels; noisy ones are corrected by the rate or the transition, which may be "
        "asymmetric.",
        make=lambda run, options: CentroidRisk(run, groups_of(run, options), options.number("bound", BOUND)),
        binary=True,
        needs_on={"positive_unlabeled": ("prior",), "noisy_label": ("noise_rate",), "multi_instance": ("prior",)},
        extra=("bound",),
    )
)
