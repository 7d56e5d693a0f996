"""Methods for bags: proportions, virtual adversaries and attention against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from digit_runs import method_digits, method_run, unseen_accuracy
from fastbus.methods import objective_of
from fastbus.methods.adversarial import virtual_adversarial_loss
from fastbus.methods.aggregation import AttentionMIL, pooled, proportion_loss, sigmoid_ramp
from fastbus.training.image_run import ImageRun
from method_steps import random_logits
from test_image_run import QUICK


def test_the_proportion_loss_by_hand() -> None:
    p = torch.tensor([[[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]], [[0.1, 0.9], [0.5, 0.5], [0.5, 0.5]]])
    inside = torch.tensor([[True, True, False], [True, False, False]])
    shares = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    found = proportion_loss(p.log(), inside, shares)
    assert found.tolist() == pytest.approx([-0.5 * math.log(0.4) - 0.5 * math.log(0.6), -math.log(0.9)], rel=1e-6)
    logits = p.log().requires_grad_()
    empty = proportion_loss(logits, torch.zeros_like(inside), torch.zeros_like(shares))
    assert not bool(empty.any()) and not bool(torch.autograd.grad(empty.sum(), logits)[0].any())


def test_the_worst_direction_of_a_linear_classifier_is_known() -> None:
    weights = random_logits(6, 2, seed=4, scale=0.3).float()

    def network(x: Tensor) -> Tensor:
        return x.flatten(1) @ weights

    x = random_logits(5, 6, seed=5).float()
    found = virtual_adversarial_loss(network, x, network(x), torch.Generator().manual_seed(0), radius=0.5, probe=1e-2)
    # two classes: only the difference of the scores matters, so that the worst step is along its gradient
    normal = weights[:, 1] - weights[:, 0]
    either = []
    for sign in (-1.0, 1.0):
        moved = network(x + sign * 0.5 * normal / normal.norm())
        log_p = network(x).log_softmax(1)
        either.append((log_p.exp() * (log_p - moved.log_softmax(1))).sum(1))
    low, high = torch.minimum(*either).mean(), torch.maximum(*either).mean()
    assert float(low) - 1e-5 <= float(found) <= float(high) + 1e-5
    random = x + 0.5 * torch.nn.functional.normalize(random_logits(5, 6, seed=6).float(), dim=1)
    log_p = network(x).log_softmax(1)
    by_chance = (log_p.exp() * (log_p - network(random).log_softmax(1))).sum(1).mean()
    assert float(found) > float(by_chance)


def test_disturbed_images_leave_the_running_statistics_alone() -> None:
    rule, images, sizes, weak, _, classes = method_digits("label_proportion")
    statistics = []
    for method in ("llp_vat", "gbm"):  # both pass both views once; one of them disturbs them, too
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))
        make = objective_of(method)
        run = ImageRun(
            rule, images, sizes, weak, num_classes=classes, recipe=QUICK, flip=False, network=network, objective=make
        )
        run.objective.start_epoch(run)
        run.training.load(run._pack(0))
        run.training.run(1)
        statistics.append(next(x for name, x in run.training.network.named_buffers() if name.endswith("running_mean")))
    assert torch.equal(statistics[0], statistics[1]) and bool(statistics[0].any())


def test_the_ramp_rises_to_one() -> None:
    ramp = [float(sigmoid_ramp(torch.tensor(t), 0.4)) for t in (0.0, 0.2, 0.4, 1.0)]
    assert ramp == pytest.approx([math.exp(-5), math.exp(-1.25), 1.0, 1.0], rel=1e-6)


def test_attention_pools_scores_of_a_bag_alone() -> None:
    scores = torch.tensor([[[1.0], [3.0], [100.0]], [[2.0], [7.0], [7.0]]])
    attention = torch.tensor([[[0.0], [math.log(3.0)], [9.0]], [[5.0], [0.0], [0.0]]])
    inside = torch.tensor([[True, True, False], [True, False, False]])
    assert pooled(scores, attention, inside)[:, 0].tolist() == pytest.approx([0.25 * 1 + 0.75 * 3, 2.0])
    none = pooled(scores, attention, torch.zeros_like(inside))
    assert bool(none.isfinite().all())  # no bag: any number, never NaN


def test_gated_attention_by_hand() -> None:
    run = method_run("multi_instance", "gated_attention_mil")
    objective = run.objective
    assert isinstance(objective, AttentionMIL)
    features = random_logits(3, int(run.num_features or 0), seed=7).float()
    hidden, gate, heads = (objective.learned[f"attention.{name}"].detach() for name in ("hidden", "gate", "heads"))
    expected = np.tanh((features @ hidden).numpy()) / (1 + np.exp(-(features @ gate).numpy())) @ heads.numpy()
    assert np.abs(objective.attention(features).detach().numpy() - expected).max() < 1e-4
    before = heads.clone()
    run.run_epoch()
    assert not torch.equal(before, objective.learned["attention.heads"])  # it learns beside the network
    assert set(run.state_dict()["tensors"]) >= {"learned.attention.hidden", "learned.attention.gate"}


@pytest.mark.parametrize(
    ("kind", "method", "epochs", "floor"),
    [
        ("label_proportion", "llp_vat", 6, 0.6),
        ("multi_instance", "attention_mil", 11, 0.6),
        ("multi_instance", "gated_attention_mil", 11, 0.7),
    ],
)
def test_methods_for_bags_learn_unseen_digits(kind: str, method: str, epochs: int, floor: float) -> None:
    run: ImageRun = method_run(kind, method, QUICK.replace(epochs=epochs))
    accuracy = unseen_accuracy(run, kind)
    assert accuracy > floor, accuracy
