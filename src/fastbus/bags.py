"""Bags: instances that lie flat, bag after bag, with their sizes and the ids of their bags.

B bags, N instances in all: instances (N, ...), sizes (B,), ids (B,), order (N,). `order` remembers where
each row stood in the caller's table, so that results can be given back in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbus.errors import InputError, WeakLabelError

BAG = "bag"


@dataclass(frozen=True, eq=False)
class Bags:
    """Instances (N, ...) bag after bag. Make them with `from_ids` or `from_lists`."""

    instances: Any  # (N, ...) numpy array or tensor
    sizes: NDArray[np.int64]  # (B,)
    ids: NDArray[Any]  # (B,) integers or strings, all different
    order: NDArray[np.int64]  # (N,) the row of the caller's table that each instance stood in

    @staticmethod
    def from_ids(instances: object, bag_ids: object = None) -> Bags:
        """Group rows (N, ...) by bag id (N,). Bags come in order of first appearance, rows in theirs.

        bag_ids=None: every instance is its own bag, with the ids 0..N-1.
        """
        rows = as_rows(instances, "instances")
        N = len(rows)
        if bag_ids is None:
            every = np.arange(N, dtype=np.int64)
            return Bags(rows, np.ones(N, dtype=np.int64), every, every.copy())
        ids = as_ids(bag_ids, "bag ids")
        if len(ids) != N:
            raise InputError(f"{len(ids)} bag ids for {N} instances; expected one for each. Give the bag of every row.")
        unique, bag = _first_appearance(ids)
        sizes = np.bincount(bag, minlength=len(unique))
        order = np.argsort(bag, kind="stable")
        in_place = bool((order == np.arange(N)).all())
        return Bags(rows if in_place else _pick(rows, order), sizes, unique, order)

    @staticmethod
    def from_lists(bags: Sequence[Any], ids: object = None) -> Bags:
        """One array (K_i, ...) a bag; ids are 0..B-1 unless given."""
        if isinstance(bags, (np.ndarray, Tensor)) and bags.ndim < 2:
            raise InputError(
                f"bags as one array of shape {tuple(bags.shape)}; expected a sequence of arrays (K, ...). "
                "Pass one array for each bag."
            )
        parts = [as_rows(bag, f"bag {i}") for i, bag in enumerate(bags)]
        if not parts:
            raise InputError("no bags; expected at least one. Pass one array (K, ...) for each bag.")
        for i, part in enumerate(parts):
            if part.shape[1:] != parts[0].shape[1:]:
                raise InputError(
                    f"bag {i} holds instances of shape {tuple(part.shape[1:])}; expected "
                    f"{tuple(parts[0].shape[1:])}, as bag 0 has. Give all instances the same shape."
                )
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if tensors:
            rows: Any = torch.cat([torch.as_tensor(part, device=tensors[0].device) for part in parts])
        else:
            rows = np.concatenate(parts)
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        names = np.arange(len(parts), dtype=np.int64) if ids is None else as_ids(ids, "bag ids")
        if len(names) != len(parts):
            raise InputError(
                f"{len(names)} bag ids for {len(parts)} bags; expected one for each. Give every bag an id."
            )
        values, counts = np.unique(names, return_counts=True)
        if len(values) < len(names):
            twice = values[counts > 1][0].item()
            raise InputError(f"bag id {twice!r} twice; expected different ids. Rename one of these bags.")
        return Bags(rows, sizes, names, np.arange(len(rows), dtype=np.int64))

    # -- what is where ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_instances(self) -> int:
        return len(self.order)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """(B + 1,): bag i is rows offsets[i] to offsets[i + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def __getitem__(self, index: int) -> Any:
        """The instances (K, ...) of one bag, without a copy."""
        i = int(index)
        if not -len(self) <= i < len(self):
            raise IndexError(f"bag {i} of {len(self)}")
        i %= len(self)
        return self.instances[int(self.offsets[i]) : int(self.offsets[i + 1])]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def rows(self, indices: object) -> NDArray[np.int64]:
        """Positions (n,) of the instances of some bags, bag after bag; a bag may occur twice."""
        bags = np.asarray(indices, dtype=np.int64)
        sizes = self.sizes[bags]
        shift = self.offsets[bags] - (np.cumsum(sizes) - sizes)
        positions: NDArray[np.int64] = np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(shift, sizes)
        return positions

    def subset(self, indices: object) -> Bags:
        """Some of the bags, in the order asked for. `order` still points into the caller's table."""
        bags = np.asarray(indices)
        bags = np.nonzero(bags)[0] if bags.dtype == np.bool_ else bags.astype(np.int64)
        bags = np.where(bags < 0, bags + len(self), bags)
        if bags.ndim != 1 or len(bags) == 0 or bags.min() < 0 or bags.max() >= len(self):
            raise InputError(
                f"bags {np.asarray(indices).tolist()!r} of {len(self)}; expected positions of at least one "
                f"bag, 0 to {len(self) - 1}. Select other bags."
            )
        rows = self.rows(bags)
        return Bags(_pick(self.instances, rows), self.sizes[bags], self.ids[bags], self.order[rows])

    # -- between the caller's order and this one ----------------------------------------------

    def restore(self, rows: Any) -> Any:
        """Results (N, ...) bag after bag, back in the row order of the caller's table."""
        return _pick(self._checked(rows), np.argsort(self.order, kind="stable"))

    def arrange(self, rows: Any) -> Any:
        """The inverse of `restore`: the caller's rows (N, ...), e.g. instance labels, bag after bag."""
        ranks = np.empty(self.num_instances, dtype=np.int64)
        ranks[np.argsort(self.order, kind="stable")] = np.arange(self.num_instances)
        return _pick(self._checked(rows), ranks)

    def _checked(self, rows: Any) -> Any:
        if len(rows) != self.num_instances:
            raise InputError(
                f"{len(rows)} rows for {self.num_instances} instances; expected one for each. "
                "Give a row to every instance."
            )
        return rows

    def align(self, weak: Any) -> Any:
        """Weak labels keyed by bag id as an array (B, ...) in the order of these bags.

        weak: a mapping id -> label, a pandas Series or DataFrame indexed by bag id (or with a column "bag"),
        a polars frame with a column "bag"; a plain array only if the ids are the integers 0..B-1; a
        tuple of these for a combination.
        """
        if isinstance(weak, tuple):
            return tuple(self.align(part) for part in weak)
        keyed = _keyed(weak)
        if keyed is None:
            return self._by_integer_id(weak)
        keys, values = keyed
        at = self._positions(as_ids(keys, "bag ids of the weak labels", WeakLabelError))
        return _pick(values, at)

    def _positions(self, keys: NDArray[Any]) -> NDArray[np.int64]:
        """Where in `keys` each bag's id stands."""
        if keys.dtype.kind != self.ids.dtype.kind:
            kinds = {"U": "text"}
            raise WeakLabelError(
                f"weak labels keyed by {kinds.get(keys.dtype.kind, 'whole numbers')}; expected "
                f"{kinds.get(self.ids.dtype.kind, 'whole numbers')}, as the bag ids are, e.g. "
                f"{self.ids[0].item()!r}. Give both the same type."
            )
        order = np.argsort(keys, kind="stable")
        sorted_keys = keys[order]
        twice = sorted_keys[1:] == sorted_keys[:-1]
        if twice.any():
            raise WeakLabelError(
                f"weak labels give bag {sorted_keys[1:][twice][0].item()!r} twice; expected one entry a bag. "
                "Keep one of them."
            )
        slot = np.minimum(np.searchsorted(sorted_keys, self.ids), len(keys) - 1)
        missing = sorted_keys[slot] != self.ids
        if missing.any():
            raise WeakLabelError(
                f"no weak label; expected one for every bag; bag {self.ids[missing][0].item()!r}"
                f"{_more(int(missing.sum()))}. Add it, marked missing where nothing is known."
            )
        extra = ~np.isin(keys, self.ids)
        if extra.any():
            raise WeakLabelError(
                f"weak labels for a bag that has no instances; expected only bags that occur; bag "
                f"{keys[extra][0].item()!r}{_more(int(extra.sum()))}. Remove it, or add its instances."
            )
        return order[slot]

    def _by_integer_id(self, weak: Any) -> Any:
        integers = self.ids.dtype.kind == "i"
        if not integers or not np.array_equal(np.sort(self.ids), np.arange(len(self))):
            raise WeakLabelError(
                f"weak labels as a plain {type(weak).__name__}, but bag ids such as "
                f"{self.ids[0].item()!r}; expected a mapping or frame keyed by bag id, since the order of "
                'such ids is a guess ("bag_10" sorts before "bag_2"). Pass {bag id: weak label}, which '
                "is dict(zip(dict.fromkeys(ids), weak)) for labels in the order of first appearance."
            )
        values = as_rows(weak, "weak labels", WeakLabelError)
        if len(values) != len(self):
            raise WeakLabelError(
                f"{len(values)} weak labels for {len(self)} bags; expected one for each. Give a weak label "
                "to every bag, marked missing where nothing is known."
            )
        return _pick(values, self.ids)


def as_rows(value: Any, what: str, error: type[InputError | WeakLabelError] = InputError) -> Any:
    """An array or tensor with at least one row, or an `error`."""
    if not isinstance(value, Tensor):
        try:
            value = np.asarray(value.to_numpy() if hasattr(value, "to_numpy") else value)
        except (TypeError, ValueError):
            value = np.empty((), dtype=object)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biuf":
        raise error(
            f"{what} that are not rows of numbers of one shape; expected an array or tensor. Convert every "
            "entry to numbers, with the same length in every row."
        )
    if value.ndim == 0 or len(value) == 0:
        raise error(f"{what} of shape {tuple(value.shape)}; expected at least one row. Leave empty bags out.")
    return value


def as_ids(value: Any, what: str, error: type[InputError | WeakLabelError] = InputError) -> NDArray[Any]:
    """Bag ids (n,) as int64 or as text; whole floats, which frames make of integers, become integers."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if not isinstance(value, np.ndarray):
        entries = list(value)
        value = np.empty(len(entries), dtype=object)
        value[:] = entries
    if value.ndim != 1:
        raise error(f"{what} of shape {value.shape}; expected (N,), one for each row. Give one id a row.")
    if value.dtype.kind in "OT":
        value = _ids_of_objects(value, what, error)
    if value.dtype.kind in "iu":
        return np.asarray(value, dtype=np.int64)
    if value.dtype.kind == "U":
        blank = value == ""
    elif value.dtype.kind == "f":
        blank = ~np.isfinite(value) | (value != np.round(value))
    else:
        raise error(f"{what} of type {value.dtype}; expected whole numbers or text. Give every bag such a name.")
    if blank.any():
        row = int(np.nonzero(blank)[0][0])
        raise error(
            f"{what}: {value[row].item()!r} in row {row}; expected a whole number or text in every row. "
            "Fill it in, or drop the row."
        )
    return np.asarray(value if value.dtype.kind == "U" else value.astype(np.int64))


def _ids_of_objects(value: NDArray[Any], what: str, error: type[InputError | WeakLabelError]) -> NDArray[Any]:
    texts = 0
    for row, entry in enumerate(value):
        number = isinstance(entry, (int, np.integer, float, np.floating)) and not isinstance(entry, bool)
        if not isinstance(entry, str) and (not number or entry != entry):
            raise error(
                f"{what}: {entry!r} in row {row}; expected a whole number or text in every row. "
                "Fill it in, or drop the row."
            )
        if isinstance(entry, str) != bool(texts) and row:
            raise error(
                f"{what}: {entry!r} in row {row} beside {value[0]!r}; expected numbers or text throughout. "
                "Convert all ids to one type."
            )
        texts += isinstance(entry, str)
    if texts:
        return value.astype(np.str_)
    return np.array(value.tolist())


def _first_appearance(ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The different ids (B,) in order of first appearance, and which of them each row has (N,)."""
    # tables are mostly sorted by bag: only the heads of runs of equal ids need to be compared
    starts = np.concatenate([[True], ids[1:] != ids[:-1]])
    heads = ids[starts]
    _, first, inverse = np.unique(heads, return_index=True, return_inverse=True)
    by_appearance = np.argsort(first, kind="stable")
    rank = np.empty_like(by_appearance)
    rank[by_appearance] = np.arange(len(rank))
    return heads[first[by_appearance]], rank[inverse][np.cumsum(starts) - 1]


def _keyed(weak: Any) -> tuple[Any, Any] | None:
    """Bag ids and weak labels of a mapping or frame, None for anything else."""
    if isinstance(weak, Mapping):
        if not weak:
            raise WeakLabelError("an empty mapping of weak labels; expected an entry a bag. Fill it.")
        return list(weak), as_rows(list(weak.values()), "weak labels", WeakLabelError)
    columns = getattr(weak, "columns", None)
    if columns is not None and BAG in list(columns):
        rest = weak.drop(BAG) if not hasattr(weak, "index") else weak.drop(columns=BAG)
        return weak[BAG], _frame_values(rest)
    if hasattr(weak, "index") and hasattr(weak, "to_numpy"):
        return weak.index, _frame_values(weak)
    if columns is not None:
        raise WeakLabelError(f"weak labels in a frame with columns {list(columns)}; expected a column {BAG!r}. Add it.")
    return None


def _frame_values(frame: Any) -> Any:
    values = as_rows(frame, "weak labels", WeakLabelError)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _pick(rows: Any, index: NDArray[np.int64]) -> Any:
    if isinstance(rows, Tensor):
        return rows[torch.from_numpy(np.ascontiguousarray(index)).to(rows.device)]
    return rows[index]


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
