"""Aggregate supervision: one statement about the positives of a bag, class by class.

multi_instance: is there a positive instance? The state is "one was seen".
label_proportion: how many are there? The state is their count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fastbus.errors import SupervisionError, WeakLabelError, choice, first_entry
from fastbus.numerics import safe_log
from fastbus.supervision.base import Supervision
from fastbus.supervision.evidence import Evidence, Rule, Soft, log_indicator
from fastbus.supervision.options import count_noise, flip_channel, number
from fastbus.supervision.reading import WeakReader

OF_FRACTIONS = 'Correct the entry, or pass LabelProportion(unit="fraction") for fractions of the bag.'


def flipped(truth: Tensor, weak: Tensor, noise: tuple[float, float] | None) -> Tensor:
    """P(weak | truth) of a 0/1 statement whose true value is 1 with probability `truth`."""
    says_yes = truth.to(torch.float64)
    if noise is not None:
        false_positive, false_negative = noise
        says_yes = says_yes * (1 - false_negative) + (1 - says_yes) * false_positive
    return torch.where(weak.to(torch.bool), says_yes, 1 - says_yes)


class MultiInstance(Supervision):
    """A class is positive in a bag if at least one instance has it."""

    name = "multi_instance"
    fold = "any"

    def __init__(self, *, noise: tuple[float, float] | None = None) -> None:
        self.noise = flip_channel(noise, self.name)

    def num_states(self, bag_size: int) -> int:
        return 2

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return (state + label).clamp(max=1)

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return flipped(state, weak, self.noise)

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        values, positive_class = reader.per_class(weak)
        values, observed = reader.integers(values, 1, "bag labels")
        if positive_class is None and reader.head == "softmax" and self.noise is None:
            self._check_exclusive(values, observed, reader)
        rule = self.rule(values, observed, positive_class, reader)
        return Evidence(rules=(rule,), names=(self.title,))

    def _check_exclusive(self, values: Tensor, observed: Tensor, reader: WeakReader) -> None:
        positives = (values * observed).sum(1)
        reader.impossible_bags(
            observed.all(1) & (positives == 0),
            "a bag without any positive class under a softmax head",
            "at least one positive class, since every instance has one",
            'Use head="sigmoid" if an instance may have no class.',
        )
        reader.impossible_bags(
            positives > reader.layout.sizes,
            "more positive classes than instances in the bag",
            "at most one class for each instance under a softmax head",
            'Use head="sigmoid" if an instance may have several classes.',
        )


class Counting(Supervision):
    """Base of kinds whose state is the number of positives so far."""

    fold = "count"

    def num_states(self, bag_size: int) -> int:
        return bag_size + 1

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        return state + label


class LabelProportion(Counting):
    """The number of positives of a class in a bag: exact, an interval, or a distribution."""

    name = "label_proportion"

    def __init__(
        self,
        kind: Literal["exact", "interval", "soft"] = "exact",
        *,
        unit: Literal["count", "fraction"] = "count",
        tolerance: float | None = None,
        noise: Mapping[int, float] | None = None,
        soft: Literal["jeffrey", "virtual"] = "jeffrey",
    ) -> None:
        choice(kind, ("exact", "interval", "soft"), f"{self.name}: kind", SupervisionError)
        choice(unit, ("count", "fraction"), f"{self.name}: unit", SupervisionError)
        choice(soft, ("jeffrey", "virtual"), f"{self.name}: soft", SupervisionError)
        if kind == "soft" and unit == "fraction":
            raise SupervisionError(
                f'{self.name}: kind="soft" with unit="fraction"; expected a distribution over '
                'counts. Leave unit="count".'
            )
        if noise is not None and kind != "exact":
            raise SupervisionError(
                f'{self.name}: noise with kind="{kind}"; expected kind="exact". '
                'State the uncertainty in the weak label itself, or use kind="exact".'
            )
        if tolerance is not None and not 0 <= number(tolerance) < 0.5:
            raise SupervisionError(
                f"{self.name}: tolerance={tolerance!r}; expected a number in [0, 0.5). It is how far "
                "fraction * bag size may lie from a whole number."
            )
        self.kind = kind
        self.unit = unit
        self.tolerance = tolerance
        self.noise = count_noise(noise, self.name)
        self.soft = soft

    @property
    def applies_last(self) -> bool:
        return self.kind == "soft" and self.soft == "jeffrey"

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        bag_size = torch.full_like(weak, state.shape[0] - 1)
        return self._exact_evidence(state, weak, bag_size)

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return tuple(range(bag_size + 1)) if self.kind == "exact" else None

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        read = {"exact": self._read_exact, "interval": self._read_interval, "soft": self._read_soft}
        return Evidence(rules=(read[self.kind](weak, reader),), names=(self.title,))

    # -- exact counts -------------------------------------------------------------------------

    def _read_exact(self, weak: object, reader: WeakReader) -> Rule:
        values, positive_class = reader.per_class(weak)
        if self.unit == "fraction":
            counts, observed = self._counts_of_fractions(values, reader)
        else:
            counts, observed = reader.integers(values, None, "counts", of_fractions=OF_FRACTIONS)
        self._check_counts(counts, observed, positive_class, reader)
        states = torch.arange(reader.K + 1, device=reader.device)
        sizes = reader.layout.sizes[:, None, None].expand(*counts.shape, 1)
        given = self._exact_evidence(states, counts[..., None], sizes)
        log_evidence = safe_log(given.to(reader.dtype))
        log_evidence = log_evidence.masked_fill(~observed[..., None], 0.0)
        return Rule(self, log_evidence, observed, positive_class)

    def _counts_of_fractions(self, values: Tensor, reader: WeakReader) -> tuple[Tensor, Tensor]:
        fractions, observed = reader.fractions(values, 0.0, 1.0, "fractions")
        sizes = reader.layout.sizes[:, None].to(fractions.dtype)
        exact = fractions * sizes
        bad = observed & ((exact - exact.round()).abs() > self._slack(sizes))
        if bool(bad.any()) and reader.validate:
            bag, column = torch.nonzero(bad)[0].tolist()
            size = int(reader.layout.sizes[bag])
            reader.refuse(
                bad,
                f"fraction {float(fractions[bag, column]):g} of class {column} in a bag of {size} "
                f"is {float(exact[bag, column]):.4g} instances",
                "a whole number of instances",
                'Round the fractions to counts, pass a looser tolerance=, or use kind="interval".',
            )
        return exact.round().long(), observed

    def _slack(self, sizes: Tensor) -> Tensor:
        """How far fraction * bag size may lie from a whole number: fractions are rounded."""
        return (sizes * 5e-5).clamp(min=1e-3, max=0.05).clamp(min=self.tolerance or 0.0)

    def _check_counts(self, counts: Tensor, observed: Tensor, positive_class: int | None, reader: WeakReader) -> None:
        sizes = reader.layout.sizes
        beyond = observed & (counts > sizes[:, None])
        if reader.validate and bool(beyond.any()):
            bag, column = torch.nonzero(beyond)[0].tolist()
            reader.impossible_bags(
                beyond,
                f"count {int(counts[bag, column])} of class {column} in a bag of {int(sizes[bag])}",
                f"a count of 0 to {int(sizes[bag])}",
            )
        if positive_class is not None or reader.head != "softmax" or self.noise is not None:
            return
        totals = (counts * observed).sum(1)
        wrong = torch.where(observed.all(1), totals != sizes, totals > sizes)
        if reader.validate and bool(wrong.any()):
            bag = int(torch.nonzero(wrong)[0])
            reader.impossible_bags(
                wrong,
                f"counts that sum to {int(totals[bag])} in a bag of {int(sizes[bag])} under a softmax head",
                "counts of all classes that sum to the bag size, since every instance has one class",
                'Use head="sigmoid" if an instance may have several classes or none.',
            )

    def _exact_evidence(self, state: Tensor, weak: Tensor, bag_size: Tensor) -> Tensor:
        """P(count w is reported | count s) for state (Z,), weak and bag_size (..., 1)."""
        if self.noise is None:
            return (state == weak).to(torch.float64)
        hit = torch.zeros(
            torch.broadcast_shapes(state.shape, weak.shape),
            dtype=torch.float64,
            device=state.device,
        )
        total = torch.zeros_like(hit)
        for error, probability in self.noise.items():
            reported = state + error
            inside = (reported >= 0) & (reported <= bag_size)
            total = total + probability * inside.to(torch.float64)
            hit = hit + probability * (reported == weak).to(torch.float64)
        # a true count from which every reported count falls outside 0..K cannot be reported at all
        return torch.where(total > 0, hit / total.masked_fill(total == 0, 1.0), 0.0)

    # -- intervals ----------------------------------------------------------------------------

    def _read_interval(self, weak: object, reader: WeakReader) -> Rule:
        values, positive_class = reader.per_class(weak, trailing=1)
        if values.shape[-1] != 2:
            raise WeakLabelError(
                f"{self.name}: intervals with {values.shape[-1]} numbers each; expected 2, low and "
                "high, both included. Mark an open end missing (-1, or NaN in floats)."
            )
        sizes = reader.layout.sizes[:, None, None]
        if self.unit == "fraction":
            fractions, given = reader.fractions(values, 0.0, 1.0, "interval bounds")
            exact, slack = fractions * sizes, self._slack(sizes)[..., 0]
            bounds = torch.stack([(exact[..., 0] - slack).ceil(), (exact[..., 1] + slack).floor()], -1).long()
        else:
            bounds, given = reader.integers(values, None, "interval bounds", of_fractions=OF_FRACTIONS)
        low = bounds[..., 0].masked_fill(~given[..., 0], 0)
        high = torch.where(given[..., 1], bounds[..., 1], sizes[..., 0])
        observed = given.any(-1)
        bad = observed & ((low > high) | (low > sizes[..., 0]))
        if reader.validate and bool(bad.any()):
            bag, column = torch.nonzero(bad)[0].tolist()
            size = int(reader.layout.sizes[bag])
            interval = f"{int(low[bag, column])} to {int(high[bag, column])}"
            reader.impossible_bags(
                bad,
                f"the interval {interval} of class {column} holds no count of a bag of {size}",
                f"low <= high within 0 to {size}",
            )
        states = torch.arange(reader.K + 1, device=reader.device)
        allowed = (states >= low[..., None]) & (states <= high[..., None])
        log_evidence = log_indicator(allowed | ~observed[..., None], reader.dtype)
        return Rule(self, log_evidence, observed, positive_class)

    # -- distributions over counts ------------------------------------------------------------

    def _read_soft(self, weak: object, reader: WeakReader) -> Rule:
        values, positive_class = reader.per_class(weak, trailing=1)
        Z = reader.K + 1
        if values.shape[-1] < Z:
            raise WeakLabelError(
                f"{self.name}: soft counts over {values.shape[-1]} values; expected at least {Z}, "
                f"the counts 0 to {reader.K}. Pad the distributions with zeros."
            )
        target, given = reader.fractions(values, 0.0, math.inf, "soft counts")
        observed = given.all(-1)
        reader.refuse(
            given.any(-1) & ~observed,
            "soft counts with some entries missing",
            "a whole distribution, or NaN throughout",
            "Mark all entries of a missing distribution NaN.",
        )
        states = torch.arange(values.shape[-1], device=reader.device)
        beyond = (target > 0) & (states > reader.layout.sizes[:, None, None])
        reader.impossible_bags(beyond, "soft counts give weight to counts beyond the bag", "zeros beyond the bag size")
        total = target.sum(-1)
        off = observed & ((total - 1).abs() > 1e-3)
        if reader.validate and bool(off.any()):
            reader.refuse(
                off,
                f"soft counts that sum to {first_entry(total, off):.4g}",
                "distributions that sum to 1",
                "Divide each distribution by its sum.",
            )
        target = target[..., :Z] / total.masked_fill(total == 0, 1.0)[..., None]
        if self.soft == "virtual":
            log_evidence = safe_log(target).masked_fill(~observed[..., None], 0.0)
            return Rule(self, log_evidence, observed, positive_class)
        soft = Soft("jeffrey", target, observed)
        return Rule(self, torch.zeros_like(target), torch.zeros_like(observed), positive_class, soft)
