"""Calibration without true labels: one temperature, fitted on the weak labels of held-out bags.

Dividing the logits by T > 0 changes no prediction, only how sure it is. The T that makes the weak labels of bags
the network was not trained on most probable, argmax_T sum_b log P(w_b | logits_b / T), is found by a search
over log T; the weak labels enter exactly as they do in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

RANGE = 20.0  # T lies in 1 / RANGE .. RANGE: held-out bags that are all predicted right ask for T -> 0
GOLDEN = (math.sqrt(5) - 1) / 2


@torch.no_grad()
def fit_temperature(log_likelihood: Callable[[Tensor], Tensor], logits: Tensor, steps: int = 24) -> float:
    """The T at which `log_likelihood(logits / T)`, one value a held-out bag, has the largest sum."""

    def value(log_t: float) -> float:
        return float(log_likelihood(logits / math.exp(log_t)).double().sum())

    bound = math.log(RANGE)
    grid = [-bound + 2 * bound * i / 8 for i in range(9)]
    best = max(range(9), key=lambda i: value(grid[i]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, 8)]
    # golden section: the sum of logarithms is smooth in log T and single-peaked between two grid points
    inner = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    values = [value(x) for x in inner]
    for _ in range(steps):
        if values[0] >= values[1]:
            high = inner[1]
            inner = [high - GOLDEN * (high - low), inner[0]]
            values = [value(inner[0]), values[0]]
        else:
            low = inner[0]
            inner = [inner[1], low + GOLDEN * (high - low)]
            values = [values[1], value(inner[1])]
    return math.exp((low + high) / 2)
