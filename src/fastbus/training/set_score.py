"""How well predictions foretell which set an instance was drawn from, where sets have known shares of positives.

A share is no statement about a single instance, and that of a whole set is met by many a bad classifier. But the sets
differ in their shares, so that an instance's class says something about its set: that has a likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastbus.supervision.base import Supervision
from fastbus.supervision.incomplete import PositiveUnlabeled, UnlabeledUnlabeled

Floats = NDArray[np.float64]


def sets_of(supervision: Supervision, weak: NDArray[np.int64]) -> tuple[NDArray[np.int64], Sequence[float]] | None:
    """The set (N,) of each instance and the share of positives of each; known positives are a set of their own.

    None for weak labels of another kind. weak: (N,) as the estimator takes it.
    """
    if isinstance(supervision, PositiveUnlabeled):
        return (weak == 1).astype(np.int64), (supervision.known_prior, 1.0)
    if isinstance(supervision, UnlabeledUnlabeled):
        return weak, supervision.priors
    return None


def membership_score(probabilities: Floats, index: NDArray[np.int64], priors: Sequence[float]) -> float:
    """Mean log P(set | x) = log sum_y P(y | x) P(set | y) over instances (N, 2), each of a set (N,), -1 for none."""
    told = index >= 0
    probabilities, index = probabilities[told], index[told]
    sizes, shares = np.bincount(index, minlength=len(priors)), np.asarray(priors, dtype=np.float64)
    positives, negatives = sizes * shares, sizes * (1 - shares)
    of_class = np.stack([negatives / negatives.sum(), positives / positives.sum()])  # (2, sets)
    return float(np.log((probabilities * of_class[:, index].T).sum(1)).mean())
