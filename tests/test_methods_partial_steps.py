"""Whole steps of RCR, LWS and PiCO against plain loops in float64: weights, ramps and what is remembered."""

import numpy as np
import pytest
import torch
from torch import Tensor

from digit_runs import method_run
from fastbus.methods import imperfect_partial as partial
from fastbus.methods import imperfect_pico as pico
from method_steps import inputs_of, random_logits, sigmoid, single_rows, softmax, step_of
from test_image_run import QUICK

CANDIDATES = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 1, 0]]).bool()


def views_of(seed: int) -> list[Tensor]:
    return [random_logits(5, 4, seed=2 * seed + view).float() for view in (0, 1)]


@pytest.mark.parametrize(("progress", "ramp"), [(0.0, 0.0), (0.2, 0.4), (0.9, 1.0)])
def test_consistency_of_rcr_by_hand(progress: float, ramp: float) -> None:
    """No class outside of the candidates, and both views near the last step's confidence, more and more."""
    objective = partial.RegularisedConsistency(CANDIDATES, QUICK)
    step = step_of([1, 1, 1])._replace(rows=torch.arange(5))  # the last two belong to no bag
    before, views = views_of(0), views_of(1)
    objective(inputs_of(*before, step))
    found = float(objective(inputs_of(*views, step, progress)))
    p, q = (softmax(x) for x in before)
    shared = np.sqrt(p * q) * CANDIDATES.numpy()
    shared /= shared.sum(1, keepdims=True)
    weak = softmax(views[0])
    excluded = apart = 0.0
    for row in range(3):
        for c in range(4):
            if not CANDIDATES[row, c]:
                excluded -= np.log(1 - weak[row, c]) / 3
            else:
                for view in (weak, softmax(views[1])):
                    apart += shared[row, c] * np.log(shared[row, c] / view[row, c]) / 3
    assert found == pytest.approx(excluded + ramp * apart, rel=1e-4)


def test_weights_of_lws_are_normalised_inside_and_outside_of_the_candidates() -> None:
    objective = partial.LeveragedWeighted(CANDIDATES, QUICK, 2.0, "sigmoid")
    step, before, views = single_rows(torch.arange(5)), views_of(0), views_of(1)
    start = float(objective(inputs_of(*before, step)))
    found = float(objective(inputs_of(*views, step)))
    p = softmax(before[0])
    first = second = 0.0
    for row, said in enumerate(CANDIDATES.tolist()):
        for c in range(4):
            part = sum(p[row, d] for d in range(4) if said[d] == said[c])  # candidates apart from the rest
            for old, new in zip(before, views, strict=True):
                sign, beta = (-1, 1.0) if said[c] else (1, 2.0)
                first += beta * float(sigmoid(sign * old[row, c])) / 4 / 10
                second += p[row, c] / part * beta * float(sigmoid(sign * new[row, c])) / 10
    assert start == pytest.approx(first, rel=1e-5)  # all alike at first
    assert found == pytest.approx(second, rel=1e-5)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def embedded(x: Tensor, head: dict[str, Tensor]) -> np.ndarray:
    w, b, v, c = (head[name].detach().double().numpy() for name in PARTS)
    return unit(np.maximum(x.double().numpy() @ w.T + b, 0) @ v.T + c)


PARTS = ("hidden.weight", "hidden.bias", "embedding.weight", "embedding.bias")


@pytest.mark.parametrize("progress", [0.1, 0.6])
def test_a_step_of_pico_by_hand(progress: float) -> None:
    """Cross-entropy + contrast / 2; prototypes are trusted from a fifth of the steps on."""
    run = method_run("partial_label", "pico", QUICK.replace(epochs=10))
    objective, rows, M = run.objective, torch.tensor([3, 8, 20, 21, 40]), 5
    assert isinstance(objective, pico.PrototypeContrast) and run.num_features is not None
    source = torch.Generator().manual_seed(3)
    objective.head["embedding.weight"].add_(0.1)  # the averaged head is another one
    objective.prototypes.copy_(torch.nn.functional.normalize(torch.randn(10, pico.DIMENSIONS, generator=source), dim=1))
    objective.queue_labels[:40] = torch.arange(40) % 10
    objective.confidence[rows] = softmaxed_over(run.weak[rows].bool(), random_logits(5, 10, seed=5)).float()
    before, queue = objective.confidence.clone().double().numpy(), objective.queue.double().numpy().copy()
    weak, strong = (random_logits(M, run.num_features, seed).float() for seed in (0, 1))
    inputs = inputs_of(weak, strong, single_rows(rows), progress)
    inputs = inputs._replace(classify=lambda x: 3 * x[:, :10], teacher_features=lambda x: x.flatten(1).roll(1, 1))
    query, key = embedded(weak, objective.learned), embedded(strong.roll(1, 1), objective.head)
    prototypes, named = objective.prototypes.double().numpy().copy(), objective.queue_labels.tolist()
    found = float(objective(inputs).detach())

    said, trusted = run.weak[rows].bool().numpy(), progress >= 0.2
    p, r = softmax(3 * weak[:, :10]), softmax(3 * strong[:, :10])
    labels = [int(np.where(said[row], p[row], -1).argmax()) for row in range(M)]
    keep = (0.95 - 0.15 * progress) ** 4  # of ten passes each goes as far as four of forty
    entropy, contrast = 0.0, 0.0
    for row in range(M):
        confidence = before[rows[row]]
        if trusted:
            near = max(np.flatnonzero(said[row]), key=lambda c: query[row] @ prototypes[c])
            confidence = keep * confidence + (1 - keep) * (np.arange(10) == near)
        assert np.allclose(objective.confidence[rows[row]], confidence, atol=1e-5)
        entropy -= (confidence * (np.log(p[row]) + np.log(r[row]))).sum() / 2 / M
        # everybody but the query itself: other queries, all keys, the queue
        others = [(query[j], labels[j], False) for j in range(M) if j != row]
        others += [(key[j], labels[j], j == row) for j in range(M)]
        others += [(queue[j], named[j], False) for j in range(len(queue))]
        weight = np.exp([float(query[row] @ x) / 0.07 for x, _, _ in others])
        alike = [own or (trusted and label == labels[row]) for _, label, own in others]
        contrast -= np.log(weight[alike] / weight.sum()).mean() / M
    assert found == pytest.approx(entropy + 0.5 * contrast, rel=1e-4)


def softmaxed_over(chosen: Tensor, logits: Tensor) -> Tensor:
    return torch.softmax(logits.masked_fill(~chosen, float("-inf")), 1)
