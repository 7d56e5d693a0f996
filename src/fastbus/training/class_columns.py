"""Frames of weak labels with one column a class: their column names are the classes.

Columns that only count, 0..C-1 or column_0.. as polars names those of an array, carry no names and stay in their
order; a prefix `weak_`, as tables have it, is no part of a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastbus.bags import BAG
from fastbus.errors import WeakLabelError
from fastbus.supervision.base import Supervision

PREFIX = "weak_"


def has_class_columns(part: Supervision, head: str) -> bool:
    """Whether a table of weak labels has a column for each class, not for annotators, bounds or counts."""
    if part.title in ("partial_label", "complementary_label"):
        return True
    if part.title == "semi_supervised":
        return head == "sigmoid"
    numbers = getattr(part, "kind", "exact") in ("interval", "soft")
    return part.level == "bag" and part.labels == "per_class" and not part.binary and not numbers


def read_columns(
    parts: Sequence[Supervision], weak: Sequence[Any], head: str, classes: Any, n_classes: int | None
) -> tuple[list[Any], Any]:
    """Weak labels, one a part, with frames in the order of the classes, and the classes, if frames name them."""
    of_classes = [has_class_columns(part, head) for part in parts]
    if classes is None:
        frames = (entry for entry, named in zip(weak, of_classes, strict=True) if named)
        classes = next((names for names in map(column_names, frames) if names is not None), None)
        if classes is None or n_classes not in (None, len(classes)):
            return list(weak), None
    ordered = [
        by_class(entry, classes, part.title, keyed=part.level == "bag") if named else entry
        for part, entry, named in zip(parts, weak, of_classes, strict=True)
    ]
    return ordered, classes


def column_names(weak: Any) -> list[Any] | None:
    """The classes that the columns of a frame, or of the first of several, name; None where they name none."""
    weak = weak[0] if _are_frames(weak) else weak
    columns = _columns(weak)
    if columns is None or len(columns) < 2:
        return None
    texts = [str(column) for column in columns]
    if all(text.startswith(PREFIX) for text in texts):
        texts = columns = [text.removeprefix(PREFIX) for text in texts]
    if texts == _count("", columns) or texts == _count("column_", columns):
        return None
    numbers = all(isinstance(column, (bool, int, float)) for column in columns)
    return columns if numbers else texts


def by_class(weak: Any, classes: Any, title: str, *, keyed: bool = True) -> Any:
    """Weak labels with the columns of a frame in the order of the classes; anything else as it is.

    keyed: a column "bag" holds the ids of bags.
    """
    if _are_frames(weak):
        return [by_class(entry, classes, title, keyed=keyed) for entry in weak]
    wanted = np.asarray(classes).tolist()
    columns = _columns(weak)
    if columns is None or len(columns) < 2 or not isinstance(wanted, list):
        return weak
    if not keyed and len(columns) < len(list(weak.columns)):
        raise WeakLabelError(
            f"{title}: a column {BAG!r} among weak labels of instances; expected one column a class. Drop it, and "
            "pass the ids as bags=."
        )
    names = column_names(weak)
    if names is None:
        # numbers that were chosen as names, as a cross table has them, may stand in another order than the classes
        names = columns if not _made_up(weak) and set(columns) == set(wanted) else None
    if names is None:
        return weak
    # names in polars are text, whatever the classes are
    place = {str(name): at for at, name in enumerate(names)}
    if len(place) < len(names) or sorted(place) != sorted(map(str, wanted)):
        raise WeakLabelError(
            f"{title}: weak labels in columns {_shown(names)}; expected one for each of the classes {_shown(wanted)}. "
            "Rename the columns, or give classes= their names."
        )
    order = [place[str(name)] for name in wanted]
    if order == list(range(len(order))):
        return weak
    lead = [BAG] if len(columns) < len(list(weak.columns)) else []
    return weak[lead + [columns[at] for at in order]]


def _columns(weak: Any) -> list[Any] | None:
    """Columns of a frame without that of the bag ids, None for anything else."""
    columns = getattr(weak, "columns", None)
    if columns is None or not hasattr(weak, "to_numpy"):
        return None
    return [column for column in list(columns) if not (isinstance(column, str) and column == BAG)]


def _are_frames(weak: Any) -> bool:
    """Whether weak labels come as one frame for each of a sequence of bags."""
    return isinstance(weak, (list, tuple)) and len(weak) > 0 and all(_columns(entry) is not None for entry in weak)


def _made_up(frame: Any) -> bool:
    """Whether pandas numbered the columns itself."""
    return type(frame.columns).__name__ == "RangeIndex"


def _count(prefix: str, columns: Sequence[Any]) -> list[str]:
    return [f"{prefix}{number}" for number in range(len(columns))]


def _shown(names: list[Any]) -> str:
    return str(names) if len(names) <= 10 else f"{names[:10]} and {len(names) - 10} more"
