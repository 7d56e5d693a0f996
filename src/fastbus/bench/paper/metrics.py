"""How predictions are scored: plain, balanced over the classes, or matched.

Pairs of "same" and "different" name the classes only up to a permutation, so their accuracy is the best over all
ways to name them, found by the Hungarian method on the test labels; one permutation, chosen after training.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def score(metric: str, predicted: Array, truth: Array, num_classes: int) -> float:
    """Percent, of predicted and true classes (N,)."""
    table = np.zeros((num_classes, num_classes))
    np.add.at(table, (truth, predicted), 1)
    if metric == "balanced accuracy":
        shown = table.sum(1) > 0
        return float(100 * (table.diagonal()[shown] / table.sum(1)[shown]).mean())
    if metric == "matched accuracy":
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(-table)
        return float(100 * table[rows, columns].sum() / table.sum())
    return float(100 * table.diagonal().sum() / table.sum())
