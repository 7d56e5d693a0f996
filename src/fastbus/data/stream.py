"""Weak data in chunks of whole bags, for tables larger than memory.

The rows of a bag must stand together, and a bag table must list the bags in the same order. Then memory holds
one chunk, plus eight bytes a bag to notice one that comes back later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.bags import BAG
from fastbus.data.columns import Table, joined
from fastbus.data.dataset import WeakData
from fastbus.data.keys import bag_ids, same_kind, second_time
from fastbus.data.layout import make_layout
from fastbus.data.readers import read_chunks
from fastbus.data.tables import assemble, names_bags
from fastbus.errors import DataError, InputError
from fastbus.supervision.base import Supervision

ROWS = 16_384  # read at a time


def iter_tables(
    instances: Any,
    chunk_bags: int = 1024,
    *,
    bags: Any = None,
    supervision: Supervision | str | None = None,
    classes: Sequence[Any] | None = None,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
) -> Iterator[WeakData]:
    """`read_tables` in chunks of `chunk_bags` bags (fewer in the last), in the order of the table.

    `order` of the bags counts rows within the chunk. Class names that only cells show must be given.
    """
    if isinstance(chunk_bags, bool) or not isinstance(chunk_bags, int) or chunk_bags < 1:
        raise InputError(f"chunk_bags={chunk_bags!r}; expected a whole number from 1. Pass e.g. 1024.")
    layout = make_layout(supervision, classes, features, ignore, streaming=True)
    cursor = None if bags is None else _Cursor(read_chunks(bags, "bag table", ROWS))
    seen = _Seen()
    name = None
    for table in _whole_bags(read_chunks(instances, "instance table", ROWS), chunk_bags):
        name = table.name
        bag_table = None
        if BAG in table.columns:
            ids = _ids_in_runs(table)
            seen.add(ids, table)
            bag_table = None if cursor is None else cursor.take(ids, table, seen)
        elif cursor is not None:
            names_bags(table)
        yield assemble(table, bag_table, None, layout)
    if name is None:
        raise DataError("the instance table has no rows; expected at least one. Write the data first.")
    if cursor is not None:
        cursor.finish(name, seen)


def _whole_bags(chunks: Iterator[Table], chunk_bags: int) -> Iterator[Table]:
    """Chunks of rows as chunks of `chunk_bags` bags; the last bag waits for more of its rows."""
    pending: Table | None = None
    for chunk in chunks:
        if len(chunk) == 0:
            continue
        pending = chunk if pending is None else joined(pending, chunk)
        starts = _starts(pending)
        cut = 0
        for first in range(0, len(starts) - 1, chunk_bags):
            if first + chunk_bags >= len(starts):
                break
            cut = int(starts[first + chunk_bags])
            yield pending.rows(int(starts[first]), cut)
        pending = pending.rows(cut, len(pending))
    if pending is None:
        return
    starts = np.append(_starts(pending), len(pending))
    for first in range(0, len(starts) - 1, chunk_bags):
        yield pending.rows(int(starts[first]), int(starts[min(first + chunk_bags, len(starts) - 1)]))


def _starts(table: Table) -> NDArray[np.int64]:
    """The rows where a new bag begins."""
    if BAG not in table.columns:
        return np.arange(len(table))
    ids = table.columns[BAG]
    return np.concatenate([[0], np.nonzero(ids[1:] != ids[:-1])[0] + 1])


def _ids_in_runs(table: Table) -> NDArray[Any]:
    return bag_ids(table, BAG)[_starts(table)]


def _hashed(ids: NDArray[Any]) -> NDArray[np.int64]:
    return ids if ids.dtype.kind == "i" else np.array([hash(name) for name in ids.tolist()], np.int64)


class _Seen:
    """Remembers the bags that have passed by their number, or by a hash of their name."""

    def __init__(self) -> None:
        self.keys: list[NDArray[np.int64]] = []  # sorted, each at least twice as long as the next

    def know(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these have passed."""
        found = np.zeros(len(keys), dtype=np.bool_)
        for known in self.keys:
            slot = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            found |= known[slot] == keys
        return found

    def add(self, ids: NDArray[Any], table: Table) -> None:
        keys = _hashed(ids)
        unique, first = np.unique(keys, return_index=True)
        back = self.know(keys)
        back |= ~np.isin(np.arange(len(keys)), first)
        if back.any():
            run = int(np.nonzero(back)[0][0])
            row = int(_starts(table)[run])
            raise DataError(
                f"bag {ids[run].item()!r} once more, after other bags; expected all its rows together; "
                f"{table.place(BAG, row)}. Sort it by bag, in the order of the bag table if there is one, or in Python "
                "read it at once with read_tables."
            )
        self.keys.append(unique)
        while len(self.keys) > 1 and len(self.keys[-2]) < 2 * len(self.keys[-1]):
            latest = self.keys.pop()
            self.keys[-1] = np.union1d(self.keys[-1], latest)


class _Cursor:
    """Walks through the bag table beside the instance table."""

    def __init__(self, chunks: Iterator[Table]) -> None:
        self.chunks = chunks
        self.pending: Table | None = None

    def take(self, ids: NDArray[Any], table: Table, seen: _Seen) -> Table:
        """The rows of the next bags, which must be these; seen: they and those before."""
        while self.pending is None or len(self.pending) < len(ids):
            chunk = next(self.chunks, None)
            if chunk is None:
                break
            left = self.pending
            self.pending = chunk if left is None or len(left) == 0 else joined(left, chunk)
        if self.pending is None or len(self.pending) < len(ids):
            found = 0 if self.pending is None else len(self.pending)
            raise DataError(
                f"bag {ids[found].item()!r}; expected only bags of the bag table, which has no more rows; "
                f"{table.place(BAG, int(_starts(table)[found]))}. Add the bag there."
            )
        part = self.pending.rows(0, len(ids))
        self.pending = self.pending.rows(len(ids), len(self.pending))
        keys = bag_ids(part, BAG)
        same_kind(keys, ids, part, BAG)
        if (keys != ids).any():
            row = int(np.nonzero(keys != ids)[0][0])
            if keys[row] in ids[:row] or (keys[row] not in ids and seen.know(_hashed(keys[row : row + 1])).any()):
                raise second_time(keys[row], part, row)
            raise DataError(
                f"bag {keys[row].item()!r}; expected {ids[row].item()!r}, the next in {table.name}; "
                f"{part.place(BAG, row)}. List the bags in the same order, or use read_tables."
            )
        return part

    def finish(self, name: str, seen: _Seen) -> None:
        """Refuse bags that are left over."""
        rest = self.pending if self.pending is not None and len(self.pending) else next(self.chunks, None)
        if rest is not None and len(rest):
            ids = bag_ids(rest, BAG)[:1]
            if seen.know(_hashed(ids)).any():
                raise second_time(ids[0], rest, 0)
            raise DataError(
                f"bag {ids[0].item()!r} without instances; expected at least one in {name}; {rest.place(BAG, 0)}. "
                "Remove the bag, or add its instances."
            )
