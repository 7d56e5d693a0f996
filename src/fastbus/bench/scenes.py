"""Random bags with a known truth: predictions, a true labelling, and how both lie in memory.

A scene is what a random problem is made from before anything is weakened: B bags of different
sizes, padded under a mask of any pattern or flat, predictions that may contradict the truth, and
missing entries to come. Everything is numpy; `RandomProblem` holds the tensors that the engine
sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
MAX_LABELLINGS = 1100  # what the oracle enumerates for one bag, or one class of it
JUNK = 99  # stands in the padding of instance-level weak labels, where nothing may look


@dataclass(frozen=True)
class Scene:
    """B bags: their sizes, where their instances stand, predictions and the true labelling."""

    rng: np.random.Generator
    head: str
    num_classes: int  # C
    binary: bool  # bag-level weak labels speak about the positive class alone
    sizes: Array  # (B,)
    mask: Array | None  # (B, K) where instances are real; None when the layout is flat
    logits: Array  # (N, C)
    truth: Array  # (N,) class indices, 0/1 for one sigmoid; several sigmoids (N, C) 0/1
    missing: float  # the chance that an entry of the weak label is missing

    @property
    def num_labels(self) -> int:
        """Y, the labels of one instance (of one class of it under several sigmoids)."""
        return 2 if self.head == "sigmoid" else self.num_classes

    @property
    def truth_as_map(self) -> Array:
        """The true labelling as `Posterior.map` has it: (N,), under a sigmoid head (N, C)."""
        one_sigmoid = self.head == "sigmoid" and self.truth.ndim == 1
        return self.truth[:, None] if one_sigmoid else self.truth

    @cached_property
    def bags(self) -> list[Array]:
        """The true labels of every bag, each (K,) or (K, C)."""
        return np.split(self.truth, np.cumsum(self.sizes)[:-1])

    @cached_property
    def chains(self) -> list[list[Array]]:
        """For every bag the 0/1 truth (K,) of each class that its weak label speaks about."""
        if self.truth.ndim == 2:
            return [list(bag.T) for bag in self.bags]
        classes = [1] if self.binary else range(self.num_classes)
        return [[(bag == c).astype(int) for c in classes] for bag in self.bags]

    def per_class(self, weaken: Callable[[Array], Any]) -> Array:
        """Weak labels (B, C, ...), or (B, ...) if binary, from each class's 0/1 truth (K,)."""
        values = np.array([[weaken(chain) for chain in bag] for bag in self.chains])
        return values[:, 0] if self.binary else values

    def per_bag(self, weaken: Callable[[Array], Any]) -> Array:
        """Weak labels (B, ...) from each bag's true labels (K,)."""
        return np.array([weaken(bag) for bag in self.bags])

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def hide(self, values: Array, dims: int = 0) -> Array:
        """Mark random entries missing; an entry has `dims` axes of its own and goes as a whole."""
        hidden = self.rng.random(values.shape[: values.ndim - dims]) < self.missing
        hidden = hidden.reshape(hidden.shape + (1,) * dims)
        return np.where(hidden, np.nan if values.dtype.kind == "f" else -1, values)

    def weak(self, values: Array, dims: int = 0) -> Tensor:
        """Bag-level weak labels as a tensor, some missing, whole numbers also as floats or bools."""
        return self._dressed(self.hide(values, dims))

    def instances(self, rows: Array, dims: int = 0, short: bool | None = None) -> Tensor:
        """Instance-level weak labels (N, ...) in the layout of the predictions, some missing.

        Bags of one may leave out the axis K: as `short` says, else now and then.
        """
        rows = self.hide(rows, dims)
        singles = bool((self.sizes == 1).all()) and (self.chance(0.5) if short is None else short)
        return self._dressed(rows if singles else self.placed(rows, JUNK))

    def placed(self, rows: Array, fill: float) -> Array:
        """Rows (N, ...) in the layout of the predictions: flat, or (B, K, ...) with `fill`."""
        if self.mask is None:
            return rows
        padded = np.full((*self.mask.shape, *rows.shape[1:]), fill, rows.dtype)
        padded[self.mask] = rows
        return padded

    def _dressed(self, values: Array) -> Tensor:
        """Integers mark missing entries with -1, floats with NaN; both must be read alike."""
        if values.dtype.kind == "i" and self.chance(0.3):
            values = np.where(values == -1, np.nan, values)
        elif values.dtype.kind == "i" and self.chance(0.3) and set(values.flat) <= {0, 1}:
            values = values.astype(bool)
        return torch.from_numpy(np.ascontiguousarray(values))


def random_scene(
    rng: np.random.Generator,
    *,
    head: str,
    binary: bool,
    classes: tuple[int, int],
    sizes: tuple[int, int],
    scale: float,
    bags: int,
    most_labellings: float = MAX_LABELLINGS,
) -> Scene:
    """Bags of random sizes and classes within the (lowest, highest) given, logits of that scale."""
    C = int(rng.integers(classes[0], classes[1] + 1))
    Y = 2 if head == "sigmoid" else C
    lowest, highest = sizes
    highest = max(lowest, min(highest, _longest(most_labellings, Y)))
    longest = int(rng.integers(lowest, highest + 1))
    bag_sizes = rng.integers(lowest, longest + 1, size=bags)
    mask = None if rng.random() < 0.25 else _random_mask(rng, bag_sizes)
    logits = scale * rng.normal(size=(int(bag_sizes.sum()), C))
    # a truth that the predictions hold improbable makes extreme posteriors, one drawn from them
    # typical ones
    believed = logits if rng.random() < 0.5 else np.zeros_like(logits)
    if head == "sigmoid":
        truth = (rng.logistic(size=logits.shape) < believed).astype(int)
        truth = truth[:, 0] if C == 1 else truth
    else:
        truth = (believed + rng.gumbel(size=logits.shape)).argmax(axis=1)
    missing = float(rng.choice([0.0, 0.2, 0.5]))
    return Scene(rng, head, C, binary, bag_sizes, mask, logits, truth, missing)


def _longest(most_labellings: float, Y: int) -> int:
    """The largest bag that has no more labellings than that."""
    return 10**6 if math.isinf(most_labellings) else int(math.log(most_labellings) / math.log(Y))


def _random_mask(rng: np.random.Generator, sizes: Array) -> Array:
    """Where the instances of each bag stand, (B, K): anywhere in it, in order."""
    width = int(sizes.max() + rng.integers(0, 3))
    order = rng.random((len(sizes), width)).argsort(axis=1).argsort(axis=1)
    return np.asarray(order < sizes[:, None])
