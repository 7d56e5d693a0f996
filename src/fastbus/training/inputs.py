"""From the caller's arrays to bags, aligned weak labels and classes.

X is a table of rows (N, ...) with bag ids, or a sequence of bags. Weak labels of bags come keyed by bag id, as
a plain array (B, ...) where the ids are 0..B-1, or repeated on every row of the bag (N, ...); weak labels of
instances come in the order of the rows. Where a frame of them has one column a class, its column names are the classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbus.bags import Bags
from fastbus.errors import InputError, SupervisionError, WeakLabelError
from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination
from fastbus.training.class_columns import read_columns

# kinds whose weak labels are class names or indices, so that the classes can be read off them
CLASS_VALUED = ("semi_supervised", "noisy_label", "crowd_label", "complementary_label")


class Inputs(NamedTuple):
    """Bags, weak labels aligned with them (bag level) or with their rows (instance level), and classes."""

    bags: Bags
    weak: Any  # a tensor, or a tuple of them for a combination
    classes: NDArray[Any]
    columns: bool  # whether some weak label speaks about each class in a column of its own


def parts_of(supervision: Supervision) -> tuple[Supervision, ...]:
    """The parts of a combination, or the supervision alone."""
    return supervision.parts if isinstance(supervision, Combination) else (supervision,)


def is_sequence(X: Any) -> bool:
    """Whether X is a sequence of bags, not a table of rows."""
    if isinstance(X, Bags):
        return True
    if isinstance(X, np.ndarray):
        return X.dtype == object and X.ndim == 1 and len(X) > 0 and np.ndim(X[0]) >= 2
    return isinstance(X, (list, tuple)) and len(X) > 0 and (getattr(X[0], "ndim", None) or _depth(X[0])) >= 2


def as_bags(X: Any, bags: Any, check: Callable[[Any], NDArray[Any]]) -> Bags:
    """Bags of a table with bag ids, or of a sequence of bags; `check` validates the flat rows.

    Rows that are not finite are refused here, since only here it is known where the caller has them.
    """
    if not is_sequence(X):
        rows = check(_on_host(X))
        names = getattr(X, "columns", None)
        _refuse_infinite(rows, lambda row: f"row {row}", None if names is None else list(names))
        return Bags.from_ids(rows, _on_host(bags))
    if bags is not None:
        raise InputError("bags= with a sequence of bags; expected one of them. Leave out bags=.")
    grouped = X if isinstance(X, Bags) else Bags.from_lists(list(X))
    rows = check(_on_host(grouped.instances))

    def place(row: int) -> str:
        bag = int(np.searchsorted(grouped.offsets, row, side="right")) - 1
        return f"bag {grouped.ids[bag].item()!r}, row {row - int(grouped.offsets[bag])} of it"

    _refuse_infinite(rows, place, None)
    return replace(grouped, instances=rows)


def _refuse_infinite(rows: NDArray[Any], place: Callable[[int], str], names: list[Any] | None) -> None:
    """Rows (N, ...) with NaN or infinity; `place` says where a row stands, `names` those of its columns."""
    if rows.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):  # no entry of many images needs a flag of its own
            return
    bad = ~np.isfinite(rows)
    flat = bad.reshape(len(rows), -1).any(1)
    if not flat.any():
        return
    row = int(flat.argmax())
    entry = np.argwhere(bad[row])[0].tolist()
    found = rows[(row, *entry)]
    column = (
        f"entry {tuple(entry)}" if len(entry) != 1 else f"column {entry[0] if names is None else names[entry[0]]!r}"
    )
    more = int(flat.sum()) - 1
    raise InputError(
        f"X contains {'NaN' if np.isnan(found) else 'infinity'}; expected finite numbers; {place(row)}, {column}"
        f"{f' (and {more} more rows)' if more else ''}. Fill it in, e.g. by scikit-learn's SimpleImputer, or drop it."
    )


def read_inputs(
    supervision: Supervision, bags: Bags, weak: Any, head: str, classes: Any, n_classes: int | None
) -> Inputs:
    """Everything a fit needs, aligned and encoded."""
    if hasattr(supervision, "terms"):
        raise SupervisionError(
            f"{supervision.title} is a sum over differently grouped bags; expected one grouping. Train with "
            "WeakLoss and tuples of logits and weak labels."
        )
    parts = parts_of(supervision)
    given = weak if isinstance(supervision, Combination) else (weak,)
    if not isinstance(given, (tuple, list)) or len(given) != len(parts):
        raise WeakLabelError(
            f"{supervision.title}: expected a tuple of {len(parts)} weak labels, one for each part. "
            "Mark entries missing where a part says nothing."
        )
    given, classes = read_columns(parts, given, head, classes, n_classes)
    aligned = [_aligned(part, entry, bags, head) for part, entry in zip(parts, given, strict=True)]
    widths = [_width(part, entry, head) for part, entry in zip(parts, aligned, strict=True)]
    names = _classes(parts, aligned, widths, classes, n_classes)
    encoded = [_encoded(part, entry, names, head) for part, entry in zip(parts, aligned, strict=True)]
    tensors = tuple(torch.tensor(entry) for entry in encoded)
    whole = tensors if isinstance(supervision, Combination) else tensors[0]
    return Inputs(bags, whole, names, any(width is not None and width > 1 for width in widths))


def read_weights(grouped: Bags, sample_weight: Any, bag_weight: Any) -> tuple[Tensor | None, Tensor | None]:
    """Weights of bags (B,) and of instances (N,) in the order of the bags, checked."""
    from sklearn.utils.validation import _check_sample_weight

    of_bags, of_rows = None, None
    if bag_weight is not None:
        of_bags = np.asarray(grouped.align(bag_weight), dtype=np.float64)
        if of_bags.ndim != 1 or not np.isfinite(of_bags).all() or (of_bags < 0).any() or not of_bags.any():
            raise InputError("bag_weight that is negative, not finite or all zero; expected one weight a bag.")
    if sample_weight is not None:
        checked = _check_sample_weight(sample_weight, grouped.instances, dtype=np.float64, ensure_non_negative=True)
        if not checked.any():
            raise InputError("sample_weight that is zero throughout; expected a positive weight for some row.")
        of_rows = np.asarray(grouped.arrange(checked))
    return (None if of_bags is None else torch.tensor(of_bags), None if of_rows is None else torch.tensor(of_rows))


def weak_columns(supervision: Supervision, weak: Any) -> list[bool]:
    """For each part, whether its weak labels have one column a class."""
    parts = parts_of(supervision)
    vectors = [getattr(part, "kind", "exact") in ("interval", "soft") for part in parts]
    given = weak if isinstance(weak, tuple) else (weak,)
    return [entry.dim() == 2 + vector for entry, vector in zip(given, vectors, strict=True)]


# -- alignment ------------------------------------------------------------------------------------


def _aligned(part: Supervision, weak: Any, bags: Bags, head: str) -> NDArray[Any]:
    weak = _on_host(weak)
    if part.level == "bag":
        return _of_bags(part, weak, bags)
    if isinstance(weak, (list, tuple)) and len(weak) == len(bags) and len(weak) and _depth(weak[0]) >= 1:
        sizes = [len(entry) for entry in weak]
        if sizes == bags.sizes.tolist() and bags.sizes.max() > 1:
            # one array a bag, bag after bag already
            return _labels(part, np.concatenate([np.asarray(entry) for entry in weak]), len(bags.order), head)
    values = np.asarray(weak.to_numpy() if hasattr(weak, "to_numpy") else weak)
    return np.asarray(bags.arrange(_labels(part, values, len(bags.order), head)))


def _of_bags(part: Supervision, weak: Any, bags: Bags) -> NDArray[Any]:
    """Weak labels of bags: keyed, in the order of integer ids, or repeated on the rows of each bag."""
    plain = isinstance(weak, (list, np.ndarray))
    if not plain or len(weak) != len(bags.order) or len(weak) == len(bags):
        return np.asarray(bags.align(weak))
    values = np.asarray(bags.arrange(np.asarray(weak)))
    first = values[bags.offsets[:-1]]
    same = values == np.repeat(first, bags.sizes, axis=0)
    if values.dtype.kind == "f":
        same |= np.isnan(values) & np.isnan(np.repeat(first, bags.sizes, axis=0))
    differs = ~same.reshape(len(values), -1).all(1)
    if differs.any():
        bag = int(np.searchsorted(bags.offsets, np.nonzero(differs)[0][0], side="right")) - 1
        raise WeakLabelError(
            f"{part.title}: {len(values)} weak labels, one a row, that differ within a bag; expected one weak label "
            f"a bag, the same on all its rows; bag {bags.ids[bag].item()!r}. Correct them, or pass {{bag id: label}}."
        )
    return first


def _labels(part: Supervision, values: NDArray[Any], rows: int, head: str) -> NDArray[Any]:
    """Weak labels of instances, one for each row."""
    if values.ndim == 0 or len(values) != rows:
        raise WeakLabelError(
            f"{part.title}: weak labels of shape {values.shape} for {rows} instances, an inconsistent number; "
            "expected one for every instance, in the order of the rows. Mark missing ones -1, or NaN in floats."
        )
    if part.title in ("semi_supervised", "noisy_label") and values.ndim == 2 and values.shape[1] == 1:
        from sklearn.utils import column_or_1d

        values = column_or_1d(values, warn=head == "softmax")
    if values.dtype.kind == "f" and np.isinf(values).any():
        raise WeakLabelError(
            f"{part.title}: Input y contains infinity; expected finite weak labels, NaN where missing. Correct them."
        )
    return values


# -- classes --------------------------------------------------------------------------------------


def _classes(
    parts: tuple[Supervision, ...],
    weak: list[NDArray[Any]],
    widths: list[int | None],
    classes: Any,
    n_classes: int | None,
) -> NDArray[Any]:
    """The classes in the order of their indices: as given, by number, or read off the weak labels."""
    width = next((max(2, width) for width in widths if width is not None), None)
    binary = any(part.binary for part in parts)
    if classes is not None or n_classes is not None:
        names = np.arange(max(2, int(n_classes or 2))) if classes is None else np.asarray(classes)
        wanted = width or (2 if binary else None)
        if names.ndim != 1 or len(set(names.tolist())) != len(names) or (wanted is not None and wanted != len(names)):
            shown = f"{wanted}, as the weak labels show" if wanted else "different names"
            raise InputError(f"{names.tolist()!r} as classes; expected {shown}. Correct classes= or n_classes=.")
        return names
    if binary:
        return np.arange(2)
    if width is not None:
        return np.arange(width)
    named = [entry for part, entry in zip(parts, weak, strict=True) if part.title in CLASS_VALUED]
    if named:
        return _seen(named)
    if all(part.level == "bag" and entry.ndim == 1 for part, entry in zip(parts, weak, strict=True)):
        return np.arange(2)
    raise WeakLabelError(
        "the weak labels do not show the classes; expected their names or number. Pass classes=[...] or n_classes=."
    )


def _seen(named: list[NDArray[Any]]) -> NDArray[Any]:
    """The sorted classes that occur; -1 marks a missing label, unless -1 and 1 are all there is."""
    from sklearn.utils.multiclass import check_classification_targets

    values = np.concatenate([entry.reshape(-1) for entry in named])
    if values.dtype.kind in "if" and set(np.unique(values).tolist()) == {-1, 1}:
        return np.array([-1, 1], dtype=values.dtype)
    values = values[~missing(values)]
    if len(values) == 0:
        raise WeakLabelError("no instance has a label; expected some. Label a few, or pass classes=.")
    kinds = {isinstance(value, str) for value in values.tolist()}
    if len(kinds) > 1:
        raise WeakLabelError("class labels of mixed types; expected text or numbers throughout. Convert them.")
    check_classification_targets(values)
    return np.unique(values)


def _width(part: Supervision, values: NDArray[Any], head: str) -> int | None:
    """C where weak labels have one column a class, or a matrix shows it."""
    matrix = getattr(part, "transition", None)
    matrix = getattr(part, "transitions", None) if matrix is None else matrix
    if matrix is not None:
        return int(matrix.shape[-1])
    if part.title == "partial_label" or (part.title == "complementary_label" and values.ndim == 2):
        return int(values.shape[-1])
    if part.title == "semi_supervised" and head == "sigmoid" and values.ndim == 2:
        return int(values.shape[-1])
    vector = getattr(part, "kind", "exact") in ("interval", "soft")
    if part.level == "bag" and part.labels == "per_class" and not part.binary and values.ndim == 2 + vector:
        return int(values.shape[1])
    return None


def missing(values: NDArray[Any], classes: NDArray[Any] | None = None) -> NDArray[np.bool_]:
    """Which labels say nothing: NaN, None, empty text, and -1 in integers unless it is a class."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    if values.dtype.kind in "iu":
        is_class = classes is not None and -1 in classes.tolist()
        return np.zeros(values.shape, dtype=bool) if is_class else np.asarray(values == -1)
    flags = [_says_nothing(value) for value in values.reshape(-1).tolist()]
    return np.asarray(flags, dtype=bool).reshape(values.shape)


def _says_nothing(value: Any) -> bool:
    try:
        return bool(value is None or value == "" or value != value)
    except TypeError:  # pandas' NA is neither equal nor unequal to anything
        return True


def _encoded(part: Supervision, values: NDArray[Any], classes: NDArray[Any], head: str) -> NDArray[Any]:
    """Class names to indices, where the weak labels are classes."""
    flags = values.ndim == 2 and (part.title == "complementary_label" or head == "sigmoid")
    if part.title not in CLASS_VALUED or (flags and part.title != "crowd_label"):
        if values.dtype.kind not in "biuf":
            raise WeakLabelError(f"{part.title}: weak labels of type {values.dtype}; expected numbers. Encode them.")
        return values
    gone = missing(values, classes)
    index = {name: position for position, name in enumerate(classes.tolist())}
    flat = values.reshape(-1).tolist()
    codes = np.asarray(
        [-1 if lost else index.get(value, -2) for value, lost in zip(flat, gone.reshape(-1), strict=True)],
        dtype=np.int64,
    ).reshape(values.shape)
    if (codes == -2).any():
        raise WeakLabelError(
            f"{part.title}: class {values[codes == -2].tolist()[0]!r}; expected one of {classes.tolist()[:10]}. "
            "Correct it, or add it to classes=."
        )
    return codes


def _depth(value: Any) -> int:
    """Number of axes of nested lists, without building an array of ragged ones."""
    if hasattr(value, "ndim"):
        return int(value.ndim)
    return 1 + _depth(value[0]) if isinstance(value, (list, tuple)) and value else 0


def _on_host(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value
