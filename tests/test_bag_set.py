"""Sets of bags and options of training: what a batch holds, whose weight counts, and what is refused."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from digit_bags import LABELS, ROWS, counting_loss, mlp, positive_unlabeled, proportions, uneven, weights_of
from fastbus.errors import InputError, SupervisionError
from fastbus.objective import WeakLoss
from fastbus.supervision import (
    LabelProportion,
    PositiveUnlabeled,
    SemiSupervised,
    SimilarDissimilarUnlabeled,
    UnlabeledUnlabeled,
)
from fastbus.training.bag_set import BagSet
from fastbus.training.config import TrainConfig
from fastbus.training.fit import train
from fastbus.training.views import build_views

SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 2, "momentum": 0.0}


# -- batches -------------------------------------------------------------------------------------


def test_a_batch_holds_whole_bags_in_the_order_asked_for() -> None:
    data = uneven([2, 5, 1, 4])
    batch = data.batch(torch.tensor([3, 0]))
    assert torch.equal(batch.instances, torch.cat([ROWS[8:12], ROWS[:2]]))
    assert batch.sizes.tolist() == [4, 2]
    assert torch.equal(batch.weak, data.weak[[3, 0]])
    assert batch.bag_weights.tolist() == [1, 1] and batch.sample_weights.tolist() == [1] * 6


def test_weights_of_a_batch() -> None:
    data = replace(uneven([2, 1, 2]), bag_weights=torch.tensor([1.0, 2.0, 3.0]), sample_weights=torch.arange(5.0))
    batch = data.batch(torch.tensor([2, 0]), torch.tensor([1.0, 0.0]))
    assert batch.bag_weights.tolist() == [3, 0] and batch.sample_weights.tolist() == [3, 4, 0, 1]
    part = data.subset(torch.tensor([2, 1]))
    assert part.bag_weights is not None and part.bag_weights.tolist() == [3, 2]
    assert part.sample_weights is not None and part.sample_weights.tolist() == [3, 4, 2]
    assert torch.equal(part.instances, ROWS[[3, 4, 2]]) and torch.equal(part.weak, data.weak[[2, 1]])


def test_combinations_follow_the_level_of_each_part() -> None:
    counts, gold = proportions(4, 3).weak, torch.where(torch.arange(12) % 2 == 0, LABELS[:12], -1)
    data = BagSet(LabelProportion() & SemiSupervised(), ROWS[:12], torch.full((4,), 3), (counts, gold))
    batch = data.batch(torch.tensor([2]))
    assert torch.equal(batch.weak[0], counts[2:3]) and torch.equal(batch.weak[1], gold[6:9])
    both = WeakLoss(data.supervision)
    result = train(mlp(), both, data, TrainConfig(epochs=3), trainer_options={"accelerator": "cpu"})
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_unlabelled_and_positive_instances_are_drawn_as_one_set() -> None:
    data = positive_unlabeled(20, 4)
    weights = torch.linspace(0, 1, 20)
    bags = torch.tensor([7, 0, 3])
    batch = replace(data, bag_weights=weights, sample_weights=weights + 1).batch(bags)
    assert batch.sizes.tolist() == [3] and torch.equal(batch.instances, ROWS[bags])
    assert torch.equal(batch.weak, data.weak[bags]) and batch.bag_weights.tolist() == [1]
    assert torch.allclose(batch.sample_weights, (weights * (weights + 1))[bags].double())


def test_instances_of_several_sets_are_grouped_by_set() -> None:
    index = torch.tensor([0, 1, 1, 0, 2, 1])
    data = BagSet(UnlabeledUnlabeled(priors=(0.1, 0.5, 0.9)), ROWS[:6], torch.ones(6, dtype=torch.long), index)
    batch = data.batch(torch.tensor([5, 3, 1, 0]))
    assert batch.weak.tolist() == [0, 1] and batch.sizes.tolist() == [2, 2]
    assert torch.equal(batch.instances, ROWS[[3, 0, 5, 1]])


@pytest.mark.parametrize("queue", [0, 32])
def test_sets_of_known_prior_train(queue: int) -> None:
    index = (LABELS[:200] % 2 == 0).long()
    data = BagSet(UnlabeledUnlabeled(priors=(0.05, 0.95)), ROWS[:200], torch.ones(200, dtype=torch.long), index)
    config = TrainConfig(epochs=10, max_bags=50, learning_rate=0.01)
    loss = WeakLoss(data.supervision, queue=queue)
    result = train(mlp(2), loss, data, config, held_out=data, trainer_options={"accelerator": "cpu"})
    assert result.history[-1]["held_out"] < result.history[0]["held_out"]
    with torch.no_grad():
        right = result.network(ROWS[200:]).argmax(-1) == (LABELS[200:] % 2 == 0)
    assert float(right.float().mean()) > 0.75


# -- weights in training -------------------------------------------------------------------------


def trained(data: BagSet, outputs: int = 10) -> Tensor:
    loss = WeakLoss(data.supervision)
    result = train(mlp(outputs), loss, data, TrainConfig(**SGD), trainer_options={"accelerator": "cpu"})
    return weights_of(result.network)


def far(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def test_bags_of_weight_0_are_not_there() -> None:
    data, weights = proportions(8), torch.tensor([1.0, 0, 2, 2, 0, 1, 1, 1])
    kept = torch.nonzero(weights).flatten()
    weighted = trained(replace(data, bag_weights=weights))
    assert far(weighted, trained(replace(data, bag_weights=weights).subset(kept))) < 1e-6
    assert far(weighted, trained(data.subset(kept))) > 1e-5  # the twos count twice
    twice = torch.tensor([0, 2, 2, 3, 3, 5, 6, 7])
    assert far(weighted, trained(data.subset(twice))) < 1e-6


def test_instances_weigh_what_they_are_given() -> None:
    data = proportions(8)
    ones, bags = torch.ones(40), torch.arange(8.0)
    assert far(trained(replace(data, sample_weights=3 * ones)), trained(data)) < 1e-6
    by_row, by_bag = bags.repeat_interleave(5), replace(data, bag_weights=bags)
    assert far(trained(replace(data, sample_weights=by_row)), trained(by_bag)) < 1e-6
    assert far(trained(by_bag), trained(data)) > 1e-5


def test_sets_weigh_instances_by_both_weights() -> None:
    data, weights = positive_unlabeled(40, 10), torch.linspace(0, 2, 40)
    by_bag, by_row = (trained(replace(data, **{name: weights}), 2) for name in ("bag_weights", "sample_weights"))
    assert torch.equal(by_bag, by_row) and far(by_bag, trained(data, 2)) > 1e-5


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weak": torch.zeros(3, 10)}, "3 weak labels; expected 4, one for each of the bags"),
        ({"sizes": torch.tensor([1, 2, 3, 4])}, "bags of 10 instances in all.* expected 20"),
        ({"sizes": torch.tensor([0, 10, 5, 5])}, "the smallest of 0.* leave empty bags out"),
        ({"bag_weights": torch.ones(3)}, r"bag_weights of shape \(3,\); expected \(4,\)"),
        ({"sample_weights": torch.ones(20, 1)}, r"sample_weights of shape \(20, 1\); expected \(20,\)"),
        ({"sizes": torch.zeros(0).long(), "weak": torch.zeros(0, 10), "instances": ROWS[:0]}, "a set without bags"),
    ],
)
def test_sets_that_do_not_fit_together_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(proportions(4), **change)


def test_two_groupings_at_once_are_refused() -> None:
    ones = torch.ones(4, dtype=torch.long)
    mixed = LabelProportion() & PositiveUnlabeled(prior=0.5)
    with pytest.raises(SupervisionError, match="expected one grouping"):
        BagSet(mixed, ROWS[:4], ones, (ones, ones))
    with pytest.raises(SupervisionError, match="Train with WeakLoss"):
        BagSet(SimilarDissimilarUnlabeled(prior=0.3), ROWS[:4], ones, ones)


def test_the_fingerprint_tells_sets_apart() -> None:
    data = proportions(4)
    others = [
        proportions(4, start=20),
        replace(data, bag_weights=torch.ones(4)),
        replace(data, weak=data.weak.flip(0)),
        data.subset(torch.arange(3)),
        uneven([5, 5, 5, 5]),
    ]
    assert proportions(4).fingerprint() == data.fingerprint()
    assert all(other.fingerprint() != data.fingerprint() for other in others)


WRONG: list[tuple[str, Any]] = [
    *((name, value) for name in ("epochs", "max_bags", "max_instances", "accumulate") for value in (0, -1, 1.5, "3")),
    *((name, value) for name in ("warmup", "patience", "seed") for value in (-1, 0.5, None, True)),
    *(("learning_rate", value) for value in (0, -1.0, float("nan"), float("inf"), "fast", True)),
    *((name, value) for name in ("weight_decay", "clip") for value in (-0.1, float("nan"), float("inf"), "x")),
    *((name, value) for name in ("ema", "momentum", "held_out") for value in (-0.1, 1, 1.5, float("nan"), "x")),
    *((name, value) for name in ("optimizer", "schedule", "teacher", "precision") for value in ("other", 16, None)),
    ("views", "strong"),
    ("teacher", "average"),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=lambda part: str(part))
def test_options_out_of_range_are_refused_with_a_cure(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name) as caught:
        TrainConfig(**{name: value})
    message = str(caught.value)
    assert "; expected " in message and ". Pass " in message and "\n" not in message


def test_every_option_is_a_plain_value() -> None:
    config = TrainConfig(ema=0.9, teacher="average", clip=1)
    assert TrainConfig(**config.as_dict()) == config
    assert {type(value) for value in config.as_dict().values()} <= {int, float, str, bool}
    assert {field.name for field in fields(TrainConfig)} == set(config.as_dict())


@pytest.mark.parametrize(
    ("options", "loss", "message"),
    [
        ({"patience": 3}, {}, "patience=3 without held-out bags.* held_out=0.1"),
        ({"views": True}, {}, "views=True without views.* Pass views=build_views"),
        ({"ema": 0.9, "teacher": "average"}, {"likelihood": 1.0}, 'teacher="average" with .* Pass teacher="online"'),
        ({"ema": 0.9, "teacher": "average"}, {"mode": "joint"}, 'teacher="average" with mode=.joint'),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], loss: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(mlp(), counting_loss(**loss), proportions(4), TrainConfig(**options))


def test_views_of_another_shape_are_refused() -> None:
    views = build_views("table", (63,))
    with pytest.raises(InputError, match=r"expected \(N, 63\)"):
        train(
            mlp(), counting_loss(), proportions(4), TrainConfig(epochs=1), views=views,
            trainer_options={"accelerator": "cpu"},
        )  # fmt: skip
