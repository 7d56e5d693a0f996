"""Whole steps of ELR and SOP+ against plain loops in float64: every term of the objective, with its weight and sign."""

import numpy as np
import pytest
import torch

from digit_runs import method_run
from fastbus.methods import imperfect_noisy as noisy
from method_steps import inputs_of, random_logits, single_rows, softmax, step_of
from test_image_run import QUICK


def test_two_steps_of_early_learning_by_hand() -> None:
    """Cross-entropy + 3 log(1 - <p, t>), t the running mean of the weak view's own predictions (CIFAR-10)."""
    labels = torch.tensor([2, 0, -1, 1, 0, 1])  # the third has none, the last two belong to no bag
    objective = noisy.EarlyLearning(labels, QUICK.replace(weak=1.0, strong=3.0), 3, 0.7, 3.0)
    step = step_of([1, 1, 1, 1])._replace(rows=torch.arange(6))
    target = np.zeros((6, 3))
    for seed in (0, 1):
        views = [random_logits(6, 3, seed=2 * seed + view).float() for view in (0, 1)]
        p = softmax(views[0])
        target = 0.7 * target + 0.3 * p
        found = []
        for logits in views:
            q = softmax(logits)
            entropy = -np.mean([np.log(q[row, labels[row]]) for row in (0, 1, 3)])
            found.append(entropy + 3 * np.mean([np.log(1 - q[row] @ target[row]) for row in range(4)]))
        expected = (found[0] + 3 * found[1]) / 4
        assert float(objective(inputs_of(*views, step))) == pytest.approx(expected, rel=1e-3)  # p is kept off 0 and 1


def test_early_learning_holds_predictions_to_their_past() -> None:
    """The gradient of the regulariser raises the class that the past favours, where cross-entropy says nothing."""
    objective = noisy.EarlyLearning(torch.tensor([-1]), QUICK, 2, 0.0, 3.0)
    weak = torch.tensor([[1.0, 0.0]])
    strong = torch.zeros(1, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(objective(inputs_of(weak, strong, single_rows(torch.tensor([0])))), strong)
    t = softmax(weak)[0]
    # d/df_0 of 3 log(1 - t_0 s - t_1 (1 - s)) / 2 at s = 1/2, where ds/df_0 = 1/4
    assert slope[0].tolist() == pytest.approx([-3 * (t[0] - t[1]) / 4, 3 * (t[0] - t[1]) / 4], rel=1e-5)


def test_a_step_of_sparse_noise_with_consistency_and_balance_by_hand() -> None:
    run = method_run("noisy_label", "sop")
    objective, rows = run.objective, torch.tensor([4, 7, 11, 30])
    assert isinstance(objective, noisy.SparseNoise) and objective.plus
    with torch.no_grad():
        objective.learned["u"][rows] = torch.tensor([[0.5], [0.0], [0.9], [1.4]])
        objective.learned["v"][rows] = 0.3 * random_logits(4, 10, seed=2).float()
    weak, strong = (random_logits(4, 10, seed).float().requires_grad_() for seed in (0, 1))
    u, v = (objective.learned[name].detach()[rows].double().numpy() for name in "uv")
    labels = run.weak[rows].tolist()
    p, r = softmax(weak.detach()), softmax(strong.detach())
    entropy, squared, apart, noised = [], [], [], []
    for row, label in enumerate(labels):
        noise = -np.minimum(v[row] ** 2, 1)
        noise[label] = min(u[row, 0] ** 2, 1)
        changed = np.maximum(p[row] + noise, 1e-4)
        noised.append(changed / changed.sum())
        entropy.append(-np.log(noised[-1][label]))
        named = np.arange(10) == p[row].argmax()
        squared.append(((named + noise - (np.arange(10) == label)) ** 2).sum())
        apart.append((p[row] * np.log(p[row] / r[row])).sum())
    even = np.mean(noised, 0)
    expected = np.mean(entropy) + np.mean(squared) + 0.9 * np.mean(apart) - 0.1 * np.log(even).mean()
    loss = objective(inputs_of(weak, strong, single_rows(rows)))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    (slope,) = torch.autograd.grad(loss, strong)  # the strong view learns from the agreement alone
    assert np.allclose(slope, 0.9 * (r - p) / 4, atol=1e-6)
