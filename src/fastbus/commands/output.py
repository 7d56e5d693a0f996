"""What commands leave behind: tables written piece by piece and atomically, one JSON object, a word of progress."""

from __future__ import annotations

import csv
import json
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.errors import InputError

TABLES = (".csv", ".tsv", ".parquet", ".pq")
PARTS = ("instances", "bags", "answers")  # tables of a folder


def check_target(path: str, flag: str, inputs: Iterable[Path]) -> Path:
    """Refuse a place that cannot be written, or that the command reads, before the work is done."""
    place = Path(path)
    if place.suffix.lower() not in TABLES:
        raise InputError(f"{flag} {path!r}; expected a file that ends in {', '.join(TABLES)}. Rename it.")
    if place.is_dir():
        raise InputError(f"{flag} {path!r} is a folder; expected a file. Name one in it.")
    refuse_input(place, flag, inputs)
    return place


def check_targets(out: str, bags_out: str | None, inputs: Iterable[Path]) -> tuple[Path, Path | None]:
    """Both files of a command that may write a second one, about bags."""
    inputs = list(inputs)
    rows = check_target(out, "--out", inputs)
    if bags_out is None:
        return rows, None
    bags = check_target(bags_out, "--bags-out", inputs)
    if bags.resolve() == rows.resolve():
        raise InputError(f"--out and --bags-out {bags_out!r}; expected two files. Rename one.")
    return rows, bags


def refuse_input(place: Path, flag: str, inputs: Iterable[Path]) -> None:
    """Refuse to write over what is read, were it by another name; of a folder, over its tables."""
    if not place.exists():
        return
    for given in inputs:
        tables = given.glob("*") if given.is_dir() else [given]
        for table in tables:
            if (table == given or table.stem in PARTS) and table.exists() and place.samefile(table):
                raise InputError(
                    f"{flag} {str(place)!r} is {str(table)!r}, which this command reads; expected another file, since "
                    "it would be overwritten. Rename it."
                )


class TableWriter:
    """Columns of numpy arrays, chunk after chunk, into CSV or Parquet."""

    def __init__(self, path: Path, part: Path) -> None:
        self.is_csv = path.suffix.lower() in (".csv", ".tsv")
        self.part = part
        self.rows = 0
        self.sink: Any = None
        self.lines: Any = None
        if self.is_csv:
            self.sink = open(part, "w", encoding="utf-8", newline="")  # noqa: SIM115
            self.lines = csv.writer(self.sink, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")

    def write(self, columns: Mapping[str, NDArray[Any]]) -> None:
        first = self.rows == 0
        self.rows += len(next(iter(columns.values())))
        if self.is_csv:
            if first:
                self.lines.writerow(columns)
            self.lines.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
            return
        from fastbus.data.arrow import load_pyarrow

        pa = load_pyarrow()
        import pyarrow.parquet as pq

        table = pa.table(
            {
                name: pa.array(column.tolist() if column.dtype.kind in "UO" else column)
                for name, column in columns.items()
            }
        )
        if self.sink is None:
            self.sink = pq.ParquetWriter(self.part, table.schema)
        self.sink.write_table(table.cast(self.sink.schema))

    def close(self) -> None:
        if self.sink is not None:
            self.sink.close()


@contextmanager
def table_writers(out: Path, second: Path | None) -> Iterator[tuple[TableWriter, TableWriter | None]]:
    """Writers into files beside the paths, which take their names once both are written; None for no path."""
    paths = [out] if second is None else [out, second]
    writers: list[TableWriter] = []
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            writers.append(TableWriter(path, path.with_name(f".{path.name}.{os.getpid()}.part")))
        yield writers[0], None if second is None else writers[1]
        for writer in writers:
            writer.close()
            with open(writer.part, "rb") as written:
                os.fsync(written.fileno())
        for writer, path in zip(writers, paths, strict=True):
            os.replace(writer.part, path)
    finally:
        for writer in writers:
            writer.close()
            writer.part.unlink(missing_ok=True)


def print_summary(summary: Mapping[str, Any], as_json: bool) -> None:
    """The outcome on stdout: one JSON object, or a line an entry."""
    if as_json:
        print(json.dumps(summary, default=_number))
        return
    width = max(len(name) for name in summary)
    for name, value in summary.items():
        print(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(entry)}" for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(entry) for entry in value) or "none"
    return str(value)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


class Progress:
    """A count that is renewed on stderr, where that is a terminal."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.done = 0
        self.on = sys.stderr.isatty()

    def add(self, count: int) -> None:
        self.done += count
        if self.on:
            print(f"\r{self.done:,} {self.noun}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.on:
            print(f"\r{' ' * 60}\r", end="", file=sys.stderr, flush=True)


def peak_memory() -> float:
    """The largest memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
