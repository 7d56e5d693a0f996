"""The tables' records: an entry with the machine and the versions it was measured on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fastbus.bench.results import Record, read_lines
from fastbus.bench.tables.entries import Entry, entry_key

FIELDS = set(Entry._fields) | {"seeds"}


def as_record(entry: Entry, seeds: int, about: Record) -> Record:
    cell = f"{entry.data}: {entry.task}"
    return {"cell": cell, **entry._asdict(), "seeds": seeds, **about}


def key_of(record: Record) -> str:
    return entry_key(record["data"], record["task"], record["method"], record["config"], record["seeds"])


def read_records(path: Path) -> list[Record]:
    """All records of the tables."""
    return read_lines(path, FIELDS)


def newest(records: Iterable[Record], names: Iterable[str], seeds: int) -> list[Record]:
    """The last record of every number asked for, in the order of the data sets."""
    wanted = list(names)
    last: dict[tuple[str, str, str], Record] = {}
    for record in records:
        if record["data"] in wanted and record["seeds"] == seeds:
            last[record["data"], record["task"], record["method"]] = record
    return sorted(last.values(), key=lambda record: wanted.index(record["data"]))
