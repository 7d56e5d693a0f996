"""What weaken and the draws are given: labels, bags and a source of chance, checked and in one form."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastbus.bag_layout import read_tensor
from fastbus.bags import Bags
from fastbus.errors import InputError

Array = npt.NDArray[Any]


def as_array(value: object, what: str) -> Array:
    """Numbers of any array type as a NumPy array that may be changed."""
    tensor = read_tensor(
        value,
        what,
        InputError,
        expected="a tensor, array or list of numbers",
        cure="Encode classes as 0..C-1.",
    )
    return np.array(tensor.detach().cpu().numpy())


def read_labels(labels: object, num_classes: int | None, title: str) -> tuple[Array, int]:
    """Labels as int64, (N,) or (N, C), and C. A single 0/1 column is read as binary labels."""
    values = as_array(labels, f"{title}: labels")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
        num_classes = 2 if num_classes in (None, 1) else num_classes
    if values.ndim not in (1, 2) or values.size == 0:
        raise InputError(
            f"{title}: labels of shape {values.shape}; expected (N,) class indices or (N, C) 0/1. "
            "Give one label for every instance, flat."
        )
    whole = values.astype(np.int64) if values.dtype.kind in "biu" else np.nan_to_num(values).astype(np.int64)
    highest = 1 if values.ndim == 2 else None
    bad = (whole != values) | (whole < 0)
    bad = bad if highest is None else bad | (whole > highest)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        expected = "class indices from 0" if highest is None else "0 or 1 for every class"
        raise InputError(
            f"{title}: label {values[place]} in row {place[0]}; expected {expected}. "
            "Leave out instances whose label is unknown."
        )
    shown = values.shape[1] if values.ndim == 2 else max(int(whole.max()) + 1, 2)
    if num_classes is None:
        return whole, shown
    if isinstance(num_classes, bool) or not isinstance(num_classes, (int, np.integer)):
        raise InputError(f"{title}: num_classes={num_classes!r}; expected a whole number. Give C.")
    if num_classes < shown or (values.ndim == 2 and num_classes != shown):
        raise InputError(
            f"{title}: num_classes={num_classes} for labels that show {shown}; expected "
            f"{'exactly' if values.ndim == 2 else 'at least'} that. Leave it out, or give the right number."
        )
    return whole, int(num_classes)


def read_bags(bags: object, N: int, title: str) -> tuple[Array, Array]:
    """The bag of each row (N,) and the sizes (B,) of the bags.

    `bags` holds N bag ids (or is a `Bags`), or the sizes of bags that follow each other. Bags come in the
    order of their ids where these are exactly the integers 0..B-1, else as they first appear.
    """
    if bags is None:
        return np.arange(N), np.ones(N, dtype=np.int64)
    if isinstance(bags, Bags):
        if bags.num_instances != N or not np.array_equal(bags.order, np.arange(N)):
            raise InputError(
                f"{title}: Bags of {bags.num_instances} instances that were reordered or selected, beside "
                f"{N} labels; expected bags whose rows lie as the labels do. Pass the bag id of every label "
                "instead."
            )
        bags = np.repeat(bags.ids, bags.sizes)
    listed: list[Any] = bags.tolist() if hasattr(bags, "tolist") else list(bags)  # type: ignore[call-overload]
    if len(listed) != N:
        sizes = as_array(bags, f"{title}: bags")
        return _following(sizes, N, title)
    if N > 1 and all(entry == 1 and not isinstance(entry, str) for entry in listed):
        raise InputError(
            f"{title}: bags holds {N} ones; expected bag ids or sizes, and this may be either. Leave bags "
            "out if every instance is its own bag, pass zeros if all are in one."
        )
    if any(entry is None or entry != entry for entry in listed):
        raise InputError(f"{title}: a missing bag id; expected one for every row. Drop such rows.")
    seen: dict[Any, int] = {}
    group = np.array([seen.setdefault(entry, len(seen)) for entry in listed], dtype=np.int64)
    whole = all(isinstance(entry, int) and not isinstance(entry, bool) for entry in seen)
    if whole and min(seen) == 0 and max(seen) == len(seen) - 1:
        group = np.array(listed, dtype=np.int64)
    return group, np.bincount(group)


def _following(sizes: Array, N: int, title: str) -> tuple[Array, Array]:
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 1).any() or int(sizes.sum()) != N:
        raise InputError(
            f"{title}: bags of shape {sizes.shape} that sum to {sizes.sum()}; expected {N} bag ids, or sizes "
            f"from 1 that sum to {N}. Give a bag to every row."
        )
    return np.repeat(np.arange(len(sizes)), sizes), sizes.astype(np.int64)


def read_rng(rng: object, title: str) -> np.random.Generator | None:
    """A generator, from itself or a seed."""
    if rng is None or isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, np.random.SeedSequence):
        return np.random.default_rng(rng)
    if isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise InputError(
        f"{title}: rng={rng!r}; expected a NumPy Generator or a seed from 0. Pass rng=numpy.random.default_rng(0)."
    )
