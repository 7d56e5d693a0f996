"""Partial labels: what CC, PRODEN, RCR, LWS and PiCO claim, by enumeration or by hand, and that they learn."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import fastbus
from baselines import better_than_majority
from digit_runs import method_run, unseen_accuracy
from fastbus.errors import InputError, WeakLabelError
from fastbus.methods import imperfect_partial as partial
from fastbus.methods import imperfect_pico as pico
from fastbus.methods import objective_of
from fastbus.oracle import enumerate_posterior
from fastbus.training.image_run import ImageRun
from tensors import close
from test_image_run import QUICK, digits, weak_digits

C = 4
SETS = torch.tensor([s for s in product([False, True], repeat=C) if any(s) and not all(s)])  # (14, C)


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def test_cc_and_prodens_confidences_equal_enumeration() -> None:
    logits = logits_of(len(SETS))
    oracle = enumerate_posterior(fastbus.PartialLabel(), logits[:, None].numpy(), SETS[:, None].long().numpy())
    close(partial.cc_loss(logits, SETS), -torch.as_tensor(np.asarray(oracle.log_likelihood, dtype=float)))
    expected = torch.as_tensor(np.asarray(oracle.labels, dtype=float))[:, 0]
    close(partial.restricted(logits, SETS), expected)


def test_confidences_of_the_true_posterior_make_the_risk_supervised() -> None:
    # candidate sets drawn uniformly among those that hold the true class: P(S | y) = 1 / (2^(C-1) - 1) for y in S
    truth = logits_of(1, seed=1).softmax(1)  # P(y | x)
    predicted = logits_of(1, seed=2)
    losses = -torch.log_softmax(predicted, 1)
    chance = (SETS * truth).sum(1) / (2 ** (C - 1) - 1)  # P(S | x)
    assert abs(float(chance.sum()) - 1) < 1e-12
    confidence = partial.restricted(truth.log().expand(len(SETS), C), SETS)
    risk = (chance * partial.soft_cross_entropy(predicted.expand(len(SETS), C), confidence)).sum()
    assert abs(float(risk - (truth * losses).sum())) < 1e-10


@pytest.mark.parametrize("true_class", range(C))
def test_leveraged_loss_is_a_supervised_one_in_expectation(true_class: int) -> None:
    # each wrong class is a candidate with probability 1/2: with beta 2 and the sigmoid loss,
    # E = w_y s(f_y) + sum_{z != y} w_z (1 + s(-f_z)) / 2, where s(f) + s(-f) = 1
    logits = logits_of(1, seed=3)
    weights = logits_of(1, seed=4).softmax(1)
    holding = torch.tensor([s for s in product([False, True], repeat=C) if s[true_class]])
    many = len(holding)
    loss = partial.leveraged_loss(logits.expand(many, C), holding, weights.expand(many, C), 2.0, "sigmoid")
    other = torch.arange(C) != true_class
    expected = weights * torch.where(other, (1 + torch.sigmoid(logits)) / 2, torch.sigmoid(-logits))
    assert abs(float(loss.mean() - expected.sum())) < 1e-10


def test_leveraged_cross_entropy_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    weights = torch.tensor([[0.6, 0.4, 1.0]], dtype=torch.float64)
    loss = partial.leveraged_loss(p.log(), torch.tensor([[True, True, False]]), weights, 2.0, "cross_entropy")
    assert float(loss) == pytest.approx(-0.6 * np.log(0.5) - 0.4 * np.log(0.3) - 2 * np.log(0.8), abs=1e-10)


def test_rcrs_parts_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    q = torch.tensor([[0.2, 0.6, 0.2]], dtype=torch.float64)
    candidates = torch.tensor([[True, True, False]])
    assert float(partial.excluded_loss(p.log(), candidates)) == pytest.approx(-np.log(0.8), abs=1e-10)
    first, second = np.sqrt(0.5 * 0.2), np.sqrt(0.3 * 0.6)
    found = partial.geometric_confidence((p.log(), q.log()), candidates)
    close(found, torch.tensor([[first, second, 0.0]], dtype=torch.float64) / (first + second))


def test_prototypes_move_row_after_row() -> None:
    source = torch.Generator().manual_seed(5)
    embeddings = torch.nn.functional.normalize(torch.randn(6, 3, generator=source), dim=1)
    start = torch.nn.functional.normalize(torch.randn(2, 3, generator=source), dim=1)
    labels, real = torch.tensor([0, 1, 0, 0, 1, 1]), torch.tensor([True, True, True, True, True, False])
    expected = start.clone()
    for row in range(5):
        expected[labels[row]] = 0.9 * expected[labels[row]] + 0.1 * embeddings[row]
    expected = expected / expected.norm(dim=1, keepdim=True)
    close(pico.moved_prototypes(start, embeddings, labels, real, 0.9), expected, 1e-6)


def test_contrast_is_the_mean_log_softmax_of_the_positives() -> None:
    query = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    bank = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [-1.0, 0.0]], dtype=torch.float64)
    positive, allowed = torch.tensor([[True, True, True, False]]), torch.tensor([[False, True, True, True]])
    weight = np.exp(np.array([0.0, 0.6, -1.0]) / 0.5)
    expected = -np.mean(np.log(weight[:2] / weight.sum()))  # the query itself is no member
    assert float(pico.contrastive_loss(query, bank, positive, allowed, 0.5)) == pytest.approx(expected, abs=1e-10)


def test_confidences_stay_among_the_candidates() -> None:
    for method in ("proden", "rcr", "pico"):
        run = method_run("partial_label", method, QUICK.replace(epochs=2))
        run.run_epoch()
        run.run_epoch()
        confidence, candidates = run.objective.state()["confidence"], run.weak.bool()
        assert not bool(confidence[~candidates].any()) and torch.allclose(confidence.sum(1), torch.ones(1400))
        assert float(confidence.max(1).values.mean()) > float((1 / candidates.sum(1)).mean()) + 0.02, method


def test_pico_sees_a_network_without_features_by_its_logits() -> None:
    rule, images, sizes, weak, _, classes = weak_digits("partial_label")
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    recipe, make = QUICK.replace(epochs=1), objective_of("pico")
    run = ImageRun(rule, images, sizes, weak, num_classes=classes, recipe=recipe, network=network, objective=make)
    assert np.isfinite(run.run_epoch()["loss"])


# epochs, learning rate, floor: some ten points below what seed 0 reaches; chance is .1
SMOKE = {
    "cc": (6, 0.1, 0.8),
    "proden": (8, 0.1, 0.75),
    "rcr": (6, 0.1, 0.75),
    "lws": (8, 0.1, 0.8),
    "pico": (18, 0.2, 0.8),
}
OPTIONS: dict[str, dict[str, object]] = {"lws": {"loss": "cross_entropy", "beta": 2.0}}  # its own loss needs longer


@pytest.mark.parametrize("method", SMOKE)
def test_it_learns_unseen_digits(method: str) -> None:
    epochs, rate, floor = SMOKE[method]
    recipe = QUICK.replace(epochs=epochs, learning_rate=rate)
    run = method_run("partial_label", method, recipe, **OPTIONS.get(method, {}))
    assert unseen_accuracy(run, "partial_label") > floor


# classes excluded, epochs, learning rate, floor: some ten points below what seed 0 reaches; chance is .25
COMPLEMENTARY = {
    "cc": (None, 18, 0.1, 0.8),
    "proden": (None, 24, 0.1, 0.8),
    "rcr": (None, 12, 0.1, 0.8),
    "lws": (None, 12, 0.1, 0.8),
    "pico": (2, 24, 0.03, 0.8),  # of a single excluded class of so few digits it makes little
}


@pytest.mark.parametrize("method", COMPLEMENTARY)
def test_it_learns_from_classes_that_an_instance_is_not(method: str) -> None:
    excluded, epochs, rate, floor = COMPLEMENTARY[method]
    images, labels = digits()
    train, unseen = (part + np.flatnonzero(labels[part:][:1400] < 4) for part in (0, 1400))
    weak = fastbus.weaken("complementary_label", labels[train], num_classes=4, excluded=excluded, rng=0)
    recipe, make = QUICK.replace(epochs=epochs, learning_rate=rate), objective_of(method, **OPTIONS.get(method, {}))
    rule, one, x = fastbus.ComplementaryLabel(), torch.ones(len(train), dtype=torch.long), images[train]
    run = ImageRun(rule, x, one, torch.as_tensor(weak), num_classes=4, recipe=recipe, flip=False, objective=make)
    while not run.done:
        assert np.isfinite(run.run_epoch()["loss"])
    accuracy = better_than_majority(run.predict(images[unseen]).argmax(1).numpy(), labels[unseen])
    assert accuracy > floor, accuracy


def test_excluded_classes_are_candidates_turned_round() -> None:
    _, images, sizes, weak, _, _ = weak_digits("partial_label")
    runs = [
        ImageRun(rule, images, sizes, said, num_classes=10, recipe=QUICK, flip=False, objective=objective_of("cc"))
        for rule, said in ((fastbus.PartialLabel(), weak), (fastbus.ComplementaryLabel(), 1 - weak))
    ]
    assert torch.equal(runs[0].objective.candidates, runs[1].objective.candidates)


def test_a_run_with_contrast_goes_on_as_if_it_had_never_stopped() -> None:
    recipe = QUICK.replace(epochs=2)
    straight, broken = method_run("partial_label", "pico", recipe), method_run("partial_label", "pico", recipe)
    straight.run_epoch()
    broken.load_state_dict(straight.state_dict())
    assert straight.run_epoch()["loss"] == broken.run_epoch()["loss"]
    images = straight.training.images[:50]
    assert torch.equal(straight.predict(images), broken.predict(images))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="cc on noisy_label; expected weak labels of kind partial_label"):
        method_run("noisy_label", "cc")
    with pytest.raises(InputError, match="loss"):
        method_run("partial_label", "lws", loss="hinge")
    rule, images, sizes, weak, _, _ = weak_digits("partial_label")
    empty = weak.clone()
    empty[17] = 0
    with pytest.raises(WeakLabelError, match="17"):
        ImageRun(rule, images, sizes, empty, num_classes=10, recipe=QUICK, objective=objective_of("proden"))
