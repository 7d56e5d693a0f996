"""Reading weak labels: shapes, missing entries, ranges; every complaint names the first bag.

Missing is -1 in integer weak labels and NaN in float ones, never -1 in a float.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastbus.bag_layout import BagLayout, read_tensor
from fastbus.errors import (
    FastbusError,
    ImpossibleError,
    WeakLabelError,
    bag_flags,
    first_entry,
    quoted,
    reject,
    sentence,
    where,
)

IGNORE_HINT = 'Correct it, or pass on_impossible="ignore" to drop the evidence of such bags.'


@dataclass
class WeakReader:
    """What a supervision may know while it reads the weak labels of one batch."""

    layout: BagLayout
    num_classes: int  # C, the last axis of the predictions
    head: str
    dtype: torch.dtype
    validate: bool = True
    ignore_impossible: bool = False
    name: str = "weak"
    impossible: Tensor = field(init=False)  # (B,) bags whose evidence must be dropped

    def __post_init__(self) -> None:
        self.impossible = torch.zeros(self.B, dtype=torch.bool, device=self.device)

    @property
    def device(self) -> torch.device:
        return self.layout.sizes.device

    @property
    def B(self) -> int:
        return self.layout.num_bags

    @property
    def K(self) -> int:
        return self.layout.max_size

    @property
    def num_labels(self) -> int:
        """Y, the labels of one instance: the classes, or two for a single sigmoid."""
        return 2 if self.head == "sigmoid" else self.num_classes

    # -- complaints ---------------------------------------------------------------------------

    def refuse(self, bad: Tensor, got: str, expected: str, cure: str) -> None:
        """Raise a WeakLabelError if any entry (B, ...) is bad."""
        if self.validate and bool(bad.any()):
            reject(WeakLabelError, bad, got=f"{self.name}: {got}", expected=expected, cure=cure)

    def refuse_value(self, values: Tensor, bad: Tensor, expected: str, cure: str) -> None:
        """The same, quoting the first offending value."""
        if self.validate and bool(bad.any()):
            self.refuse(bad, f"weak label {quoted(first_entry(values, bad))}", expected, cure)

    def impossible_bags(self, bad: Tensor, got: str, expected: str, cure: str = "") -> None:
        """Raise an ImpossibleError, or take note of the bags where the caller asked to ignore them."""
        if not self.validate or not bool(bad.any()):
            return
        if not self.ignore_impossible:
            hint = f"{cure} {IGNORE_HINT}".strip()
            raise ImpossibleError(sentence(f"{self.name}: {got}", expected, where(bad), hint))
        self.impossible = self.impossible | bag_flags(bad)

    # -- shapes -------------------------------------------------------------------------------

    def tensor(self, weak: object) -> Tensor:
        """The weak labels as a tensor on the device of the predictions."""
        if isinstance(weak, tuple) or weak is None:
            got = "a tuple" if isinstance(weak, tuple) else "None"
            raise WeakLabelError(
                f"{self.name}: weak label is {got}; expected one array of numbers. "
                "Tuples are for combined supervisions (a & b), one entry a part."
            )
        x = read_tensor(
            weak,
            f"{self.name}: weak label",
            WeakLabelError,
            expected="a tensor, array or list",
            cure="Encode classes as indices 0..C-1.",
            device=self.device,
        )
        if x.is_complex():
            raise WeakLabelError(
                f"{self.name}: weak label of dtype {x.dtype}; expected bool, integer or float. Take its real part."
            )
        if x.dtype != torch.bool and not x.is_floating_point():
            x = x.long()  # unsigned types know no -1, and torch compares few of them
        return x.detach()

    def _shape_error(self, x: Tensor, expected: str, cure: str) -> FastbusError:
        return WeakLabelError(
            f"{self.name}: weak label of shape {tuple(x.shape)} for {self.B} bags, "
            f"{self.K} instances, {self.num_classes} classes; expected {expected}. {cure}"
        )

    def per_bag(self, weak: object, trailing: tuple[int, ...] = ()) -> Tensor:
        """(B, *trailing)."""
        x = self.tensor(weak)
        if x.shape != (self.B, *trailing):
            raise self._shape_error(x, str((self.B, *trailing)), "Give one weak label for every bag.")
        return x

    def per_class(self, weak: object, trailing: int = 0) -> tuple[Tensor, int | None]:
        """(B, G, ...) and the positive class of a binary weak label (B, ...), else None."""
        x = self.tensor(weak)
        C = self.num_classes
        if x.dim() == 2 + trailing and x.shape[:2] == (self.B, C):
            return x, (0 if self.head == "sigmoid" and C == 1 else None)
        if x.dim() == 1 + trailing and x.shape[0] == self.B:
            return x.unsqueeze(1), self.binary_class()
        dots = ", ..." * min(trailing, 1)
        binary = f"({self.B}{dots or ','})"
        raise self._shape_error(
            x,
            f"({self.B}, {C}{dots}), or {binary} where labels are binary",
            "Give one entry for every bag and class.",
        )

    def binary_class(self) -> int:
        """The positive class of a binary supervision."""
        if self.head == "sigmoid" and self.num_classes == 1:
            return 0
        if self.head == "softmax" and self.num_classes == 2:
            return 1
        raise WeakLabelError(
            f"{self.name}: a binary weak label with a {self.head} head of {self.num_classes} "
            "classes; expected a sigmoid head with C=1 or a softmax head with C=2. "
            "Give one entry for every bag and class, or use a binary head."
        )

    def per_instance(self, weak: object, trailing: tuple[int, ...] = ()) -> Tensor:
        """Compact (B, K, *trailing) from the caller's layout; (B, *trailing) if all bags hold one."""
        x = self.tensor(weak)
        if x.shape == (self.B, *trailing) and self.K == 1 and not self.layout.flat:
            return x.unsqueeze(1)
        if x.shape != (*self.layout.shape, *trailing):
            expected = str((*self.layout.shape, *trailing))
            raise self._shape_error(x, expected, "Give one weak label for every instance.")
        return self.layout.compact(x)

    # -- values -------------------------------------------------------------------------------

    def present(self, values: Tensor, what: str) -> Tensor:
        """Where entries are not missing, by their type's own sign."""
        if values.dtype == torch.bool:
            return torch.ones_like(values)
        if not values.is_floating_point():
            return values != -1
        signed = values == -1
        self.refuse(
            signed,
            f"-1 in float {what}",
            "NaN for a missing entry of a float weak label",
            "Use NaN in float weak labels, -1 only in integer ones.",
        )
        return ~values.isnan()

    def integers(
        self, values: Tensor, high: int | None, what: str, real: Tensor | None = None, *, of_fractions: str = ""
    ) -> tuple[Tensor, Tensor]:
        """Whole numbers 0..high as long, and where they are present; `real` masks padding out.

        of_fractions: the cure where the first bad entry lies between 0 and 1.
        """
        if real is not None:
            blank = float("nan") if values.is_floating_point() else -1
            values = values if values.dtype == torch.bool else values.masked_fill(~real, blank)
        present = self.present(values, what)
        if real is not None:
            present = present & real
        expected = f"whole numbers 0 to {high}" if high is not None else "whole numbers from 0"
        missing = "NaN" if values.is_floating_point() else "-1"
        bad = present & (values < 0)
        if values.is_floating_point():
            bad = bad | (present & (values != values.round()))
            bad = bad | values.isinf()
        if high is not None and values.dtype != torch.bool:
            bad = bad | (present & (values > high))
        cure = "Correct the entry, or mark it missing."
        if of_fractions and self.validate and bool(bad.any()) and bool((values[bad][0] > 0) & (values[bad][0] < 1)):
            cure = of_fractions
        self.refuse_value(values, bad, f"{what} as {expected}, {missing} where missing", cure)
        return values.masked_fill(~present, 0).long(), present

    def fractions(self, values: Tensor, low: float, high: float, what: str) -> tuple[Tensor, Tensor]:
        """Real numbers in [low, high] in message precision, and where they are present."""
        if not values.is_floating_point():
            raise WeakLabelError(
                f"{self.name}: {what} of dtype {values.dtype}; expected floats in "
                f"[{low:g}, {high:g}], NaN where missing. Convert it with .float()."
            )
        present = ~values.isnan()
        self.refuse_value(
            values,
            present & ((values < low) | (values > high)),
            f"{what} in [{low:g}, {high:g}], NaN where missing",
            "Correct the entry, or mark it missing.",
        )
        return values.masked_fill(~present, 0).to(self.dtype), present

    def single_label(self) -> None:
        """Refuse heads whose instances do not have exactly one label."""
        if self.head == "sigmoid" and self.num_classes > 1:
            raise WeakLabelError(
                f"{self.name}: single-label evidence with a sigmoid head of {self.num_classes} "
                'classes; expected a softmax head, or a sigmoid head with C=1. Pass head="softmax" '
                "if every instance has exactly one class."
            )

    def bag_size(self, size: int, what: str) -> None:
        """Refuse bags of another size than the rule speaks about."""
        sizes = self.layout.sizes
        if self.validate and bool((sizes != size).any()):
            bad = sizes != size
            self.refuse(
                bad,
                f"a bag of {first_entry(sizes, bad)} instances",
                f"{what} of exactly {size}",
                "Regroup the instances into bags of that size.",
            )
