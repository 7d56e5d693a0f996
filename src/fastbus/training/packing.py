"""Batches of one fixed shape: whole bags packed into a fixed number of rows, or rows drawn from pools.

A step captured once and replayed needs every batch to have the same shape. What is left over of a batch's rows
is filled with other instances, which normalisation layers see and the loss does not.
Shapes: T steps, M rows, B bags of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.errors import InputError

Array = NDArray[np.int64]


class Packed(NamedTuple):
    """An epoch: which instances stand in which row, and where the bags lie."""

    rows: Array  # (T, M) instances
    real: NDArray[np.bool_]  # (T, M) rows that belong to a bag
    bags: Array  # (T, B) bags, 0 where there is none
    starts: Array  # (T, B) first row of each bag
    sizes: Array  # (T, B) rows of each bag, 0 where there is none


def pack_bags(sizes: NDArray[Any], rows: int, bags: int, rng: np.random.Generator) -> Packed:
    """One epoch of bags in random order, each step filled until the next bag does not fit."""
    sizes = np.asarray(sizes, dtype=np.int64)
    if len(sizes) == 0 or sizes.max() > rows:
        raise InputError(
            f"a bag of {int(sizes.max()) if len(sizes) else 0} instances in batches of {rows} rows; expected bags "
            "that fit. Raise the number of rows."
        )
    first = np.cumsum(sizes) - sizes
    order = rng.permutation(len(sizes))
    steps: list[list[int]] = [[]]
    used = 0
    for bag in order.tolist():
        if used + sizes[bag] > rows or len(steps[-1]) == bags:
            steps.append([])
            used = 0
        steps[-1].append(bag)
        used += int(sizes[bag])
    T, total = len(steps), int(sizes.sum())
    packed = Packed(
        rng.integers(total, size=(T, rows)),
        np.zeros((T, rows), dtype=bool),
        *(np.zeros((T, bags), dtype=np.int64) for _ in range(3)),
    )
    for step, chosen in enumerate(steps):
        picked = np.asarray(chosen)
        count = sizes[picked]
        start = np.cumsum(count) - count
        filled = int(count.sum())
        inside = np.arange(filled) - np.repeat(start, count)
        packed.rows[step, :filled] = np.repeat(first[picked], count) + inside
        packed.real[step, :filled] = True
        packed.bags[step, : len(picked)] = picked
        packed.starts[step, : len(picked)] = start
        packed.sizes[step, : len(picked)] = count
    return packed


def pack_rows(pools: Sequence[Array], counts: Sequence[int], rng: np.random.Generator) -> Packed:
    """One pass over the last pool, of every pool a fixed number of rows a step, each row a bag of its own."""
    steps = max(1, -(-len(pools[-1]) // counts[-1]))
    used = [(pool, count) for pool, count in zip(pools, counts, strict=True) if count]
    rows = pack_pools([pool for pool, _ in used], [count for _, count in used], steps, rng)
    starts = np.tile(np.arange(rows.shape[1]), (steps, 1))
    return Packed(rows, np.ones(rows.shape, dtype=bool), rows, starts, np.ones_like(rows))


def pack_pools(pools: Sequence[Array], counts: Sequence[int], steps: int, rng: np.random.Generator) -> Array:
    """(T, M) rows: of each pool a fixed number a step, every member equally often up to one."""
    columns = []
    for pool, count in zip(pools, counts, strict=True):
        rounds = -(-steps * count // len(pool))
        stream = np.concatenate([rng.permutation(pool) for _ in range(rounds)])
        columns.append(stream[: steps * count].reshape(steps, count))
    return np.concatenate(columns, axis=1)
