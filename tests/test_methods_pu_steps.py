"""Whole steps of CVIR, Dist-PU, VarPU and UU against numbers worked apart: every term with its weight and sign."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import fastbus
from digit_runs import method_run
from fastbus.methods import incomplete_positive as positive
from fastbus.methods import incomplete_risks as risks
from fastbus.methods import incomplete_variational as variational
from fastbus.methods import objective_of
from fastbus.methods.rows import held_rows
from fastbus.training.image_run import ImageRun
from method_steps import inputs_of, random_logits, sigmoid, single_rows
from test_image_run import QUICK, digits

KNOWN, FREE = 3, 5  # labelled rows of a step, which come first, and unlabelled ones
RECIPE = QUICK.replace(epochs=4, labelled_rows=KNOWN, rows=KNOWN + FREE, weak=1.0, strong=3.0)


def pu_run(method: str, **facts: object) -> tuple[ImageRun, torch.Tensor]:
    """A run, and rows of it: labelled ones, then others."""
    run = method_run("positive_unlabeled", method, RECIPE, **facts)
    known = torch.from_numpy(run.labelled)
    return run, torch.cat([known.nonzero()[:KNOWN, 0], (~known).nonzero()[:FREE, 0]])


def views_of(seed: int) -> list[torch.Tensor]:
    return [random_logits(KNOWN + FREE, 2, seed=2 * seed + view).float() for view in (0, 1)]


def score(logits: torch.Tensor) -> np.ndarray:
    return (logits[:, 1] - logits[:, 0]).double().numpy()


def either(weak: float, strong: float) -> float:
    return (weak + 3 * strong) / 4


def test_cvir_learns_from_what_looks_least_like_positives() -> None:
    run, _ = pu_run("cvir", known_prior=True)
    objective, prior = run.objective, run.supervision.prior
    assert isinstance(objective, positive.ValueIgnoringRisk)
    logits = random_logits(len(run.labelled), 2, seed=4).float()
    later: Any = SimpleNamespace(epoch=2, training=run.training, logits=lambda images, average: logits)
    objective.start_epoch(later)
    free = np.flatnonzero(~run.labelled)
    order = sorted(free, key=lambda row: float(logits[row, 1] - logits[row, 0]))
    kept = set(order[: round((1 - prior) * len(free))])
    used = objective.state()["used"].numpy()
    assert {row for row in free if used[row]} == kept and used[run.labelled].all()

    rows = torch.tensor([*np.flatnonzero(run.labelled)[:KNOWN], *order[:3], *order[-2:]])
    views = views_of(0)
    found = []
    for view in views:
        f = score(view)
        plus = np.mean([np.log1p(np.exp(-f[row])) for row in range(KNOWN)])
        minus = np.mean([np.log1p(np.exp(f[KNOWN + row])) for row in range(3)])  # the last two are left out
        found.append((plus + minus) / 2)
    assert float(objective(inputs_of(*views, single_rows(rows)))) == pytest.approx(either(*found), rel=1e-5)


def entropy(f: np.ndarray) -> np.ndarray:
    s = sigmoid(f)
    return -s * np.log(s) - (1 - s) * np.log(1 - s)


def apart(f: np.ndarray, prior: float) -> float:
    """Of the mean predictions from the labels' shares, in twice the prior."""
    known, free = sigmoid(f[:KNOWN]).mean(), sigmoid(f[KNOWN:]).mean()
    return float((2 * prior * abs(known - 1) + abs(free - prior)) / (2 * prior))


def test_the_first_stage_of_dist_pu_by_hand() -> None:
    run, rows = pu_run("dist_pu")
    prior, views = run.supervision.prior, views_of(0)
    weak, strong = (score(x) for x in views)
    expected = either(apart(weak, prior), apart(strong, prior)) + 0.002 * entropy(weak[KNOWN:]).mean()
    found = float(run.objective(inputs_of(*views, single_rows(rows), progress=0.2)))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("progress", [0.5, 0.8])
def test_the_second_stage_of_dist_pu_by_hand(progress: float) -> None:
    """Alignment, 5 of mixing, entropy up to .004 and .04 of mixed rows, all times .2 for a second optimiser."""
    run, rows = pu_run("dist_pu")
    objective, prior = run.objective, run.supervision.prior
    assert isinstance(objective, positive.DistributionAlignment)
    partner = torch.tensor([4, 0, 7, 2, 6, 1, 3, 5])
    objective._partners = lambda count, generator: partner  # type: ignore[method-assign]
    objective.shares.quantiles.fill_(0.7)
    objective.later.fill_(1.0)
    remembered = torch.tensor([0.3, 0.9, 0.6, 0.1, 0.8])
    objective.guess[rows[KNOWN:]] = remembered
    views = views_of(0)
    found = float(objective(inputs_of(*views, single_rows(rows), progress)))

    weak = score(views[0])
    mixed = score(0.7 * views[1] + 0.3 * views[1][partner])  # images are their own logits here
    guess = np.concatenate([np.ones(KNOWN), remembered.double().numpy()])
    target = 0.7 * guess + 0.3 * guess[partner]
    share = float(run.labelled.mean())
    weight = np.array([share / KNOWN] * KNOWN + [(1 - share) / FREE] * FREE)  # as often as in the data
    consistent = -weight @ (target * np.log(sigmoid(mixed)) + (1 - target) * np.log(sigmoid(-mixed)))
    rising = 1 - np.cos((progress - 0.5) * np.pi)
    unsure = 0.004 * rising * entropy(weak[KNOWN:]).mean() + 0.04 * weight @ entropy(mixed)
    assert found == pytest.approx(0.2 * (apart(weak, prior) + 5 * consistent + unsure), rel=1e-5)
    assert np.allclose(objective.guess[rows[KNOWN:]], sigmoid(weak[KNOWN:]), atol=1e-6)


def test_phi_is_nearly_linear_between_positives_and_others() -> None:
    """VarPU's regulariser, .03 (log(s + (1 - s) phi(x)) - log phi(s p + (1 - s) x))^2, beside the variational risk."""
    run, rows = pu_run("var_pu")
    objective, share = run.objective, 0.3
    assert isinstance(objective, variational.VariationalRisk)
    objective.shares.quantiles.fill_(share)
    objective.used.fill_(True)
    objective.used[rows[[1, 4]]] = False  # a positive and an unlabelled row that are held out
    views = views_of(1)
    found = float(objective(inputs_of(*views, single_rows(rows))))

    risk = []
    for f in map(score, views):
        phi = sigmoid(f)
        risk.append(np.log(phi[[3, 5, 6, 7]].mean()) - np.log(phi[[0, 2]]).mean())
    bent = []
    for place in range(FREE):
        mine, row = place % KNOWN, KNOWN + place
        if mine != 1 and row != 4:
            between = share * views[0][mine] + (1 - share) * views[0][row]
            target = share + (1 - share) * sigmoid(score(views[0]))[row]
            bent.append((np.log(target) - np.log(sigmoid(score(between[None]))[0])) ** 2)
    assert len(bent) == 3 and found == pytest.approx(either(*risk) + 0.03 * np.mean(bent), rel=1e-5)


@pytest.mark.parametrize("labelled", [1, 2])
def test_passes_are_not_compared_where_no_positive_can_be_held_out(labelled: int) -> None:
    """Without positives the held-out risk is log E[phi], least where nothing is positive: the last pass stands."""
    images, one = digits()[0][:60], torch.ones(60, dtype=torch.long)
    weak = torch.where(torch.arange(60) < labelled, 1, -1)
    rule, make = fastbus.PositiveUnlabeled(prior=0.5), objective_of("var_pu")
    run = ImageRun(rule, images, one, weak, num_classes=2, recipe=RECIPE, flip=False, objective=make)
    assert held_rows(run, 0.1).sum() == (0 if labelled == 1 else 1 + 6)
    end, run.objective.end = run.objective.end, lambda _: None
    while not run.done:
        run.run_epoch()
    last = [x.clone() for x in run.training.averaged]
    end(run)
    assert bool(run.objective.state()["least"].isfinite()) == (labelled > 1)
    if labelled == 1:
        assert bool(run.objective.used.all())  # all of them train
        assert all(torch.equal(mine, x) for mine, x in zip(run.training.averaged, last, strict=True))


@pytest.mark.parametrize("turned", [False, True])
def test_the_set_with_more_positives_is_known_by_its_share_whichever_stands_first(turned: bool) -> None:
    """Lu et al.: with shares h > l and test share p the risks of positives and of negatives, each as |.|."""
    high, low, p = 0.7, 0.2, 0.4
    many = torch.arange(60) % 3 == 0  # members of the set with more positives
    sets = torch.where(many, int(turned), 1 - int(turned))
    rule = fastbus.UnlabeledUnlabeled((low, high) if turned else (high, low))
    make, one = objective_of("uu", prior=p), torch.ones(60, dtype=torch.long)
    run = ImageRun(rule, digits()[0][:60], one, sets, num_classes=2, recipe=RECIPE, flip=False, objective=make)
    assert isinstance(run.objective, risks.TwoSetsRisk)
    views = views_of(2)
    found = []
    for f in map(score, views):
        plus, minus = np.log1p(np.exp(-f)), np.log1p(np.exp(f))
        more, less = many[: KNOWN + FREE].numpy(), ~many[: KNOWN + FREE].numpy()
        positives = p * ((1 - low) * plus[more].mean() - (1 - high) * plus[less].mean()) / (high - low)
        negatives = (1 - p) * (high * minus[less].mean() - low * minus[more].mean()) / (high - low)
        found.append(abs(positives) + abs(negatives))
    loss = float(run.objective(inputs_of(*views, single_rows(torch.arange(KNOWN + FREE)))))
    assert loss == pytest.approx(either(*found), rel=1e-5)
