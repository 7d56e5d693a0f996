"""Columns: the one form in which every file and frame reaches the layout.

A column is a numpy array with a row for each row of its table: booleans, integers, floats with NaN where a
cell is empty, or text with "" where it is. Columns of lists become arrays (n, ...). Rows are counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.errors import DataError

Column = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of one length."""

    name: str  # the file, or what the table is for
    columns: Mapping[str, Column]
    first_row: int = 0  # rows of the file before this chunk

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            first, *others = lengths
            odd = next(name for name in others if lengths[name] != lengths[first])
            raise DataError(
                f"{self.name}: column {odd!r} has {lengths[odd]} rows; expected {lengths[first]}, as column "
                f"{first!r} has. Put what has one entry a bag into the bag table."
            )

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def place(self, column: str, row: int | None = None) -> str:
        """Where a complaint points: `data.csv, column 'weak', row 17`."""
        at = "" if row is None else f", row {self.first_row + row + 1}"
        return f"{self.name}, column {column!r}{at}"

    def require(self, column: str, purpose: str) -> Column:
        """A column that the layout cannot do without."""
        if column not in self.columns:
            raise DataError(
                f"{self.name} has the columns {listed(self.columns)}; expected a column {column!r}, "
                f"{purpose}. Add or rename it."
            )
        return self.columns[column]

    def rows(self, start: int, stop: int) -> Table:
        """A run of rows, without a copy."""
        columns = {name: column[start:stop] for name, column in self.columns.items()}
        return Table(self.name, columns, self.first_row + start)

    def filled(self) -> Table:
        """Itself, refused where it has no rows."""
        if len(self) == 0:
            raise DataError(f"{self.name} has no rows; expected at least one. Write the data first.")
        return self


def joined(first: Table, second: Table) -> Table:
    """One chunk after the other; a column must stay what it was."""
    if list(first.columns) != list(second.columns):
        raise DataError(
            f"{first.name} has the columns {listed(first.columns)}, later {listed(second.columns)}; expected "
            "the same throughout. Write it anew."
        )
    columns = {}
    for name, column in first.columns.items():
        more = second.columns[name]
        texts = [part.dtype.kind == "U" for part in (column, more) if not all_missing(part)]
        if len(set(texts)) > 1:
            raise DataError(
                f"numbers beside text; expected one of them; {second.place(name, 0)} or before. "
                "Write all cells of the column in one way."
            )
        if any(texts):
            column, more = (part if part.dtype.kind == "U" else blank(len(part)) for part in (column, more))
        columns[name] = np.concatenate([column, more])
    return Table(first.name, columns, first.first_row)


def blank(rows: int) -> Column:
    """Empty cells of a text column."""
    return np.zeros(rows, dtype="U1")


def missing(column: Column) -> NDArray[np.bool_]:
    """Which cells are empty, in the shape of the column."""
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind == "U":
        return np.asarray(column == "")
    return np.zeros(column.shape, dtype=np.bool_)


def all_missing(column: Column) -> bool:
    return bool(missing(column).all())


def listed(names: Any, limit: int = 6) -> str:
    """Some names for a message: 'a', 'b', ... (12 in all)."""
    every = [repr(str(name)) for name in names]
    more = f", ... ({len(every)} in all)" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more if every else "none"


def from_text(cells: Sequence[str], *, names: bool = False) -> Column:
    """Cells of a text file as booleans, integers, floats or text; empty ones are missing.

    names: cells that name things (bags, workers), so that "007" and "1e5" stay text.
    """
    column = np.char.strip(np.array(cells, dtype=np.str_)) if cells else blank(0)
    empty = column == ""
    given = column[~empty]
    if not len(given):
        return blank(len(column)) if names else np.full(len(column), np.nan)
    whole = _whole_numbers(given)
    if whole is not None and (not names or not empty.any()):
        return _spread(whole, empty)
    if names:
        return column
    if bool(np.isin(np.char.lower(given), ("true", "false")).all()):
        return _spread(np.char.lower(given) == "true", empty)
    try:
        return _spread(given.astype(np.float64), empty)
    except ValueError:
        return column


def _whole_numbers(cells: Column) -> Column | None:
    try:
        numbers = cells.astype(np.int64)
    except (ValueError, OverflowError):
        return None
    return numbers if bool((numbers.astype(np.str_) == cells).all()) else None


def _spread(given: Column, empty: NDArray[np.bool_]) -> Column:
    if not empty.any():
        return given
    column = np.full(len(empty), np.nan)
    column[~empty] = given
    return column


def as_column(values: Any, place: str) -> Column:
    """An array, or a sequence of Python objects, as a column."""
    if not isinstance(values, np.ndarray):
        entries = list(values)
        values = np.empty(len(entries), dtype=object)
        for row, entry in enumerate(entries):  # a slice would unpack entries that are sequences
            values[row] = entry
    if values.ndim == 0:
        raise DataError(f"a single value; expected one for each row; {place}. Leave it out.")
    if values.dtype.kind in "biufU":
        return np.asarray(values)
    if values.dtype.kind not in "OT" or values.ndim != 1:
        raise DataError(
            f"values of type {values.dtype}; expected numbers or text; {place}. Convert them, or leave the "
            "column out with ignore=."
        )
    return _from_objects(values, place)


def _from_objects(values: Column, place: str) -> Column:
    empty = np.fromiter((_is_missing(entry) for entry in values), dtype=np.bool_, count=len(values))
    given = [entry for entry, gone in zip(values, empty, strict=True) if not gone]
    if not given:
        return np.full(len(values), np.nan)
    text = [isinstance(entry, str) for entry in given]
    rows = np.nonzero(~empty)[0]
    if all(text):
        return np.array(["" if gone else entry for entry, gone in zip(values, empty, strict=True)])
    if any(text):
        odd = text.index(not text[0])
        raise DataError(
            f"{given[odd]!r} beside {given[0]!r}; expected numbers or text throughout; {place}, row "
            f"{int(rows[odd]) + 1}. Convert the column to one type."
        )
    if all(isinstance(entry, (bool, np.bool_, int, float, np.integer, np.floating)) for entry in given):
        return _spread(np.array(given), empty)
    return _stacked(given, empty, place)


def _stacked(given: list[Any], empty: NDArray[np.bool_], place: str) -> Column:
    """Cells that hold lists, arrays or pictures, all of one shape."""
    try:
        arrays = [np.asarray(entry) for entry in given]
    except (TypeError, ValueError):
        arrays = [np.empty((), dtype=object)]
    if any(array.ndim == 0 or array.dtype.kind not in "biuf" for array in arrays):
        raise DataError(
            f"cells of type {type(given[0]).__name__}; expected numbers, text, or lists of numbers; {place}. "
            "Convert them, or leave the column out with ignore=."
        )
    rows = np.nonzero(~empty)[0]
    for row, array in zip(rows, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise DataError(
                f"{array.shape} numbers in a cell; expected {arrays[0].shape}, as in the first row; {place}, "
                f"row {int(row) + 1}. Give every row the same length."
            )
    if not empty.any():
        return np.stack(arrays)
    column = np.full((len(empty), *arrays[0].shape), np.nan)
    column[~empty] = np.stack(arrays)
    return column


def _is_missing(entry: Any) -> bool:
    if entry is None or type(entry).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(entry, (float, np.floating)) and bool(np.isnan(entry))
