"""Methods for pairs keep their claims: exact expectations over all pairs of a small distribution, no sampling."""

import itertools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.errors import InputError
from fastbus.methods.pair_rows import PairScores, corrected, negative_loss, positive_loss
from fastbus.methods.pairwise_hard import comparison_parts, comparison_weights, pc_unbiased_risk, similar_losses
from fastbus.methods.pairwise_pruned import RankPruning, kept, pruned_risk, pruning_of
from fastbus.methods.pairwise_soft import difference_parts, similarity_member_parts, similarity_parts
from method_steps import inputs_of, random_logits, step_of
from pair_digits import PRIOR, pair_accuracy, pair_digits, pair_run
from test_image_run import QUICK

SHARES = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)  # of three possible instances
SCORES = torch.tensor([1.3, -0.4, 0.7], dtype=torch.float64)
UNSURE = torch.tensor([0.9, 0.3, 0.6], dtype=torch.float64)  # P(positive | instance)
CERTAIN = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)


class Drawn(NamedTuple):
    """Every pair of independent draws with its probability: instances and labels."""

    chance: Tensor
    first: Tensor
    second: Tensor
    first_label: Tensor
    second_label: Tensor


def every_pair(positive: Tensor) -> Drawn:
    rows = list(itertools.product(range(3), range(3), (0, 1), (0, 1)))
    first, second, one, two = torch.tensor(rows).T
    chance = SHARES[first] * SHARES[second]
    for row, label in ((first, one), (second, two)):
        chance = chance * torch.where(label == 1, positive[row], 1 - positive[row])
    return Drawn(chance, first, second, one, two)


def supervised_risk(positive: Tensor) -> float:
    loss = positive * positive_loss(SCORES) + (1 - positive) * negative_loss(SCORES)
    return float((SHARES * loss).sum())


def prior_of(positive: Tensor) -> float:
    return float((SHARES * positive).sum())


def compared(pairs: str, positive: Tensor) -> PairScores:
    """Scores of all pairs in order, the more positive one first, weighed by P(pair and comparison)."""
    drawn = every_pair(positive)
    rule = fastbus.PairComparison(pairs=pairs)  # type: ignore[arg-type]
    state = 3 + 2 * drawn.first_label + drawn.second_label
    first, second, weight = [], [], []
    for said in (1, 0):
        told = torch.stack([rule.evidence(z[None], torch.tensor([[said]]))[0, 0] for z in state])
        x, y = SCORES[drawn.first], SCORES[drawn.second]
        if said == 0 and pairs == "labelled":
            continue  # left out by the authors
        first.append(x if said else y)
        second.append(y if said else x)
        weight.append(drawn.chance * told)
    total = torch.cat(weight)
    return PairScores(torch.cat(first), torch.cat(second), total / total.sum())


@pytest.mark.parametrize("positive", [UNSURE, CERTAIN], ids=["unsure", "certain"])
@pytest.mark.parametrize("pairs", ["sorted", "labelled"])
def test_comparisons_meet_the_supervised_risk_in_expectation(pairs: str, positive: Tensor) -> None:
    parts = comparison_parts(compared(pairs, positive), comparison_weights(prior_of(positive), pairs))
    assert float(sum(parts)) == pytest.approx(supervised_risk(positive), abs=1e-10)
    swapped = comparison_weights(prior_of(positive), "labelled" if pairs == "sorted" else "sorted")
    other = float(sum(comparison_parts(compared(pairs, positive), swapped)))
    assert abs(other - supervised_risk(positive)) > 0.01  # how pairs come about matters
    positives = float((SHARES * positive * positive_loss(SCORES)).sum())
    assert float(parts[0]) == pytest.approx(positives, abs=1e-10)  # each part is one class's risk, so never negative


@pytest.mark.parametrize("positive", [UNSURE, CERTAIN], ids=["unsure", "certain"])
def test_similar_pairs_meet_the_supervised_risk_in_expectation(positive: Tensor) -> None:
    drawn = every_pair(positive)
    similar = (drawn.first_label == drawn.second_label).double()
    charged = similar_losses(SCORES[drawn.first], SCORES[drawn.second], similar, prior_of(positive))
    assert float((drawn.chance * charged).sum()) == pytest.approx(supervised_risk(positive), abs=1e-10)


def confident_pairs() -> tuple[PairScores, Tensor, Tensor]:
    """All pairs of instances with their probability; positives' probabilities of first and second."""
    first, second = torch.tensor(list(itertools.product(range(3), range(3)))).T
    pairs = PairScores(SCORES[first], SCORES[second], SHARES[first] * SHARES[second])
    return pairs, UNSURE[first], UNSURE[second]


@pytest.mark.parametrize("parts", [similarity_parts, similarity_member_parts])
def test_similarity_confidences_meet_the_supervised_risk_in_expectation(parts) -> None:  # type: ignore[no-untyped-def]
    pairs, one, two = confident_pairs()
    found = parts(pairs, one * two + (1 - one) * (1 - two), prior_of(UNSURE))
    assert float(sum(found)) == pytest.approx(supervised_risk(UNSURE), abs=1e-10)
    assert all(float(part) > 0 for part in found)


def test_confidence_differences_meet_the_supervised_risk_in_expectation() -> None:
    pairs, one, two = confident_pairs()
    found = difference_parts(pairs, two - one, prior_of(UNSURE))
    assert float(sum(found)) == pytest.approx(supervised_risk(UNSURE), abs=1e-10)
    assert all(float(part) > 0 for part in found)
    turned = difference_parts(pairs, one - two, prior_of(UNSURE))  # the sign read the other way round is wrong
    assert abs(float(sum(turned)) - supervised_risk(UNSURE)) > 0.05


def test_corrections_by_hand() -> None:
    parts = [torch.tensor(2.0), torch.tensor(-0.5)]
    assert [float(corrected(parts, how)) for how in ("none", "relu", "abs")] == [1.5, 2.0, 2.5]
    risk = pc_unbiased_risk(torch.zeros(3), torch.zeros(3), 0.3)
    assert float(risk) == pytest.approx(0.6931472, abs=1e-6)  # f = 0 costs log 2 whatever the label


@pytest.mark.parametrize("pairs", ["sorted", "labelled"])
def test_pruned_pairs_meet_the_supervised_risk_once_the_order_is_right(pairs: str) -> None:
    drawn = every_pair(CERTAIN)
    prior = prior_of(CERTAIN)
    scores = compared(pairs, CERTAIN)
    copies = 2 if pairs == "sorted" else 1
    labels = torch.stack([drawn.first_label, drawn.second_label])
    first = torch.cat([labels[0], labels[1]][:copies])
    second = torch.cat([labels[1], labels[0]][:copies])
    pruning = pruning_of(prior, pairs)
    found = pruned_risk(scores, first == 1, second == 0, pruning)
    assert float(found) == pytest.approx(supervised_risk(CERTAIN), abs=1e-10)
    assert float((scores.weight * (first == 0)).sum()) == pytest.approx(pruning.first, abs=1e-12)
    assert float((scores.weight * (second == 1)).sum()) == pytest.approx(pruning.second, abs=1e-12)


def test_the_worst_fits_are_pruned() -> None:
    fit = torch.tensor([0.3, -2.0, 1.0, 0.1, 5.0, -9.0])
    counts = torch.tensor([True, True, True, True, True, False])
    assert kept(fit, 0.4, counts).tolist() == [True, False, True, False, True, False]
    run = pair_run("pair_comparison", "rank_pruning", prior=PRIOR)
    objective = run.objective
    assert isinstance(objective, RankPruning)
    run.run_epoch()
    assert bool(objective.keep_first.all())  # an untrained network is not asked
    run.run_epoch()
    left_out = 1 - float(objective.keep_first.float().mean())
    assert left_out == pytest.approx((1 - PRIOR) ** 2, abs=0.02)


@pytest.mark.parametrize("method", ["pc_unbiased", "pc_abs", "rank_pruning"])
def test_a_pair_told_the_other_way_round_is_the_same_pair(method: str) -> None:
    objective = pair_run("pair_comparison", method, prior=PRIOR).objective
    weak = pair_digits("pair_comparison")[2]
    one, other = int(weak.argmax()), int(weak.argmin())  # a pair with each answer
    logits = random_logits(6, 2, seed=9).float()
    step = step_of([2])._replace(rows=torch.zeros(4, dtype=torch.long))
    told = [
        objective(inputs_of(x, x, step._replace(bags=torch.tensor([bag, 0]))))
        for bag, x in (
            (one, logits[[0, 1, 2, 3]]),
            (other, logits[[1, 0, 2, 3]]),
        )
    ]
    assert torch.allclose(told[0], told[1]) and bool(told[0].isfinite())


def test_both_names_of_the_absolute_correction_are_one_method() -> None:
    logits = random_logits(10, 2, seed=3).float()
    step = step_of([2, 2, 2, 2])
    loss = {
        name: float(
            pair_run("similarity_confidence", name, prior=PRIOR, bound=0).objective(inputs_of(logits, logits, step))
        )
        for name in ("sc_unbiased", "sc_relu", "sc_abs", "sc_nn_abs")
    }
    assert loss["sc_nn_abs"] == loss["sc_abs"]
    assert loss["sc_relu"] == pytest.approx((loss["sc_unbiased"] + loss["sc_abs"]) / 2, rel=1e-5)  # x / 2 + |x| / 2


@pytest.mark.parametrize(
    ("setting", "method"),
    [
        ("pair_comparison", "pc_unbiased"),
        ("pair_similarity", "risk_sd"),
        ("similarity_confidence", "sc_unbiased"),
        ("confidence_difference", "cd_unbiased"),
    ],
)
def test_an_uncorrected_risk_does_not_pull_at_scores_without_end(setting: str, method: str) -> None:
    """Far out its slope is gone; without a bound it stays, and a network follows it to infinity."""

    def slope(bound: float) -> float:
        views = [(1e3 * random_logits(10, 2, seed).float()).requires_grad_() for seed in (3, 4)]
        run = pair_run(setting, method, prior=PRIOR, bound=bound)
        loss = run.objective(inputs_of(views[0], views[1], step_of([2, 2, 2, 2])))
        return float(torch.autograd.grad(loss, views)[0].abs().max())

    assert slope(0.0) > 1e-3 and slope(10.0) < 1e-6


@pytest.mark.parametrize(("setting", "method"), [("pair_similarity", "risk_sd"), ("similarity_confidence", "sc_abs")])
def test_a_prior_close_to_a_half_does_not_lengthen_the_steps(setting: str, method: str) -> None:
    """The risks are divided by 2 prior - 1, and SGD would take their scale for the length of its steps."""

    def slope(prior: float) -> float:
        views = [random_logits(10, 2, seed).float().requires_grad_() for seed in (3, 4)]
        loss = pair_run(setting, method, prior=prior).objective(inputs_of(views[0], views[1], step_of([2, 2, 2, 2])))
        return float(torch.autograd.grad(loss, views)[0].abs().max())

    assert slope(0.49) < 2 * slope(PRIOR)


@pytest.mark.parametrize("method", ["gbm", "glws"])
def test_ordered_pairs_keep_the_share_of_positives(method: str) -> None:
    run = pair_run("pair_comparison", method, QUICK.replace(epochs=12, own=True))
    assert pair_accuracy(run) > 0.9
    share = float(run.predict(pair_digits("pair_comparison")[1])[:, 1].mean())
    assert share == pytest.approx(PRIOR, abs=0.08)  # which comparisons alone do not say


def test_what_a_pair_method_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match=r"pc_unbiased needs the share of positives; expected prior=.*gbm"):
        pair_run("pair_comparison", "pc_unbiased")
    with pytest.raises(InputError, match="other than 1/2"):
        pair_run("similarity_confidence", "sc_abs", prior=0.5)
    with pytest.raises(InputError, match="other than 1/2"):
        pair_run("pair_similarity", "risk_sd", prior=0.5)


METHODS = {
    "pair_comparison": ("pc_unbiased", "pc_relu", "pc_abs", "pc_teacher", "rank_pruning", "gbm", "glws"),
    "pair_similarity": ("risk_sd",),
    "similarity_confidence": ("sc_unbiased", "sc_relu", "sc_abs", "sc_nn_abs", "glws"),
    "confidence_difference": ("cd_unbiased", "cd_relu", "cd_abs", "glws"),
}


@pytest.mark.parametrize(("kind", "method"), [(kind, name) for kind, names in METHODS.items() for name in names])
def test_pair_methods_learn_unseen_digits(kind: str, method: str) -> None:
    accuracy = pair_accuracy(pair_run(kind, method, QUICK.replace(own=kind == "pair_comparison"), prior=PRIOR))
    assert accuracy > 0.85, accuracy  # chance is .5
