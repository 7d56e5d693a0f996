"""Truth: the true labels that weak labels are made from, how they lie in bags, and the chance at work.

labels (N,) class indices, or (N, C) 0/1 where an instance may have several classes. Results are NumPy
arrays: (B, ...) for statements about bags, (N, ...) in the order of the rows for those about instances.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np

from fastbus.data.weaken_inputs import Array, as_array
from fastbus.errors import InputError


@dataclass(frozen=True)
class Truth:
    """True labels in bags, the generator, and what every kind needs to tell of them."""

    title: str  # the supervision, for messages
    labels: Array  # (N,) class indices or (N, C) 0/1
    num_classes: int  # C; 2 for binary labels (N,)
    group: Array  # (N,) which bag each row belongs to
    sizes: Array  # (B,)
    alone: bool  # no bags were given: every instance is its own
    rng: np.random.Generator | None
    missing: float  # the share of entries that are left out
    padded: bool  # instance-level results as (B, K, ...) instead of (N, ...)

    @property
    def random(self) -> np.random.Generator:
        """The generator, or a complaint that there is none."""
        if self.rng is None:
            raise InputError(
                f"{self.title}: no rng for weak labels that are drawn at random; expected a NumPy Generator "
                "or a seed. Pass rng=numpy.random.default_rng(0)."
            )
        return self.rng

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def binary(self) -> bool:
        """Labels (N,) of a positive and a negative class: bag labels are (B,), which both heads take."""
        return not self.multi_label and self.num_classes == 2

    @cached_property
    def slot(self) -> Array:
        """Where each row stands within its bag, (N,)."""
        slot = np.empty(len(self.group), dtype=np.int64)
        slot[self.order] = np.concatenate([np.arange(size) for size in self.sizes])
        return slot

    @cached_property
    def order(self) -> Array:
        """Rows bag after bag, in their own order within each, (N,)."""
        return np.argsort(self.group, kind="stable")

    def single_label(self) -> Array:
        """(N,) class indices, where every instance has exactly one class."""
        if self.multi_label:
            self.complain(
                f"labels of shape {self.labels.shape}",
                "class indices (N,), since it speaks of instances with exactly one class",
                "Pass one class index for every instance.",
            )
        return self.labels

    def positives(self) -> Array:
        """(N,) 0/1, where the weak label speaks of one positive class."""
        labels = self.single_label()
        if self.num_classes != 2:
            self.complain(
                f"labels of {self.num_classes} classes",
                "0/1, since it speaks of one positive class",
                "Use fastbus.data.draws.binary_labels(labels, positives=...) to say which classes are it.",
            )
        return labels

    @cached_property
    def chains(self) -> Array:
        """0/1 of every class a bag label speaks about, (N, G): one column if binary, else C."""
        if self.multi_label:
            return self.labels
        if self.binary:
            return self.labels[:, None]
        return np.asarray(self.labels[:, None] == np.arange(self.num_classes), dtype=np.int64)

    def bag_sums(self, values: Array) -> Array:
        """Sums over the instances of each bag, (N, ...) to (B, ...)."""
        sums = np.zeros((len(self.sizes), *values.shape[1:]), dtype=values.dtype)
        np.add.at(sums, self.group, values)
        return sums

    def pairs(self, values: Array) -> Array:
        """(N, ...) of bags that hold two instances each, as (B, 2, ...)."""
        wrong = np.flatnonzero(self.sizes != 2)
        if len(wrong):
            self.complain(
                f"bag {wrong[0]} of {self.sizes[wrong[0]]} instances",
                "pairs",
                "Pass bags=[2] * (N // 2) for consecutive pairs, or draw them with fastbus.data.draws.draw_pairs.",
            )
        return np.asarray(values[self.order].reshape(len(self.sizes), 2, *values.shape[1:]))

    # -- telling --------------------------------------------------------------------------------

    def hide(self, values: Array, dims: int = 0) -> Array:
        """Leave out the missing share; an entry has `dims` axes of its own and goes as a whole."""
        if values.dtype.kind in "bu":
            values = values.astype(np.int64)  # neither type has a sign for missing
        if self.missing == 0:
            return values
        hidden = self.random.random(values.shape[: values.ndim - dims]) < self.missing
        hidden = hidden.reshape(hidden.shape + (1,) * dims)
        return np.where(hidden, np.nan if values.dtype.kind == "f" else -1, values)

    def per_class(self, values: Array, dims: int = 0) -> Array:
        """Bag labels (B, G, ...) as told: (B, ...) where they are binary."""
        values = self.hide(values, dims)
        return values[:, 0] if self.binary else values

    def per_instance(self, values: Array, dims: int = 0) -> Array:
        """Instance labels (N, ...) as told, or (B, K, ...) with missing entries in the padding."""
        values = self.hide(values, dims)
        if not self.padded:
            return values
        blank = np.nan if values.dtype.kind == "f" else -1
        shape = (len(self.sizes), int(self.sizes.max()), *values.shape[1:])
        padded = np.full(shape, blank, dtype=values.dtype)
        padded[self.group, self.slot] = values
        return padded

    # -- chance ---------------------------------------------------------------------------------

    def flip(self, statements: Array, noise: tuple[float, float] | None) -> Array:
        """0/1 statements seen through (false-positive, false-negative) rates."""
        if noise is None:
            return statements
        false_positive, false_negative = noise
        wrong = np.where(statements == 1, false_negative, false_positive)
        return np.where(self.random.random(statements.shape) < wrong, 1 - statements, statements)

    def draw(self, chances: Array) -> Array:
        """One index from each row of weights (..., M); weights of 0 are never drawn."""
        return draw_rows(chances, self.random)

    # -- complaints and options -------------------------------------------------------------------

    def complain(self, got: str, expected: str, cure: str) -> NoReturn:
        raise InputError(f"{self.title}: {got}; expected {expected}. {cure}")

    def share(self, value: object, name: str) -> float:
        """An option that is a share, in [0, 1]."""
        number = float(value) if isinstance(value, (int, float, np.number)) else float("nan")
        if isinstance(value, bool) or not 0 <= number <= 1:
            self.complain(f"{name}={value!r}", "a share in [0, 1]", "Give a share, not a percentage.")
        return number

    def probabilities(self, given: object, clip: float) -> Array:
        """Class probabilities (N, C) of a scorer, kept `clip` away from 0 and 1; binary ones may be (N,)."""
        if given is None:
            self.complain(
                "no probabilities",
                f"probabilities= of shape ({len(self.labels)}, {self.num_classes}), or (N,) if binary",
                "Pass those of a calibrated model that was trained on other instances.",
            )
        if isinstance(clip, bool) or not isinstance(clip, (int, float)) or not 0 <= clip < 0.5:
            self.complain(f"clip={clip!r}", "a number in [0, 0.5)", "Leave it at 1e-4.")
        values = as_array(given, f"{self.title}: probabilities").astype(np.float64)
        N = len(self.labels)
        if self.num_classes == 2 and values.shape in {(N,), (N, 1)}:
            positive = values.reshape(-1)
            values = np.stack([1 - positive, positive], axis=1)
        if values.shape != (N, self.num_classes):
            self.complain(
                f"probabilities of shape {values.shape}",
                f"({N}, {self.num_classes})",
                "Give one row for every instance and one column for every class.",
            )
        bad = ~((values >= 0) & (values <= 1)).all(axis=1)
        if not self.multi_label:
            bad |= np.abs(values.sum(axis=1) - 1) > 1e-3
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            self.complain(
                f"probabilities {values[row].tolist()} in row {row}",
                "numbers in [0, 1]" + ("" if self.multi_label else " that sum to 1"),
                "Apply the softmax or the sigmoid to the logits.",
            )
        values = values.clip(clip, 1 - clip)
        return values if self.multi_label else values / values.sum(axis=1, keepdims=True)


def draw_rows(chances: Array, rng: np.random.Generator) -> Array:
    """One index from each row of weights (..., M); weights of 0 are never drawn."""
    cumulative = np.cumsum(np.asarray(chances, dtype=np.float64), axis=-1)
    point = rng.random(cumulative.shape[:-1])[..., None] * cumulative[..., -1:]
    return np.asarray((point >= cumulative).sum(axis=-1).clip(max=cumulative.shape[-1] - 1))
