"""Files as tables: CSV and TSV, Parquet, Arrow and .npz, whole or in chunks of rows. Nothing is unpickled."""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Iterator
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fastbus.data.arrow import arrow_chunks, parquet_chunks
from fastbus.data.columns import Table, as_column, from_text, listed
from fastbus.data.frames import frame_table
from fastbus.errors import DataError

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npz")
NAMING = ("bag", "task", "worker", "image")  # columns whose cells name things


def read_table(source: Any, name: str) -> Table:
    """A file or an object in memory as one table with at least one row."""
    if not isinstance(source, (str, PathLike)):
        return frame_table(source, name).filled()
    chunks = list(file_chunks(Path(source), None))
    if not chunks:
        raise DataError(f"{source} has no rows; expected at least one. Write the data first.")
    return chunks[0].filled()


def read_chunks(source: Any, name: str, rows: int) -> Iterator[Table]:
    """The same in chunks of at most `rows` rows; objects in memory are cut without a copy."""
    if isinstance(source, (str, PathLike)):
        yield from file_chunks(Path(source), rows)
        return
    table = frame_table(source, name)
    for start in range(0, len(table), rows):
        yield table.rows(start, start + rows)


def file_chunks(path: Path, rows: int | None) -> Iterator[Table]:
    """Tables of at most `rows` rows each, or one of all rows."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: a file of type {suffix or 'none'}; expected {', '.join(SUFFIXES)}. Convert it.")
    if not path.is_file():
        raise DataError(f"{path} is no file; expected a table. Check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; expected a table. Write the data first.")
    if suffix in (".csv", ".tsv"):
        return _csv_chunks(path, "\t" if suffix == ".tsv" else ",", rows)
    if suffix in (".parquet", ".pq"):
        return parquet_chunks(path, rows)
    if suffix == ".npz":
        return _npz_chunks(path, rows)
    return arrow_chunks(path, rows)


def _csv_chunks(path: Path, separator: str, rows: int | None) -> Iterator[Table]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            header = _header(path, next(reader, []), separator)
            done = 0
            while lines := list(islice(reader, rows)):
                kept = [line for line in lines if line]  # blank lines at the end of a file
                for row, line in enumerate(kept):
                    if len(line) != len(header):
                        raise DataError(
                            f"{len(line)} cells; expected {len(header)}, as the header has; {path}, row "
                            f"{done + row + 1}. Quote cells that contain {separator!r}."
                        )
                cells = zip(*kept, strict=True) if kept else ((),) * len(header)
                columns = {
                    name: from_text(column, names=name in NAMING) for name, column in zip(header, cells, strict=True)
                }
                yield Table(str(path), columns, done)
                done += len(kept)
    except UnicodeDecodeError as problem:
        raise DataError(
            f"{path} is not UTF-8 (byte {problem.start}); expected UTF-8 text. Save it with that encoding."
        ) from None
    except (csv.Error, OSError) as problem:
        raise DataError(f"{path} cannot be read ({problem}); expected a CSV table. Write it anew.") from None


def _header(path: Path, cells: list[str], separator: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if len(names) == 1 and any(sign in names[0] for sign in ";\t,"):
        raise DataError(
            f"{path} has the single column {names[0]!r}; expected columns separated by {separator!r}. "
            "Save it with that separator (.csv: comma, .tsv: tab)."
        )
    if not names or any(not name for name in names):
        raise DataError(f"{path} has the columns {listed(names)}; expected a name for each. Name every column.")
    if all(name.replace(".", "").replace("-", "").isdigit() for name in names):
        raise DataError(
            f"{path} begins with the numbers {listed(names)}; expected a header with column names. Add one."
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{path} has two columns {twice!r}; expected different names. Rename one of them.")
    return names


def _npz_chunks(path: Path, rows: int | None) -> Iterator[Table]:
    columns = {}
    key = ""
    try:
        # numpy leaves a file open that it opened itself and cannot read
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise DataError(f"{path} is no .npz archive; expected one. Write it with numpy.savez.")
            for key in arrays.files:
                columns[key] = as_column(arrays[key], f"{path}, array {key!r}")
    except DataError:
        raise
    except (
        ValueError,
        OSError,
        EOFError,
        KeyError,
        MemoryError,
        NotImplementedError,
        RuntimeError,
    ) as problem:
        raise _unreadable(path, key, problem) from None
    except (zipfile.BadZipFile, zlib.error) as problem:
        raise _unreadable(path, key, problem) from None
    table = Table(str(path), columns)
    for start in range(0, len(table), rows or max(len(table), 1)):
        yield table.rows(start, start + (rows or len(table)))


def _unreadable(path: Path, key: str, problem: Exception) -> DataError:
    where = f"{path}, array {key!r}" if key else str(path)
    if "pickle" in str(problem).lower():
        return DataError(
            f"an array of Python objects; expected numbers or text; {where}. Convert it before numpy.savez: "
            "objects are never unpickled."
        )
    reason = str(problem).partition("\n")[0].rstrip(".")[:160] or type(problem).__name__
    return DataError(f"{where} cannot be read ({reason}); expected an archive of arrays. Write it anew.")
