"""Features and true labels of an instance table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.bags import BAG
from fastbus.data.class_names import class_codes, complain, same_classes, whole_numbers
from fastbus.data.columns import Table, listed, missing
from fastbus.data.image_folder import IMAGE, image_array
from fastbus.data.layout import LABEL, TASK, Layout
from fastbus.data.weak_columns import WEAK
from fastbus.errors import DataError


def feature_rows(table: Table, layout: Layout) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Instances (N, D), or (N, ...) from a single column of arrays, and the names of their columns."""
    if layout.features is None and IMAGE in table.columns and IMAGE not in layout.ignore:
        return image_array(table, layout.images, layout.image_size), (IMAGE,)
    for name in layout.features or ():
        table.require(name, "a feature")
    reserved = (BAG, LABEL, TASK, IMAGE, *layout.ignore)
    names = layout.features or tuple(
        name
        for name in table.columns
        if name not in reserved and not name.startswith(f"{LABEL}_") and not WEAK.fullmatch(name)
    )
    if not names:
        raise DataError(
            f"{table.name} has the columns {listed(table.columns)}; expected at least one feature. Add "
            f"columns of numbers, or a column {IMAGE!r} with paths."
        )
    arrays = [_numbers(table, name) for name in names]
    if len(names) == 1 and arrays[0].ndim > 1:
        return arrays[0], names
    for name, array in zip(names, arrays, strict=True):
        if array.ndim > 1:
            raise DataError(
                f"arrays of shape {array.shape[1:]} beside other features; expected numbers, or arrays "
                f"in one column alone; {table.place(name)}. Choose columns with features= or ignore=."
            )
    single = all(array.dtype == np.float32 for array in arrays)
    return np.stack(arrays, 1).astype(np.float32 if single else np.float64), names


def _numbers(table: Table, name: str) -> NDArray[Any]:
    column = table.columns[name]
    cure = "Encode it as numbers, or leave it out with ignore=."
    if column.dtype.kind == "U":
        row = int(np.nonzero(_no_number(column))[0][0])
        raise DataError(f"{str(column[row])!r} in a feature; expected numbers; {table.place(name, row)}. {cure}")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        row = int(np.nonzero(~np.isfinite(column).reshape(len(column), -1).all(1))[0][0])
        raise DataError(
            f"a feature that is empty, NaN or infinite; expected finite numbers; {table.place(name, row)}. "
            "Fill it in, drop the row, or leave the column out with ignore=."
        )
    return column


def _no_number(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Cells that are the reason why a column is text; all of them where each reads as a number."""
    flags = np.ones(len(column), dtype=np.bool_)
    for row, cell in enumerate(column.tolist()):
        try:
            float(cell or 0)
            flags[row] = False
        except ValueError:
            break
    return flags if flags.any() else np.ones(len(column), dtype=np.bool_)


def true_labels(
    table: Table, columns: list[str], features: Sequence[str], classes: tuple[str, ...] | None
) -> NDArray[Any] | None:
    """True labels in the row order of the table: (N,) classes or (N, C) 0/1."""
    if LABEL in table.columns and LABEL not in features:
        if columns:
            raise DataError(
                f"{table.name} has the columns {LABEL!r} and {columns[0]!r}; expected one form. Remove one."
            )
        column = table.columns[LABEL]
        return class_codes(table, LABEL, classes if column.ndim == 1 else None)
    if not columns:
        return None
    by_class = {name.removeprefix(f"{LABEL}_"): name for name in columns}
    same_classes(table, by_class, classes or (), f"{LABEL}_{{}}")
    values = []
    for name in classes or ():
        cells = table.columns[by_class[name]]
        if cells.dtype.kind == "U":
            complain(table, by_class[name], ~missing(cells), "0 or 1")
        whole = whole_numbers(table, by_class[name], cells, missing(cells))
        complain(table, by_class[name], (whole < -1) | (whole > 1), "0 or 1")
        values.append(whole)
    return np.stack(values, 1)
