"""The most probable labelling of one bag as an assignment problem, when its joint lattice is too large.

Exact counts: every instance takes one of the slots that the counts open. Multi-instance labels:
every positive class takes an instance of its own, all others follow their best allowed class.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def _solve(cost: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    from scipy.optimize import linear_sum_assignment

    allowed = np.isfinite(cost)
    span = float(np.ptp(cost[allowed])) if allowed.any() else 0.0
    # dearer than any real assignment in all, yet finite, as the solver wants it
    forbidden = (span + 1.0) * (min(cost.shape) + 1)
    low = float(cost[allowed].min()) if allowed.any() else 0.0
    rows, columns = linear_sum_assignment(np.where(allowed, cost - low, forbidden))
    return rows, columns


def assign_counts(log_potential: Floats, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Labels (K,) of log potentials (K, C) with counts (C,), -1 where missing."""
    K, C = log_potential.shape
    missing = counts < 0
    columns: list[Floats] = []
    owners: list[int] = []
    for label in range(C):
        columns += [log_potential[:, label]] * max(int(counts[label]), 0)
        owners += [label] * max(int(counts[label]), 0)
    if missing.any():
        rest = np.where(missing, log_potential, -np.inf)
        best = rest.argmax(1)
        columns += [rest.max(1)] * (K - len(columns))
    rows, slots = _solve(-np.stack(columns, 1))
    labels = np.empty(K, dtype=np.int64)
    for row, slot in zip(rows, slots, strict=True):
        labels[row] = owners[slot] if slot < len(owners) else best[row]
    return labels


def assign_seen(log_potential: Floats, must: NDArray[np.bool_], banned: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Labels (K,) such that every class in `must` (C,) occurs and none in `banned` does."""
    allowed = np.where(banned, -np.inf, log_potential)
    labels: NDArray[np.int64] = allowed.argmax(1).astype(np.int64)
    classes = np.flatnonzero(must)
    if len(classes) == 0:
        return labels
    loss = allowed.max(1, keepdims=True) - log_potential[:, classes]
    rows, columns = _solve(loss)
    labels[rows] = classes[columns]
    return labels
