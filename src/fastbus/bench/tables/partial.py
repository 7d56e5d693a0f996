"""Partial labels: candidate sets that real captions and annotators left behind (Lost, BirdSong).

2 x seeds random 90/10 splits. "Disambiguation" is the share of training rows whose most probable candidate is
the true class, "test" the accuracy on rows that no method saw. Features are standardised on the training rows.
Settings are chosen once a set, within the training rows of the first split: of CHOICES, those under which the
candidate sets of a fifth of these rows are most probable to a model of the others. True labels take no part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.bench.tables.entries import Entry, Progress, Source
from fastbus.bench.tables.repeats import Method, repeated

NAMES = ("lost", "birdsong")
TASKS = ("disambiguation, 90/10 splits", "test accuracy, 90/10 splits")
NEIGHBOURS = 10
CHOSEN = (
    "one of six settings, the same six for both sets, by the likelihood of the candidate sets of a fifth of the first "
    "split's training rows; true labels unseen"
)
CHOICES: tuple[dict[str, Any], ...] = tuple(
    network | {"weight_decay": decay, "epochs": 40}
    for network in ({"backbone": "linear"}, {"backbone": "mlp", "dropout": 0.2}, {"backbone": "mlp", "dropout": 0.5})
    for decay in (1e-3, 0.3)
)
Rows = NDArray[np.float64]


class Split(NamedTuple):
    """Training and test rows of one repeat."""

    x: Rows  # (N, D) standardised
    candidates: NDArray[np.int64]  # (N, C)
    y: NDArray[np.int64]
    x_test: Rows
    y_test: NDArray[np.int64]

    def figures(self, train: Rows, test: Rows) -> tuple[float, float]:
        """Both accuracies of scores (N, C) and (M, C); on training rows only candidates count."""
        allowed = np.where(self.candidates == 1, train, -np.inf)
        return float((allowed.argmax(1) == self.y).mean()), float((test.argmax(1) == self.y_test).mean())


def run(name: str, source: Source, seeds: int, progress: Progress) -> Iterator[Entry]:
    """The entries of one data set."""
    arrays = source.load(f"partial_{name}")

    def method_of(score: Any, options: dict[str, Any]) -> Any:
        return lambda repeat: score(split_of(arrays, repeat), repeat, **options)

    @cache
    def settings() -> dict[str, Any]:
        progress(f"{name}: fastbus, choosing one of {len(CHOICES)} settings")
        return chosen_settings(split_of(arrays, 0), CHOICES)

    def ours(repeat: int) -> tuple[float, float]:
        return fastbus_scores(split_of(arrays, repeat), repeat, **settings())

    methods = (
        Method("fastbus", "ours", {"choices": list(CHOICES)}, ours, CHOSEN),
        Method("random candidate", "trivial", {}, method_of(random_candidate, {})),
        Method("most frequent candidate", "trivial", {}, method_of(frequent_candidate, {})),
        Method("PL-kNN", "peer", {"k": NEIGHBOURS}, method_of(nearest_neighbours, {"k": NEIGHBOURS}), "written here"),
        Method("averaging logistic", "peer", {"C": 1.0}, method_of(averaging_logistic, {"C": 1.0}), "scikit-learn"),
    )
    for method in methods:
        yield from repeated(name, TASKS, method, 2 * seeds, progress)


def split_of(arrays: dict[str, NDArray[Any]], repeat: int) -> Split:
    """The same split for every method."""
    x = arrays["x"].astype(np.float64)
    order = np.random.default_rng(repeat).permutation(len(x))
    held = max(1, len(x) // 10)
    test, train = order[:held], order[held:]
    scale = x[train].std(0)
    x = (x - x[train].mean(0)) / np.where(scale > 0, scale, 1.0)
    candidates, y = arrays["candidates"].astype(np.int64), arrays["y"].astype(np.int64)
    return Split(x[train], candidates[train], y[train], x[test], y[test])


def fastbus_scores(split: Split, repeat: int, **settings: Any) -> tuple[float, float]:
    from fastbus.learner import WeakClassifier

    learner = WeakClassifier("partial_label", random_state=repeat, **settings).fit(split.x, split.candidates)
    return split.figures(learner.posterior(split.x, split.candidates), learner.predict_proba(split.x_test))


def chosen_settings(split: Split, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Those of `choices` with the highest likelihood of the candidate sets of held-out training rows."""
    from fastbus.learner import WeakClassifier

    order = np.random.default_rng(0).permutation(len(split.x))
    held, rest = order[: len(order) // 5], order[len(order) // 5 :]

    def log_likelihood(settings: dict[str, Any]) -> float:
        learner = WeakClassifier("partial_label", random_state=0, **settings)
        shares = learner.fit(split.x[rest], split.candidates[rest]).predict_proba(split.x[held])
        with np.errstate(divide="ignore"):  # a set ruled out entirely counts as minus infinity
            return float(np.log((shares * split.candidates[held]).sum(1)).mean())

    return max(choices, key=log_likelihood)


def random_candidate(split: Split, repeat: int) -> tuple[float, float]:
    """In expectation: one over the size of the set, and over the classes for rows without a set."""
    return float((1 / split.candidates.sum(1)).mean()), 1 / split.candidates.shape[1]


def frequent_candidate(split: Split, repeat: int) -> tuple[float, float]:
    share = np.mean(split.candidates / split.candidates.sum(1, keepdims=True), 0)
    return split.figures(np.tile(share, (len(split.y), 1)), np.tile(share, (len(split.y_test), 1)))


def nearest_neighbours(split: Split, repeat: int, k: int) -> tuple[float, float]:
    """Each neighbour votes for all of its candidates, nearer ones with more weight (Hüllermeier and Beringer)."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=k).fit(split.x)

    def votes(neighbours: tuple[Rows, NDArray[np.int64]]) -> Rows:
        distance, rows = neighbours
        weight = 1 - distance / np.maximum(distance.sum(1, keepdims=True), 1e-12)
        return np.asarray(np.einsum("nk,nkc->nc", weight, split.candidates[rows].astype(np.float64)))

    # without arguments, a row is not its own neighbour
    return split.figures(votes(index.kneighbors()), votes(index.kneighbors(split.x_test)))


def averaging_logistic(split: Split, repeat: int, C: float) -> tuple[float, float]:
    """Every candidate taken for true, at an equal share of its row."""
    from sklearn.linear_model import LogisticRegression

    rows, classes = np.nonzero(split.candidates)
    share = 1 / split.candidates.sum(1)[rows]
    model = LogisticRegression(C=C, max_iter=300).fit(split.x[rows], classes, sample_weight=share)

    def scores(x: Rows) -> Rows:
        full = np.zeros((len(x), split.candidates.shape[1]))
        full[:, model.classes_] = model.predict_proba(x)
        return full

    return split.figures(scores(split.x), scores(split.x_test))
