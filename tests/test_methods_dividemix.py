"""DivideMix: each of its two networks learns from the labels that the OTHER one trusts."""

import numpy as np
import pytest
import torch
from torch import Tensor

from digit_runs import method_run
from fastbus.methods import imperfect_dividemix as dividemix
from method_steps import inputs_of, random_logits, single_rows, softmax
from test_image_run import QUICK

MATRIX = random_logits(10, 10, seed=8).float()  # of the second network, which multiplies its images by it


class Second:
    """Stands in for the second network, and keeps the loss it is asked to descend."""

    def __call__(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ MATRIX

    def descend(self, loss: Tensor, progress: Tensor) -> None:
        self.loss = float(loss)


def sharp(p: np.ndarray) -> np.ndarray:
    return p**2 / (p**2).sum()


def by_hand(said: list[int], clean: list[float], views: list[np.ndarray], own: np.ndarray, other: np.ndarray) -> float:
    """The loss of a network with these predictions (M, C) of each view, and the mean ones of both networks."""
    known, squared = [], []
    for p in views:
        for row, label in enumerate(said):
            if clean[row] > 0.5:
                gold = (np.arange(10) == label).astype(float)
                target = sharp(clean[row] * gold + (1 - clean[row]) * own[row])
                known.append(-(target * np.log(p[row])).sum())
            else:
                squared.append(((p[row] - sharp((own[row] + other[row]) / 2)) ** 2).mean())
    balance = -np.log(10 * np.concatenate(views).mean(0)).mean()
    return float(np.mean(known) + 25 * np.mean(squared) + balance)


def test_each_network_is_taught_by_the_others_division() -> None:
    run = method_run("noisy_label", "dividemix", unlabelled_weight=25.0)
    objective, rows = run.objective, torch.arange(4)
    assert isinstance(objective, dividemix.DivideMix)
    second = Second()
    objective.second = second
    objective.warm.zero_()
    objective.shares.quantiles.fill_(1.0)  # every image is all its own
    by_first, by_second = [0.9, 0.2, 0.7, 0.1], [0.3, 0.8, 0.6, 0.4]
    objective.clean[:, rows] = torch.tensor([by_first, by_second])
    views = [random_logits(4, 10, seed).float() for seed in (0, 1)]
    found = float(objective(inputs_of(*views, single_rows(rows), progress=1.0)))
    first = [softmax(x) for x in views]
    other = [softmax(x.double() @ MATRIX.double()) for x in views]
    own, theirs, said = sum(first) / 2, sum(other) / 2, run.weak[rows].tolist()
    assert found == pytest.approx(by_hand(said, by_second, first, own, theirs), rel=1e-4)
    assert second.loss == pytest.approx(by_hand(said, by_first, other, theirs, own), rel=1e-4)


def test_each_division_is_by_the_losses_of_its_own_network() -> None:
    run = method_run("noisy_label", "dividemix", QUICK.replace(epochs=4))
    objective = run.objective
    assert isinstance(objective, dividemix.DivideMix)
    run.run_epoch()
    objective.start_epoch(run)  # past the warm-up
    plain = run.views.plain(run.training.images)
    networks = (run.training.network, objective.second.network)
    for network, clean in zip(networks, objective.clean, strict=True):
        network.eval()
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(network(plain).float(), run.weak, reduction="none")
        expected = dividemix.clean_probability(losses).float()
        assert torch.allclose(clean, expected, atol=1e-3)
    assert float((objective.clean[0] - objective.clean[1]).abs().max()) > 0.1  # they do not agree everywhere
