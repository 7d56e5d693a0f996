"""Consistency of instances without evidence: numbers worked by hand, and a checkpoint that holds all of it."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fastbus import WeakClassifier
from fastbus.errors import InputError
from fastbus.learner_defaults import consistency_weight
from fastbus.objective import WeakLoss
from fastbus.supervision import NoisyLabel, SemiSupervised
from fastbus.training.bag_set import BagSet
from fastbus.training.config import TrainConfig
from fastbus.training.consistency import Consistency, align, pseudo_targets
from fastbus.training.fit import train
from fastbus.training.views import build_views

torch.set_num_threads(1)


def same(value: Tensor) -> Tensor:
    return value


def logits_of(probs: list[list[float]]) -> Tensor:
    return torch.tensor(probs, dtype=torch.float64).log()


def test_alignment_by_hand() -> None:
    # (.6, .4) * (.5 / .8, .5 / .2) = (.375, 1.), normalised
    probs, known, predicted = (torch.tensor(x) for x in ([[0.6, 0.4]], [0.5, 0.5], [0.8, 0.2]))
    assert align(probs, known, predicted)[0].tolist() == pytest.approx([0.375 / 1.375, 1 / 1.375])
    assert align(probs, predicted, predicted)[0].tolist() == pytest.approx([0.6, 0.4])


def test_targets_by_hand() -> None:
    labels, sure = pseudo_targets(torch.tensor([[0.96, 0.04], [0.5, 0.5], [0.2, 0.8]]), 0.8, "softmax")
    assert labels.tolist() == [0, 0, 1] and sure.tolist() == [True, False, True]
    labels, sure = pseudo_targets(torch.tensor([[0.97, 0.3], [0.01, 0.5]]), 0.95, "sigmoid")
    assert labels.tolist() == [[1, 0], [0, 1]] and sure.tolist() == [[True, False], [True, False]]


def test_one_batch_by_hand() -> None:
    rule = Consistency(0.9, 0.0, "softmax")
    teacher = logits_of([[0.95, 0.05], [0.3, 0.7], [0.02, 0.98], [0.99, 0.01]])
    strong = logits_of([[0.5, 0.5], [0.5, 0.5], [0.75, 0.25], [0.1, 0.9]]).requires_grad_()
    # the last has evidence; of the three others the first and the third are sure
    informed = torch.tensor([[False] * 2] * 3 + [[True] * 2])
    weights = torch.tensor([1.0, 1.0, 2.0, 1.0])
    found = rule(teacher, strong, torch.full((4, 2), 0.5), informed, weights, same)
    share = 1 / 4  # weights of instances with evidence over those without
    assert found.total.item() == pytest.approx(share * (math.log(2) + 2 * math.log(4)))
    assert float(found.terms) == pytest.approx(share * 4)
    found.total.backward()
    assert strong.grad is not None and strong.grad[1].tolist() == strong.grad[3].tolist() == [0, 0]
    assert strong.grad[0].tolist() == pytest.approx([share * -0.5, share * 0.5])


def test_running_shares_by_hand() -> None:
    rule = Consistency(0.9, 0.75, "softmax")
    posterior, ones = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.ones(2)
    informed = torch.tensor([[True, True], [False, False]])
    first, second = logits_of([[0.5, 0.5], [0.6, 0.4]]), logits_of([[0.5, 0.5], [0.2, 0.8]])
    rule(first, first, posterior, informed, ones, same)
    assert rule.known.tolist() == [1, 0] and rule.predicted.tolist() == pytest.approx([0.6, 0.4])
    rule(second, second, posterior.flip(1), informed, ones, same)
    assert rule.known.tolist() == pytest.approx([0.75, 0.25])
    assert rule.predicted.tolist() == pytest.approx([0.75 * 0.6 + 0.25 * 0.2, 0.75 * 0.4 + 0.25 * 0.8])
    assert float(rule.informed) == float(rule.uninformed) == 2
    # (.2, .8) aligned to (.75, .25) / (.5, .5) is (.3, .4) / .7: no longer sure
    target, sure = pseudo_targets(align(second.exp(), rule.known, rule.predicted), 0.6, "softmax")
    assert target[1] == 1 and not sure[1]


def test_a_new_module_takes_the_shares_of_an_old_one() -> None:
    old, new = Consistency(0.9, 0.5, "softmax"), Consistency(0.9, 0.5, "softmax")
    logits = logits_of([[0.7, 0.3], [0.6, 0.4]])
    old(logits, logits, logits.exp(), torch.tensor([[True] * 2, [False] * 2]), torch.ones(2), same)
    new.load_state_dict(old.state_dict())
    assert torch.equal(new.known, old.known) and torch.equal(new.predicted, old.predicted) and len(new.known) == 2


def test_instances_with_evidence_take_no_part() -> None:
    rows, labels = load_digits(return_X_y=True)
    data = BagSet(
        SemiSupervised(), torch.from_numpy(rows[:60] / 16).float(), torch.ones(60).long(), torch.tensor(labels[:60])
    )
    results = []
    for weight in (0.0, 1.0):
        network = torch.nn.Linear(64, 10)
        torch.nn.init.zeros_(network.weight)
        torch.nn.init.zeros_(network.bias)
        config = TrainConfig(epochs=2, max_bags=20, consistency=weight, confidence=0.0)
        options = {"views": build_views("table", (64,)), "trainer_options": {"accelerator": "cpu"}}
        results.append(train(network, WeakLoss("semi_supervised"), data, config, **options).network.weight)
    assert torch.equal(*results)


def test_consistency_needs_views() -> None:
    data = BagSet(SemiSupervised(), torch.zeros(4, 2), torch.ones(4).long(), torch.tensor([0, 1, -1, -1]))
    with pytest.raises(InputError, match="consistency=1 without views"):
        train(torch.nn.Linear(2, 2), WeakLoss("semi_supervised"), data, TrainConfig(consistency=1.0))
    with pytest.raises(InputError, match=r"confidence=1\.5"):
        TrainConfig(confidence=1.5)


def test_where_it_is_on_by_default() -> None:
    some, every = torch.tensor([0, -1]), torch.tensor([0, 1])
    images, table, sizes = torch.zeros(2, 1, 8, 8), torch.zeros(2, 8), torch.ones(2).long()
    assert consistency_weight(None, BagSet(SemiSupervised(), images, sizes, some)) == 1
    assert consistency_weight(None, BagSet(SemiSupervised(), images, sizes, every)) == 0
    assert consistency_weight(None, BagSet(SemiSupervised(), table, sizes, some)) == 1
    assert consistency_weight(None, BagSet(SemiSupervised(), images[:, 0], sizes, some)) == 0  # no views of these
    assert consistency_weight(None, BagSet(NoisyLabel(rate=0.2), table, sizes, some)) == 0
    assert consistency_weight(0.5, BagSet(SemiSupervised(), table, sizes, some)) == 0.5


def test_unlabelled_rows_change_the_fit() -> None:
    rows, labels = load_digits(return_X_y=True)
    weak = np.where(np.arange(200) < 40, labels[:200], -1)
    options = {"epochs": 3, "random_state": 0, "consistency": 1.0, "train_options": {"confidence": 0.3}}
    with_them = WeakClassifier(**options).fit(rows[:200], weak)
    without = WeakClassifier(**options | {"consistency": 0.0, "views": True}).fit(rows[:200], weak)
    assert not np.allclose(with_them.predict_proba(rows[:50]), without.predict_proba(rows[:50]), atol=1e-3)
    binary = np.where(weak < 0, -1, weak % 2)
    sigmoid = WeakClassifier(head="sigmoid", **options).fit(rows[:200], binary)
    assert np.isfinite(sigmoid.predict_proba(rows[:50])).all()
