"""From a plain Python function to the smallest chain: the brute-force search, compressed.

All labellings of a bag are leaves of a tree. Two prefixes are equal when all their completions have
the same weak label, so nodes are merged layer by layer from the leaves up; what is left is the
minimal layered chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.supervision.base import Supervision
from fastbus.supervision.evidence import Evidence
from fastbus.supervision.reading import WeakReader

MAX_LABELLINGS = 2**20


class CompressedRule(Supervision):
    """A rule given as a function of the whole label tuple, for bags of one size."""

    def __init__(self, rule: Callable[[tuple[int, ...]], Hashable], bag_size: int, num_labels: int) -> None:
        if not callable(rule):
            raise SupervisionError(
                f"from_function: rule {rule!r}; expected a function from a label tuple to a weak "
                "label. Pass the function itself, not its result."
            )
        if not (_whole(bag_size) and _whole(num_labels)) or bag_size < 1 or num_labels < 2:
            raise SupervisionError(
                f"from_function: bag_size={bag_size!r}, num_labels={num_labels!r}; expected whole "
                "numbers, at least 1 and 2. Give the size of the bags and the number of labels."
            )
        if num_labels**bag_size > MAX_LABELLINGS:
            raise SupervisionError(
                f"from_function: {num_labels}**{bag_size} labellings; expected at most "
                f"{MAX_LABELLINGS}. Subclass Supervision and write step and evidence instead."
            )
        self.function = rule
        self.bag_size = bag_size
        self.num_labels = num_labels
        self.labels = "per_class" if num_labels == 2 else "categorical"
        leaves, self.values = _leaf_ids(rule, bag_size, num_labels)
        if any(value == -1 or value != value for value in self.values):
            raise SupervisionError(
                "from_function: the rule returns -1 or NaN; expected other weak labels, since these two "
                "mark missing ones. Return 0 instead, or a string."
            )
        self._tables = _merge(leaves, bag_size, num_labels)
        self._codes = _codes(self.values)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Distinct states before each label and after the last one."""
        return (*(table.shape[0] for table in self._tables), len(self.values))

    def num_states(self, bag_size: int) -> int:
        return max(self.layer_sizes)

    def step(self, state: Tensor, label: Tensor, position: int = 0) -> Tensor:
        table = self._tables[position].to(state.device)
        return table[state.clamp(max=table.shape[0] - 1), label]

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        codes = self._codes_like(weak)
        code = codes[state.clamp(max=codes.shape[0] - 1)]
        return (code == weak) & (state < codes.shape[0])

    def _codes_like(self, weak: Tensor) -> Tensor:
        """The codes where `weak` is, rounded as it was: 0.2 in float32 is not 0.2 in float64."""
        return self._codes.to(weak.device, weak.dtype if weak.is_floating_point() else None)

    def weak_labels(self, bag_size: int) -> Sequence[Any]:
        """The weak labels as `infer` takes them: numbers as they are, others by position in `values`."""
        return tuple(self._codes.tolist())

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        reader.bag_size(len(self._tables), "bags")
        if self.labels == "categorical":
            reader.single_label()
        if self.labels == "categorical" and reader.num_labels != self.num_labels:
            raise SupervisionError(
                f"{self.title}: predictions of {reader.num_labels} labels; expected "
                f"{self.num_labels}, as from_function was told. Call it with "
                f"num_labels={reader.num_labels}."
            )
        if reader.validate:
            # the shape first, so that the bags named below are the caller's
            values = self.weak_values(weak, reader)[0]
            present = reader.present(values, "weak labels")
            known = torch.isin(values.double(), self._codes_like(values).double())
            reader.refuse_value(
                values,
                present & ~known,
                f"one of {list(self.weak_labels(len(self._tables)))}",
                "The function returns no other weak label.",
            )
        return super().read(weak, reader)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _leaf_ids(
    rule: Callable[[tuple[int, ...]], Hashable], bag_size: int, num_labels: int
) -> tuple[np.ndarray[Any, Any], tuple[Hashable, ...]]:
    """Call the function once a labelling, in the order of the tree's leaves."""
    seen: dict[Hashable, int] = {}
    ids = np.empty(num_labels**bag_size, dtype=np.int64)
    for leaf, labels in enumerate(itertools.product(range(num_labels), repeat=bag_size)):
        value = _plain(rule(labels))
        try:
            ids[leaf] = seen.setdefault(value, len(seen))
        except TypeError:
            raise SupervisionError(
                f"from_function: the rule returned {value!r} for {labels}; expected a hashable weak "
                "label. Return a bool, a number, a string or a tuple."
            ) from None
    return ids, tuple(seen)


def _plain(value: Any) -> Any:
    """Numbers of NumPy and torch as Python's; whole tensors, which hash by identity, as unhashable lists."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray, Tensor)) else value


def _merge(leaves: np.ndarray[Any, Any], bag_size: int, num_labels: int) -> tuple[Tensor, ...]:
    """Tables (states, labels) of each layer, first layer first."""
    tables: list[Tensor] = []
    ids = leaves
    for _ in range(bag_size):
        children, ids = np.unique(ids.reshape(-1, num_labels), axis=0, return_inverse=True)
        ids = ids.reshape(-1)
        tables.append(torch.from_numpy(children))
    return tuple(reversed(tables))


def _codes(values: tuple[Hashable, ...]) -> Tensor:
    if all(isinstance(value, (bool, int)) for value in values):
        return torch.tensor([int(value) for value in values if isinstance(value, (bool, int))])
    if all(isinstance(value, (bool, int, float)) for value in values):
        numbers = [float(value) for value in values if isinstance(value, (bool, int, float))]
        return torch.tensor(numbers, dtype=torch.float64)
    return torch.arange(len(values))
