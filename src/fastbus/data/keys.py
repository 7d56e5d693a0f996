"""Ids of bags and tasks in tables, and how the rows of one table find those of another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.bags import BAG, Bags
from fastbus.data.columns import Table, missing
from fastbus.errors import DataError

PURPOSE = {"task": "the instance that was labelled", "worker": "who labelled it"}


def bag_ids(table: Table, column: str) -> NDArray[Any]:
    """A column of ids as int64 or text, one in every row."""
    ids = table.require(column, PURPOSE.get(column, "the id of the bag"))
    if ids.ndim > 1 or ids.dtype.kind == "b":
        raise DataError(f"ids of another kind; expected whole numbers or text; {table.place(column)}. Convert them.")
    bad = missing(ids)
    if ids.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            bad = bad | ~np.isfinite(ids) | (ids != np.round(ids))
    if bad.any():
        row = int(np.nonzero(bad)[0][0])
        cell = "an empty cell" if missing(ids)[row] else repr(ids[row].item())
        raise DataError(
            f"{cell}; expected the id of a {column}, a whole number or text; {table.place(column, row)}. Fill it in."
        )
    return ids if ids.dtype.kind == "U" else ids.astype(np.int64)


def same_kind(keys: NDArray[Any], others: NDArray[Any], table: Table, column: str) -> None:
    """Refuse to compare numbers with text."""
    if keys.dtype.kind != others.dtype.kind:
        raise DataError(
            f"ids such as {keys[0].item()!r}; expected such as {others[0].item()!r}, as the other table has; "
            f"{table.place(column, 0)}. Write the ids in the same way."
        )


def second_time(bag: Any, bag_table: Table, row: int) -> DataError:
    """What to say of a bag that a bag table has twice."""
    return DataError(
        f"bag {bag.item()!r} a second time; expected one row a bag; {bag_table.place(BAG, row)}. Keep one of them."
    )


def positions(bag_table: Table, table: Table, bags: Bags) -> NDArray[np.int64]:
    """Row (B,) of the bag table that belongs to each bag; both tables must know the same bags."""
    keys = bag_ids(bag_table, BAG)
    same_kind(keys, bags.ids, bag_table, BAG)
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    twice = ranked[1:] == ranked[:-1]
    if twice.any():
        row = int(order[1:][twice].min())
        raise second_time(keys[row], bag_table, row)
    slot = np.minimum(np.searchsorted(ranked, bags.ids), len(keys) - 1)
    unknown = ranked[slot] != bags.ids
    if unknown.any():
        bag = int(np.nonzero(unknown)[0][0])
        row = int(bags.order[bags.offsets[bag]])
        raise DataError(
            f"bag {bags.ids[bag].item()!r}; expected only bags of {bag_table.name}; {table.place(BAG, row)}. "
            "Add the bag there, with empty cells where nothing is known."
        )
    empty = ~np.isin(keys, bags.ids)
    if empty.any():
        row = int(np.nonzero(empty)[0][0])
        raise DataError(
            f"bag {keys[row].item()!r} without instances; expected at least one in {table.name}; "
            f"{bag_table.place(BAG, row)}. Remove the bag, or add its instances."
        )
    return np.asarray(order[slot])
