"""Weak labels of rows of a set, and how some are kept back to be foretold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fastbus.bench.paper.sets import Array
from fastbus.errors import InputError


class Weak(NamedTuple):
    """Some bags: rows of the training images bag after bag, sizes (B,), weak labels (B, ...) or one a row."""

    rows: Array
    sizes: Array
    weak: Array


def keep_back(
    weak: Weak, share: float, rng: np.random.Generator, told: Array | None = None
) -> tuple[Weak, Weak | None]:
    """Keep some bags back; none of the images of the kept ones may train, so bags that share one are dropped.

    told (B,): bags with a weak label, where others have none; the share is one of them.
    """
    if not 0 <= share < 1:
        raise InputError(f"held_out={share}; expected a share of the weak labels below 1. Pass e.g. 0.1.")
    labelled = np.arange(len(weak.sizes)) if told is None else np.flatnonzero(told)
    number = round(share * len(labelled))
    if number == 0:
        return weak, None
    kept = np.zeros(len(weak.sizes), dtype=bool)
    kept[rng.permutation(labelled)[:number]] = True
    bag = np.repeat(np.arange(len(weak.sizes)), weak.sizes)
    seen = np.isin(weak.rows, weak.rows[~kept[bag]])
    clash = np.zeros(len(weak.sizes), dtype=bool)
    np.logical_or.at(clash, bag, seen)
    return _part(weak, ~kept), _part(weak, kept & ~clash) if (kept & ~clash).any() else None


def _part(weak: Weak, chosen: Array) -> Weak:
    rows = np.repeat(chosen, weak.sizes)
    return Weak(weak.rows[rows], weak.sizes[chosen], weak.weak[chosen])
