"""Training sets made of scikit-learn's digits, small enough for tests that train."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fastbus.models.build import build_backbone
from fastbus.objective import WeakLoss
from fastbus.supervision import LabelProportion, PositiveUnlabeled, SemiSupervised
from fastbus.training.bag_set import BagSet

_X, _Y = load_digits(return_X_y=True)
ROWS = torch.from_numpy(_X / 16).float()  # (1797, 64)
LABELS = torch.from_numpy(_Y).long()


def proportions(bags: int = 24, size: int = 5, start: int = 0, **weights: Tensor) -> BagSet:
    """Bags of digits with their counts."""
    part = slice(start, start + bags * size)
    counts = nn.functional.one_hot(LABELS[part].reshape(bags, size), 10).sum(1)
    return BagSet(LabelProportion(), ROWS[part], torch.full((bags,), size), counts, **weights)


def uneven(sizes: list[int]) -> BagSet:
    """The same with bags of any size; every label but that of the zeros is unknown, so that all stay exact."""
    N = sum(sizes)
    zeros = torch.stack([(part == 0).sum() for part in LABELS[:N].split(sizes)])
    counts = torch.full((len(sizes), 10), -1)
    counts[:, 0] = zeros
    return BagSet(LabelProportion(), ROWS[:N], torch.tensor(sizes), counts)


def positive_unlabeled(instances: int = 200, labelled: int = 30) -> BagSet:
    """Even digits are positive; the first of them are known to be, the others are unlabelled."""
    positive = LABELS[:instances] % 2 == 0
    weak = torch.where(positive & (positive.cumsum(0) <= labelled), 1, -1)
    return BagSet(PositiveUnlabeled(prior=0.5), ROWS[:instances], torch.ones(instances, dtype=torch.long), weak)


def half_labelled(instances: int = 120, labelled: int = 40) -> BagSet:
    """The labels of the first digits, and none of the others."""
    weak = torch.where(torch.arange(instances) < labelled, LABELS[:instances], -1)
    return BagSet(SemiSupervised(), ROWS[:instances], torch.ones(instances, dtype=torch.long), weak)


def mlp(outputs: int = 10, dropout: float = 0.0, **options: Any) -> nn.Module:
    """A small network that batch normalisation does not make depend on the batch."""
    return build_backbone("mlp", (64,), outputs, seed=0, **{"hidden": (16,), "dropout": dropout} | options)


def counting_loss(**options: Any) -> WeakLoss:
    return WeakLoss("label_proportion", **options)


def weights_of(network: nn.Module) -> Tensor:
    """All weights and buffers in one vector."""
    return torch.cat([x.detach().double().reshape(-1) for x in network.state_dict().values()])
