"""WeakData: bags with their weak labels, and true labels where they are known for evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fastbus.bags import Bags
from fastbus.errors import InputError
from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination
from fastbus.supervision.incomplete import SimilarDissimilarUnlabeled, UnlabeledUnlabeled


@dataclass(frozen=True, eq=False)
class WeakData:
    """B bags of N instances in all. Everything about instances lies bag after bag, as the instances do."""

    bags: Bags
    weak: Any = None  # (B, ...) or (N, ...), a tuple of these for a combination, None where not read
    labels: NDArray[Any] | None = None  # true labels: (N,) class, or (N, C) 0/1; -1 where unknown
    classes: tuple[str, ...] | None = None  # names of the classes, where they have any
    features: tuple[str, ...] = ()  # names of the columns of the instances
    annotators: tuple[str, ...] | None = None  # names of the columns of crowd answers

    def __post_init__(self) -> None:
        N, B = self.bags.num_instances, len(self.bags)
        if self.labels is not None and len(self.labels) != N:
            raise InputError(f"{len(self.labels)} labels for {N} instances; expected one for each. Align them.")
        for part in _parts(self.weak):
            if len(part) not in (N, B):
                raise InputError(
                    f"{len(part)} weak labels for {B} bags of {N} instances; expected one for each bag "
                    "or for each instance. Align them with Bags.align."
                )

    def __len__(self) -> int:
        return len(self.bags)

    def subset(self, indices: object) -> WeakData:
        """Some of the bags with all that belongs to them."""
        bags = self.bags.subset(indices)
        chosen = np.asarray(indices)
        chosen = np.nonzero(chosen)[0] if chosen.dtype == np.bool_ else chosen % len(self)
        rows = self.bags.rows(chosen)

        def taken(part: Any) -> Any:
            # where there are as many instances as bags, each is its own bag and both readings agree
            at = chosen if len(part) == len(self) else rows
            return part[at.tolist()] if isinstance(part, Tensor) else part[at]

        weak = self.weak
        if weak is not None:
            weak = tuple(map(taken, weak)) if isinstance(weak, tuple) else taken(weak)
        return replace(self, bags=bags, weak=weak, labels=None if self.labels is None else self.labels[rows])

    def terms(self, supervision: Supervision) -> tuple[WeakData, ...]:
        """One data set for each term of a sum of losses; (self,) for everything that is no sum.

        similar_dissimilar_unlabeled: annotated pairs (weak 1/0), then all other bags as draws from set 0.
        """
        if not isinstance(supervision, SimilarDissimilarUnlabeled):
            return (self,)
        pairs = np.asarray(self.weak) >= 0
        if pairs.all() or not pairs.any():
            kind = "unlabelled instances" if pairs.all() else "annotated pairs"
            raise InputError(f"{supervision.title}: no {kind}; expected both kinds of bags. Add some.")
        others = self.subset(~pairs)
        return self.subset(pairs), replace(others, weak=np.zeros(len(others), dtype=np.int64))

    def fit_weak(self, supervision: Supervision) -> Any:
        """The weak labels as training takes them: the set of unlabeled_unlabeled for every instance, (N,)."""
        parts = supervision.parts if isinstance(supervision, Combination) else (supervision,)
        spread = tuple(
            np.repeat(weak, self.bags.sizes)
            if isinstance(part, UnlabeledUnlabeled) and len(weak) == len(self)
            else weak
            for part, weak in zip(parts, _parts(self.weak), strict=True)
        )
        return spread if isinstance(supervision, Combination) else spread[0]


def _parts(weak: Any) -> tuple[Any, ...]:
    if weak is None:
        return ()
    return weak if isinstance(weak, tuple) else (weak,)
