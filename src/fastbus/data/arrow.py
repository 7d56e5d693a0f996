"""Parquet and Arrow files as tables, whole or in chunks of rows. pyarrow is imported on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbus.data.columns import Column, Table, as_column
from fastbus.errors import DataError

if TYPE_CHECKING:
    import types


def load_pyarrow() -> types.ModuleType:
    """pyarrow, or how to get it."""
    try:
        import pyarrow
    except ImportError:
        raise DataError(
            "pyarrow is not installed; expected it for Parquet and Arrow files. "
            'Install it with: pip install "fastbus[data]"'
        ) from None
    module: types.ModuleType = pyarrow
    return module


def parquet_chunks(path: Path, rows: int | None) -> Iterator[Table]:
    """A Parquet file in chunks of at most `rows` rows, or whole."""
    pa = load_pyarrow()
    import pyarrow.parquet as pq

    with _reading(path, pa), pq.ParquetFile(path, pre_buffer=False, memory_map=False) as file:
        if rows is None:
            yield table_of(file.read(use_threads=False), str(path))
            return
        done = 0
        for batch in file.iter_batches(batch_size=rows, use_threads=False):
            yield table_of(pa.Table.from_batches([batch]), str(path), done)
            done += batch.num_rows


def arrow_chunks(path: Path, rows: int | None) -> Iterator[Table]:
    """An Arrow (Feather version 2) file or stream: one chunk a stored batch, or whole."""
    pa = load_pyarrow()
    with _reading(path, pa), pa.OSFile(str(path), "rb") as source:
        try:
            reader = pa.ipc.open_file(source)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            reader = pa.ipc.open_stream(source)
            batches = iter(reader)
        if rows is None:
            table = pa.Table.from_batches(batches, schema=reader.schema)
            table.validate(full=True)  # damaged offsets would point outside the file's memory
            yield table_of(table, str(path))
            return
        done = 0
        for batch in batches:
            batch.validate(full=True)
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                yield table_of(pa.Table.from_batches([part]), str(path), done + start)
            done += batch.num_rows


def table_of(arrow: Any, name: str, first_row: int = 0) -> Table:
    """An Arrow table with every column as numpy."""
    twice = {column for column in arrow.column_names if arrow.column_names.count(column) > 1}
    if twice:
        raise DataError(f"{name} has two columns {min(twice)!r}; expected different names. Rename one of them.")
    columns = {column: _numpy(arrow.column(column), f"{name}, column {column!r}") for column in arrow.column_names}
    return Table(name, columns, first_row)


def _numpy(column: Any, place: str) -> Column:
    pa = load_pyarrow()
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_decimal(kind) or pa.types.is_null(kind):
        column, kind = column.cast(pa.float64()), pa.float64()
    if pa.types.is_floating(kind):
        return np.asarray(column.to_numpy())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        if not column.null_count:
            return np.asarray(column.to_numpy())
        return np.asarray(column.cast(pa.int8() if pa.types.is_boolean(kind) else kind).cast(pa.float64()).to_numpy())
    if pa.types.is_fixed_size_list(kind) and not column.null_count and pa.types.is_primitive(kind.value_type):
        flat = column.combine_chunks().flatten()
        if not flat.null_count:
            return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(column), kind.list_size)
    return as_column(column.to_pylist(), place)


@contextmanager
def _reading(path: Path, pa: Any) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, EOFError) as problem:
        reason = str(problem).partition("\n")[0].rstrip(".")[:160]
        raise DataError(
            f"{path} cannot be read ({reason}); expected a complete Parquet or Arrow file. Write it anew."
        ) from None
