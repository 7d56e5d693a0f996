"""Cross-validation by bags: folds that cut no bag, sequences of bags, and a score of weak labels.

cross_val_score(clf, *bag_sequence(X, weak, bag_ids), cv=5, scoring=weak_accuracy)
cross_val_score(clf, X, weak_of_rows, cv=BagKFold(5), params={"bags": ids, "groups": ids})  # metadata routing
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold
from sklearn.utils.validation import _num_samples

from fastbus.bags import Bags
from fastbus.errors import InputError
from fastbus.training.class_columns import by_class
from fastbus.training.inputs import missing


class BagKFold(GroupKFold):  # type: ignore[misc]
    """Folds of whole bags: rows of one bag never fall on both sides.

    Rows come with their bag ids as `groups`; without groups every entry of X is a bag, as in sequences of bags.
    """

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Positions to train on and to test on, for each fold."""
        ids = np.arange(_num_samples(X)) if groups is None else np.asarray(groups)
        yield from super().split(X, y, ids)


def bag_sequence(X: Any, weak: Any, bags: Any = None, *, classes: Any = None) -> tuple[list[NDArray[Any]], Any]:
    """A table as a list of bags, and its weak labels of bags in the same order: what scikit-learn can cut.

    weak: as `Bags.align` takes them, keyed by bag id or by the integers 0..B-1; a combination's labels are not
    one sequence.
    classes: the order for the columns of a frame that has one a class, since the array that is returned has no names:
        pass those that the classifier is given. None: the order of the frame.
    """
    if isinstance(weak, tuple):
        raise InputError(
            "a tuple of weak labels for a sequence of bags; expected one weak label a bag, which scikit-learn can "
            "cut. Split the bags yourself with BagKFold."
        )
    grouped = X if isinstance(X, Bags) else Bags.from_ids(X, bags)
    weak = weak if classes is None else by_class(weak, classes, "bag_sequence")
    return [np.asarray(part) for part in grouped], np.asarray(grouped.align(weak))


def weak_accuracy(estimator: Any, X: Any, y: Any) -> float:
    """The share of bags whose weak label is predicted right in all that it says, as `scoring=` for sequences of bags.

    Missing entries are left out, and bags without any other; NaN where no bag is left.
    """
    y = by_class(y, estimator.classes_, "weak_accuracy") if hasattr(estimator, "classes_") else y
    told = np.asarray(y)
    silent = missing(told)
    right = ((np.asarray(estimator.predict_weak(X)) == told) | silent).reshape(len(told), -1).all(1)
    some = ~silent.reshape(len(told), -1).all(1)
    return float(right[some].mean()) if some.any() else float("nan")
