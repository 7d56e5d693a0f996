"""Class names and class indices: one list of names for a whole data set, from wherever it shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.data.columns import Column, Table, listed, missing
from fastbus.errors import DataError

CURE = "Correct the cell, or leave it empty where nothing is known."
Places = list[tuple[Table, str]]  # columns whose cells are classes


def class_names(
    given: Sequence[Any] | None,
    from_columns: Iterable[Sequence[str]],
    cells: Places,
    *,
    streaming: bool = False,
) -> tuple[str, ...] | None:
    """The names in the order of their indices.

    Those given; else those that columns such as weak_<class> carry, in the order of the columns (numbers by
    size); else the different texts in the columns of classes, sorted; None where classes are indices only.
    """
    if given is not None:
        names = tuple(str(name) for name in given)
        if len(set(names)) < len(names) or not names:
            raise DataError(f"classes={list(given)!r}; expected different names. Name every class once.")
        return names
    for columns in from_columns:
        numbers = all(name.isdigit() for name in columns)
        return tuple(sorted(columns, key=int) if numbers else columns)
    texts = [table.columns[column] for table, column in cells if table.columns[column].dtype.kind == "U"]
    if not texts:
        return None
    if streaming:
        table, column = next(place for place in cells if place[0].columns[place[1]].dtype.kind == "U")
        raise DataError(
            f"class names without a list of them; expected the list, since later chunks may hold others; "
            f"{table.place(column)}. Pass classes=[...]."
        )
    found = np.unique(np.concatenate(texts))
    return tuple(str(name) for name in found if name != "")


def same_classes(table: Table, columns: dict[str, Any], classes: Sequence[str], pattern: str) -> None:
    """Refuse columns named after classes (class name -> column) that are not exactly the known ones."""
    for name in columns:
        if name not in classes:
            raise DataError(
                f"class {name!r}; expected one of {listed(classes)}; {table.place(pattern.format(name))}. "
                "Correct the name, or pass classes=[...]."
            )
    for name in classes:
        if name not in columns:
            raise DataError(
                f"{table.name} has no column {pattern.format(name)!r}; expected one for each of the classes "
                f"{listed(classes)}. Add it, with empty cells where nothing is known."
            )


def class_codes(
    table: Table, column: str, classes: Sequence[str] | None, num_classes: int | None = None
) -> NDArray[np.int64]:
    """A column of names or indices as indices, -1 where missing; the shape of the column."""
    cells = table.columns[column]
    empty = missing(cells)
    if cells.dtype.kind == "U":
        return _codes_of_names(table, column, cells, empty, classes or ())
    whole = whole_numbers(table, column, cells, empty)
    empty = empty | (whole == -1)
    if classes is None:
        high = None if num_classes is None else num_classes - 1
        bad = ~empty & ((whole < 0) | (False if high is None else whole > high))
        complain(table, column, bad, f"a class index 0 to {'...' if high is None else high}")
        return np.where(empty, -1, whole)
    numbers = [name for name in classes if name.lstrip("-").isdigit()]
    if numbers:  # the names are numbers themselves: 3 means the class named 3, not the fourth
        return _codes_of_names(table, column, whole.astype(np.str_), empty, classes)
    complain(
        table,
        column,
        ~empty & ((whole < 0) | (whole >= len(classes))),
        f"a class index 0 to {len(classes) - 1}",
    )
    return np.where(empty, -1, whole)


def _codes_of_names(
    table: Table, column: str, cells: Column, empty: NDArray[np.bool_], classes: Sequence[str]
) -> NDArray[np.int64]:
    names = np.array(classes, dtype=np.str_)
    order = np.argsort(names, kind="stable")
    slot = np.minimum(np.searchsorted(names[order], cells), max(len(names) - 1, 0))
    codes = order[slot]
    complain(table, column, ~empty & (names[codes] != cells), f"one of the classes {listed(classes)}")
    return np.where(empty, -1, codes)


def whole_numbers(
    table: Table, column: str, cells: Column, empty: NDArray[np.bool_], *, of_fractions: str = ""
) -> NDArray[np.int64]:
    """Numbers as int64, -1 where missing; `of_fractions` is the cure where the first bad cell is one."""
    if cells.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            bad = ~empty & ((cells != np.round(cells)) | np.isinf(cells))
            cure = of_fractions if bad.any() and 0 < cells[bad][0] < 1 else ""
            complain(table, column, bad, "a whole number", cure or CURE)
    return np.where(empty, -1, cells).astype(np.int64)


def complain(table: Table, column: str, bad: NDArray[np.bool_], expected: str, cure: str = CURE) -> None:
    """Raise a DataError that names the first bad cell, if there is one."""
    if not bad.any():
        return
    row = int(np.nonzero(bad.reshape(len(bad), -1).any(1))[0][0])
    cell = table.columns[column][row]
    value = cell.item() if cell.ndim == 0 else cell.tolist()
    more = int(bad.reshape(len(bad), -1).any(1).sum()) - 1
    also = f" (and {more} more)" if more else ""
    raise DataError(f"{value!r}; expected {expected}; {table.place(column, row)}{also}. {cure}")
