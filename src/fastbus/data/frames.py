"""Objects in memory as tables: pandas and polars frames, Arrow tables, Hugging Face data sets, mappings.

They are recognised by what they offer, so that none of these libraries is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from fastbus.data.arrow import table_of
from fastbus.data.columns import Column, Table, as_column
from fastbus.errors import DataError


def frame_table(source: Any, name: str) -> Table:
    """Any supported object as a table; `name` is what messages call it."""
    if isinstance(source, Mapping) and not hasattr(source, "column_names"):
        return _from_mapping(source, name)
    if hasattr(source, "column_names") and hasattr(source, "schema"):
        return table_of(source, name)
    if hasattr(source, "column_names"):
        return _from_hugging_face(source, name)
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return _from_pandas(source, name)
    if hasattr(source, "columns") and hasattr(source, "get_column"):
        return _from_polars(source, name)
    raise DataError(
        f"{name} of type {type(source).__name__}; expected a path, a pandas or polars frame, an Arrow table, "
        "a Hugging Face data set or a mapping of arrays. Convert it to one of these."
    )


def _from_mapping(source: Mapping[Any, Any], name: str) -> Table:
    columns = {}
    for key, values in source.items():
        if isinstance(values, Tensor):
            values = values.detach().cpu().numpy()
        columns[str(key)] = as_column(values, f"{name}, column {str(key)!r}")
    return Table(name, columns)


def _from_pandas(frame: Any, name: str) -> Table:
    if frame.index.name is not None and frame.index.name not in frame.columns:
        frame = frame.reset_index()  # an index with a name, e.g. "bag", is a column
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f"{name} has two columns {twice!r}; expected different names. Rename one of them.")
    columns: dict[str, Column] = {}
    for key in frame.columns:
        series = frame[key]
        values = series.to_numpy()
        if values.dtype.kind == "O" and series.dtype.kind in "iufb":  # nullable numbers
            values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        columns[str(key)] = as_column(values, f"{name}, column {str(key)!r}")
    return Table(name, columns)


def _from_polars(frame: Any, name: str) -> Table:
    if hasattr(frame, "collect") and not hasattr(frame, "to_numpy"):
        frame = frame.collect()
    columns = {key: as_column(frame.get_column(key).to_numpy(), f"{name}, column {key!r}") for key in frame.columns}
    return Table(name, columns)


def _from_hugging_face(dataset: Any, name: str) -> Table:
    if isinstance(dataset.column_names, Mapping):
        raise DataError(
            f"{name} is a dictionary of the splits {list(dataset.column_names)}; expected one split. "
            f"Pass e.g. dataset[{next(iter(dataset.column_names))!r}]."
        )
    if not hasattr(dataset, "__len__"):
        raise DataError(
            f"{name} is a data set that is only streamed; expected one with a length. Load it without "
            "streaming=True, or write it to Parquet and use iter_tables."
        )
    columns: dict[str, Column] = {}
    for key in dataset.column_names:
        place = f"{name}, column {key!r}"
        column = as_column(list(dataset[key]), place)
        names = getattr((getattr(dataset, "features", None) or {}).get(key), "names", None)
        columns[key] = column if names is None else _class_names(column, names, place)
    return Table(name, columns)


def _class_names(column: Column, names: list[str], place: str) -> Column:
    """Indices of a column with declared class names as these names; -1 is missing."""
    gone = (column == -1) | np.isnan(column.astype(np.float64))
    codes = np.where(gone, 0, column).astype(np.int64)
    if bool(((codes < 0) | (codes >= len(names))).any()):
        row = int(np.nonzero((codes < 0) | (codes >= len(names)))[0][0])
        raise DataError(
            f"class {column[row]}; expected 0 to {len(names) - 1}; {place}, row {row + 1}. Correct the entry."
        )
    return np.where(gone, "", np.array(names, dtype=np.str_)[codes])
