"""Products of rules: several folds read the same labels, their states pair up, reachable ones only.

Serves combinations a & b, and own per-class rules under a softmax head (one component a class).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Component(NamedTuple):
    """One fold: its table (L, Z, Y') of next states, and how it reads the shared label."""

    table: Tensor
    reads: Tensor  # (Y,) the shared label as this fold's own label


class Product(NamedTuple):
    """Reachable tuples of states and their table."""

    table: Tensor  # (L, Z, Y)
    states: Tensor  # (Z, components) the state of each component


def multiply(components: list[Component], bag_size: int, budget: int) -> Product | None:
    """The product automaton of a bag of that size, or None if it has more states than the budget."""
    layered = any(component.table.shape[0] > 1 for component in components)
    known = np.zeros((1, len(components)), dtype=np.int64)
    frontier = known
    for position in range(bag_size):
        following = _advance(components, frontier, position).reshape(-1, len(components))
        reached = np.unique(following, axis=0)
        merged = np.unique(np.concatenate([known, reached]), axis=0)
        if len(merged) > budget:
            return None
        if not layered and len(merged) == len(known):
            break
        # only a layered rule can treat a state differently when it meets it again
        frontier = reached if layered else _difference(reached, known)
        known = merged
    layers = range(bag_size) if layered else range(1)
    tables = [_index(known, _advance(components, known, position)) for position in layers]
    return Product(torch.from_numpy(np.stack(tables)), torch.from_numpy(known))


def _advance(components: list[Component], states: np.ndarray, position: int) -> np.ndarray:
    """Next tuples (n, Y, components) of tuples (n, components); a sink of any component is kept."""
    following = []
    for column, (table, reads) in enumerate(components):
        layer = table[position if table.shape[0] > 1 else 0].numpy()
        sink = np.full((1, layer.shape[1]), layer.shape[0])
        padded = np.concatenate([layer, sink])
        following.append(padded[states[:, column]][:, reads.numpy()])
    return np.stack(following, -1)


def _difference(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    stacked = np.concatenate([known, rows])
    _, first = np.unique(stacked, axis=0, return_index=True)
    return stacked[first[first >= len(known)]]


def _index(known: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Positions of the next tuples among the known ones; one past the last where they are not."""
    n, Y, width = following.shape
    stacked = np.concatenate([known, following.reshape(-1, width)])
    _, first, inverse = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
    position = first[inverse.reshape(-1)[len(known) :]]
    return np.where(position < len(known), position, len(known)).reshape(n, Y)
