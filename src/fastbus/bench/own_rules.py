"""Rules that users might bring: small, of every form that the engine distinguishes.

Each states `step` and `evidence`; the truth they weaken is stated apart, in `weak_labels`, so that
a wrong fold shows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.supervision.base import Supervision


class AtLeast(Supervision):
    """w = 1 if at least m instances are positive."""

    def __init__(self, m: int) -> None:
        self.m = m

    def num_states(self, bag_size: int) -> int:
        return self.m + 1

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return (state + label).clamp(max=self.m)

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return (state == self.m) == weak


class SumModulo(Supervision):
    """Categorical: the sum of the class indices modulo m, told wrongly with probability `slip`."""

    labels = "categorical"

    def __init__(self, m: int, slip: float = 0.0) -> None:
        self.m = m
        self.slip = slip

    def num_states(self, bag_size: int) -> int:
        return self.m

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return (state + label) % self.m

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        wrong = self.slip / (self.m - 1)
        right = torch.tensor(1 - self.slip, dtype=torch.float64)
        return torch.where(state == weak, right, wrong)


class LastPositive(Supervision):
    """Where the last positive instance stands, counted from 1; 0 if there is none."""

    def num_states(self, bag_size: int) -> int:
        return bag_size + 1

    def step(self, state: Tensor, label: Tensor, position: int = 0) -> Tensor:
        return torch.where(label == 1, position + 1, state)

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return state == weak


def majority(labels: tuple[int, ...]) -> bool:
    """More positive labels than others."""
    return sum(labels) * 2 > len(labels)


def parity(labels: tuple[int, ...]) -> int:
    """Whether the number of positives is odd."""
    return sum(labels) % 2


def first_equals_last(labels: tuple[int, ...]) -> bool:
    """The two ends agree."""
    return labels[0] == labels[-1]
