"""Whole steps of LLP-VAT and attention MIL against plain loops: the weight of steadiness, and what is pooled."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.methods import objective_of
from fastbus.methods.aggregation import AttentionMIL
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun
from method_steps import inputs_of, random_logits, sigmoid, softmax, step_of
from test_image_run import QUICK, digits

SIZES = [2, 3, 1]
RECIPE = QUICK.replace(weak=1.0, strong=3.0)


def bag_run(rule: Supervision, method: str, weak: Tensor, classes: int) -> ImageRun:
    """A run on six digits in bags of two, three and one."""
    make, sizes = objective_of(method), torch.tensor(SIZES)
    return ImageRun(rule, digits()[0][:6], sizes, weak, num_classes=classes, recipe=RECIPE, flip=False, objective=make)


@pytest.mark.parametrize(("progress", "weight"), [(0.2, 0.05 * math.exp(-1.25)), (0.7, 0.05)])
def test_a_step_of_llp_vat_by_hand(progress: float, weight: float) -> None:
    """From even guesses of two classes both directions across are the worst, and the step along them is known."""
    run = bag_run(fastbus.LabelProportion(), "llp_vat", torch.tensor([[1, 1], [2, 1], [0, 1]]), 2)
    run.objective.start_epoch(run)
    weak, strong = torch.full((6, 2), 0.4), random_logits(6, 2, seed=1).float()
    found = float(run.objective(inputs_of(weak, strong, step_of(SIZES)._replace(rows=torch.arange(6)), progress)))
    shares = [[1 / 2, 1 / 2], [2 / 3, 1 / 3], [0, 1]]
    p = softmax(strong)
    means = [p[0:2].mean(0), p[2:5].mean(0), p[5]]
    known = np.mean([-(np.array(share) * np.log(mean)).sum() for share, mean in zip(shares, means, strict=True)])
    radius = 6 * math.sqrt(2 / 3072)  # images of two numbers here, of 3 x 32 x 32 there
    s = float(sigmoid(np.array(radius * math.sqrt(2))))  # the two logits part by root 2 times the length
    steady = -math.log(4 * s * (1 - s)) / 2
    assert found == pytest.approx((math.log(2) + 3 * known) / 4 + weight * steady, rel=3e-6)
    assert weight * steady > 1e-5 * found  # so that it would be missed


@pytest.mark.parametrize("method", ["attention_mil", "gated_attention_mil"])
@pytest.mark.parametrize("classes", [2, 10])
def test_a_step_of_attention_pools_features_as_the_paper_does(method: str, classes: int) -> None:
    """a_k = softmax_k w tanh(V h_k), gated by sigm(U h_k); the bag is sum_k a_k h_k, which the last layer scores."""
    seen = torch.tensor([1, 0, 1]) if classes == 2 else (random_logits(3, 10, seed=3) > 0).long()
    run = bag_run(fastbus.MultiInstance(), method, seen, classes)
    objective = run.objective
    assert isinstance(objective, AttentionMIL) and run.num_features is not None
    features = [random_logits(6, run.num_features, seed, scale=1.0).float() for seed in (0, 1)]
    last, bias = random_logits(run.num_features, classes, 5, scale=0.2).float(), random_logits(1, classes, 6).float()
    inputs = inputs_of(*features, step_of(SIZES)._replace(rows=torch.arange(6)))
    found = float(objective(inputs._replace(classify=lambda x: x @ last + bias)).detach())

    v, heads = (objective.learned[f"attention.{name}"].detach().double().numpy() for name in ("hidden", "heads"))
    assert ("attention.gate" in objective.learned) == (method == "gated_attention_mil")
    losses = []
    for view in features:
        bags = view.double().split(SIZES)
        total = 0.0
        for h, label in zip(bags, seen.reshape(3, -1).tolist(), strict=True):
            h = h.numpy()
            hidden = np.tanh(h @ v)
            if method == "gated_attention_mil":
                hidden = hidden * sigmoid(h @ objective.learned["attention.gate"].detach().double().numpy())
            for c, there in enumerate(label):
                pooled = softmax((hidden @ heads[:, c])[None])[0] @ h  # each class has attention of its own
                scores = (pooled @ last.double().numpy() + bias.double().numpy())[0]
                f = scores[c] if classes > 2 else scores[1] - scores[0]
                total -= np.log(sigmoid(f if there else -f))
        losses.append(total / 3)
    assert found == pytest.approx((losses[0] + 3 * losses[1]) / 4, rel=1e-4)
