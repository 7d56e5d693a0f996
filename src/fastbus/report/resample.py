"""Bootstrap over bags: the instances of a bag share its weak label, so that whole bags are drawn anew.

B bags; quantities of a bag (B,) or (B, ...), summed over its instances.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
LEVEL = 0.95
ENTRIES = 4_000_000  # of drawn weights in memory at a time

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number and its 95 % bootstrap interval; NaN bounds where fewer than two bags can be drawn."""

    value: float
    low: float
    high: float


def ratio(numerator: Array, denominator: Array, draws: int = DRAWS, seed: int = 0) -> Estimate:
    """sum of numerators / sum of denominators over bags, both (B,)."""
    value, low, high = ratios(numerator[:, None], denominator[:, None], draws, seed)
    return Estimate(float(value[0]), float(low[0]), float(high[0]))


def ratios(numerator: Array, denominator: Array, draws: int = DRAWS, seed: int = 0) -> tuple[Array, Array, Array]:
    """The same for columns (B, M): values and bounds, each (M,). Denominators (B, M) or (B, 1)."""
    value = _divided(numerator.sum(0), denominator.sum(0))
    if len(numerator) < 2:
        unknown = np.full_like(value, np.nan)
        return value, unknown, unknown
    drawn = np.concatenate(
        [_divided(weights @ numerator, weights @ denominator) for weights in bag_weights(len(numerator), draws, seed)]
    )
    bounds = np.full((2, *value.shape), np.nan)
    known = ~np.isnan(drawn).all(0)
    tail = (1 - LEVEL) / 2
    bounds[:, known] = np.nanquantile(drawn[:, known], (tail, 1 - tail), axis=0)
    return value, bounds[0], bounds[1]


def bag_weights(num_bags: int, draws: int, seed: int) -> Iterator[Array]:
    """How often each bag occurs in samples of B bags with replacement, in parts (d, B)."""
    rng = np.random.default_rng(seed)
    part = max(1, ENTRIES // num_bags)
    for start in range(0, draws, part):
        drawn = rng.integers(0, num_bags, (min(part, draws - start), num_bags))
        yield np.stack([np.bincount(row, minlength=num_bags) for row in drawn]).astype(np.float64)


def _divided(numerator: Array, denominator: Array) -> Array:
    """NaN where the denominator is 0."""
    some = denominator > 0
    return np.asarray(np.where(some, numerator / np.where(some, denominator, 1.0), np.nan), dtype=np.float64)


def bag_sums(values: Array, sizes: NDArray[np.int64]) -> Array:
    """Sums (B, ...) over the instances of each bag, from flat values (N, ...)."""
    starts = np.cumsum(sizes) - sizes
    return np.asarray(np.add.reduceat(values, starts, axis=0), dtype=np.float64)
