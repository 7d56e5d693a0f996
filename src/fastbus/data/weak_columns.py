"""Which columns hold the weak labels of each supervision, and what their cells mean.

`weak` holds one value; `weak_<class>` one a class; `weak_<class>_low` and `_high` an interval;
`weak_<class>_<count>` a distribution over counts; `weak_<annotator>` an answer. Combinations put the name of
the part before it: `label_proportion.weak_cat`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.data.class_names import class_codes, complain, same_classes, whole_numbers
from fastbus.data.columns import Table, listed, missing
from fastbus.errors import DataError
from fastbus.supervision import (
    ComplementaryLabel,
    ConfidenceDifference,
    CrowdLabel,
    LabelProportion,
    MultiInstance,
    NoisyLabel,
    PairComparison,
    PairSimilarity,
    PartialLabel,
    PositiveConfidence,
    PositiveUnlabeled,
    SemiSupervised,
    SimilarDissimilarUnlabeled,
    SimilarityConfidence,
    Supervision,
    UnlabeledUnlabeled,
)

WEAK = re.compile(r"(?:\w+\.)?weak(?:_.*)?")
SUFFIXES = {"interval": r"(?:(.+)_)?(low|high)", "soft": r"(?:(.+)_)?(\d+)"}
SHOWN = {
    "one": "weak",
    "per_class": "weak_<class>",
    "interval": "weak_low and weak_high, or weak_<class>_low and weak_<class>_high",
    "soft": "weak_0, weak_1, ..., or weak_<class>_0, weak_<class>_1, ...",
    "annotators": "weak_<annotator>",
}
OF_FRACTIONS = (
    "Correct the cell, or say that these are fractions of the bag: --option unit=fraction, in Python "
    'LabelProportion(unit="fraction").'
)


@dataclass(frozen=True)
class Convention:
    """What the weak columns of one supervision look like."""

    forms: tuple[str, ...]  # keys of SHOWN
    of_bags: bool
    numbers: str = "whole"  # "whole" (missing: -1), "real" (missing: NaN) or "any", decided by the cells
    low: float | None = 0
    high: float | None = 1
    classes: bool = False  # the cells of forms "one" and "annotators" are classes
    of_fractions: str = ""  # the cure for fractions where whole numbers are expected


def convention(part: Supervision) -> Convention:
    """The columns of one supervision; own rules are read by what they say about their labels."""
    match part:
        case MultiInstance():
            return Convention(("one", "per_class"), True)
        case LabelProportion():
            if part.kind == "soft":
                return Convention(("soft",), True, "real")
            forms = ("interval",) if part.kind == "interval" else ("one", "per_class")
            counts = part.unit == "count"
            if counts:
                return Convention(forms, True, "whole", 0, None, of_fractions=OF_FRACTIONS)
            return Convention(forms, True, "real")
        case PairComparison() | PairSimilarity() | SimilarDissimilarUnlabeled():
            return Convention(("one",), True)
        case SimilarityConfidence() | PositiveConfidence():
            return Convention(("one",), True, "real")
        case ConfidenceDifference():
            return Convention(("one",), True, "real", -1)
        case PositiveUnlabeled():
            return Convention(("one",), False, low=1)
        case UnlabeledUnlabeled():
            return Convention(("one",), True, high=len(part.priors) - 1)
        case PartialLabel():
            return Convention(("per_class",), False)
        case ComplementaryLabel() | SemiSupervised():
            return Convention(("one", "per_class"), False, classes=True)
        case NoisyLabel():
            return Convention(("one",), False, classes=True)
        case CrowdLabel():
            return Convention(("annotators",), False, classes=True)
    forms = ("one", "per_class") if part.labels == "per_class" else ("one",)
    return Convention(forms, part.level != "instance", "any", None, None)


@dataclass(frozen=True, eq=False)
class WeakColumns:
    """The weak columns of one supervision, found in one table."""

    table: Table
    rule: Convention
    form: str  # key of SHOWN
    columns: dict[tuple[str, str], str]  # (class or annotator, "low" | "high" | count) -> column
    prefix: str

    @property
    def names(self) -> list[str]:
        """Classes or annotators, in the order of the columns; "" where there is only one."""
        return list(dict.fromkeys(name for name, _ in self.columns))

    @property
    def class_columns(self) -> list[str] | None:
        """Class names that the columns carry."""
        return self.names if self.form != "annotators" and self.names != [""] else None

    @property
    def class_cells(self) -> list[tuple[Table, str]]:
        """Columns whose cells are classes."""
        if not self.rule.classes or self.form == "per_class":
            return []
        columns = self.columns.values()
        return [(self.table, column) for column in columns if not self._is_set(column)]

    def _is_set(self, column: str) -> bool:
        """One array column (n, C) of sets stands for one column a class."""
        return self.form == "one" and self.table.columns[column].ndim > 1

    def values(self, classes: tuple[str, ...] | None) -> NDArray[Any]:
        """Weak labels (n, ...) in the row order of the table, shaped as `infer` takes them."""
        if self.class_cells:
            codes = [class_codes(table, column, classes) for table, column in self.class_cells]
            return codes[0] if self.form == "one" or codes[0].ndim > 1 else np.stack(codes, 1)
        if self.form == "one":
            return self._numbers(self.columns["", ""])
        names = self.names
        if names != [""]:
            pattern = f"{self.prefix}weak_{{}}" + {"interval": "_low", "soft": "_0"}.get(self.form, "")
            same_classes(self.table, dict.fromkeys(names), classes or (), pattern)
            names = list(classes or ())
        if self.form == "per_class":
            return np.stack([self._numbers(self.columns[name, ""]) for name in names], 1)
        ends = ["low", "high"] if self.form == "interval" else self._counts()
        rows = [np.stack([self._numbers(self._end(name, end)) for end in ends], 1) for name in names]
        return rows[0] if names == [""] else np.stack(rows, 1)

    def _counts(self) -> list[str]:
        return [str(count) for count in range(1 + max(int(end) for _, end in self.columns))]

    def _end(self, name: str, end: str) -> str:
        if (name, end) not in self.columns:
            column = f"{self.prefix}weak_" + (f"{name}_{end}" if name else end)
            raise DataError(
                f"{self.table.name} has no column {column!r}; expected {SHOWN[self.form]}. Add it, with "
                "empty cells where nothing is known."
            )
        return self.columns[name, end]

    def _numbers(self, column: str) -> NDArray[Any]:
        cells = self.table.columns[column]
        empty = missing(cells)
        if cells.dtype.kind == "U":
            complain(self.table, column, ~empty, "a number")
        real = self.rule.numbers == "real"
        if self.rule.numbers == "any" and cells.dtype.kind == "f":
            real = bool((~empty & (cells != np.round(cells))).any())
        if real:
            numbers: NDArray[Any] = np.where(empty, np.nan, cells.astype(np.float64))
        else:
            numbers = whole_numbers(self.table, column, cells, empty, of_fractions=self.rule.of_fractions)
            empty = empty | (numbers == -1)
        low = -np.inf if self.rule.low is None else self.rule.low
        high = np.inf if self.rule.high is None else self.rule.high
        with np.errstate(invalid="ignore"):
            bad = ~empty & ((numbers < low) | (numbers > high))
        kind = "a number" if real else "a whole number"
        complain(self.table, column, bad, f"{kind} {_span(low, high)}")
        return numbers


def _span(low: float, high: float) -> str:
    if low == high:
        return f"equal to {low:g}"
    return f"from {low:g}" + (f" to {high:g}" if np.isfinite(high) else "")


def find_weak(part: Supervision, table: Table | None, prefix: str) -> WeakColumns | None:
    """The weak columns of a supervision in a table, None where it has none."""
    if table is None:
        return None
    rule = convention(part)
    found = [name for name in table.columns if re.fullmatch(re.escape(prefix) + r"weak(_.*)?", name)]
    if not found:
        return None
    expected = " or ".join(SHOWN[form] for form in rule.forms)
    for form in rule.forms:
        columns = _parse(form, found, prefix)
        if columns is not None:
            return WeakColumns(table, rule, form, columns, prefix)
    if found == [f"{prefix}weak"] and table.columns[found[0]].ndim > 1:
        # an array of the shape that `infer` takes, from a file of arrays
        return WeakColumns(
            table, replace(rule, classes="annotators" in rule.forms), "one", {("", ""): found[0]}, prefix
        )
    raise DataError(
        f"{table.name} has the columns {listed(found)}; expected {expected} for {part.title}"
        f"{f', after {prefix!r}' if prefix else ''}. Rename or remove them."
    )


def _parse(form: str, found: list[str], prefix: str) -> dict[tuple[str, str], str] | None:
    columns: dict[tuple[str, str], str] = {}
    for name in found:
        suffix = name[len(prefix) + len("weak") :]
        if form == "one":
            if suffix:
                return None
            columns["", ""] = name
            continue
        if not suffix[1:]:
            return None
        if form in ("per_class", "annotators"):
            columns[suffix[1:], ""] = name
            continue
        matched = re.fullmatch(SUFFIXES[form], suffix[1:])
        if matched is None:
            return None
        columns[matched[1] or "", matched[2]] = name
    return columns
