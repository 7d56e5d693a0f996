"""Several labels a row (yeast, scene), of which some are missing or flipped.

A label of a row is what `multi_instance` says of a bag of one: NaN where it is missing, and with
noise=(false positive, false negative) where it may be flipped, at rates that are known here. The same network is
trained naively (missing means negative, flips are ignored) and, as the ceiling, on all true labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.bench.tables.entries import Entry, Progress, Source
from fastbus.bench.tables.repeats import Method, repeated

NAMES = ("yeast", "scene")
METRICS = ("mAP", "micro F1", "macro F1", "Hamming accuracy")
MISSING = (0.3, 0.6)
FLIPPED = (0.1, 0.3)
# The same for every method and both data sets. Large batches with a large step, since held-out labels are then as
# probable as with 64 rows at a time, in a third of the time.
NETWORK: dict[str, Any] = {
    "backbone": "mlp",
    "dropout": 0.5,
    "epochs": 20,
    "batch_bags": 256,
    "learning_rate": 1e-2,
}
Labels = NDArray[np.float64]  # (N, C): 0, 1, NaN for missing


def run(name: str, source: Source, seeds: int, progress: Progress) -> Iterator[Entry]:
    """The entries of one data set."""
    arrays = source.load(f"multilabel_{name}")
    truth = arrays["y_train"].astype(np.float64)

    def trained(weaken: Callable[[int], Labels], noise: float = 0.0) -> Callable[[int], tuple[float, ...]]:
        return lambda repeat: figures(arrays, network_scores(arrays, weaken(repeat), noise, repeat))

    def guessed(weaken: Callable[[int], Labels]) -> Callable[[int], tuple[float, ...]]:
        return lambda repeat: figures(arrays, class_shares(arrays, weaken(repeat)))

    note = "one network for all methods; its step and batch by the likelihood of held-out training labels"
    ceiling = Method("same network, all true labels", "trivial", NETWORK, trained(lambda repeat: truth), "the ceiling")
    yield from repeated(name, tasks("all labels"), ceiling, seeds, progress)
    for rate in MISSING:
        hidden = _hidden(truth, rate)
        negative = _as_negative(hidden)
        methods = (
            Method("fastbus", "ours", NETWORK, trained(hidden), note),
            Method("missing as negative", "trivial", NETWORK, trained(negative), note),
            Method("class shares", "trivial", {}, guessed(hidden)),
        )
        for method in methods:
            yield from repeated(name, tasks(f"{rate:.0%} missing"), method, seeds, progress)
    for rate in FLIPPED:
        flipped = _flipped(truth, rate)
        methods = (
            Method("fastbus", "ours", NETWORK | {"noise": rate}, trained(flipped, rate), f"{note}; flip rate known"),
            Method("noise ignored", "trivial", NETWORK, trained(flipped), note),
            Method("class shares", "trivial", {}, guessed(flipped)),
        )
        for method in methods:
            yield from repeated(name, tasks(f"{rate:.0%} flipped"), method, seeds, progress)


def tasks(condition: str) -> tuple[str, ...]:
    return tuple(f"{condition}: {metric}" for metric in METRICS)


def _hidden(truth: Labels, rate: float) -> Callable[[int], Labels]:
    """Each label missing with probability `rate`, the same ones for every method."""
    return lambda repeat: np.where(np.random.default_rng(repeat).random(truth.shape) < rate, np.nan, truth)


def _as_negative(weaken: Callable[[int], Labels]) -> Callable[[int], Labels]:
    """What is missing is taken for a negative, as a network that knows of no missing labels would."""
    return lambda repeat: np.where(np.isnan(labels := weaken(repeat)), 0.0, labels)


def _flipped(truth: Labels, rate: float) -> Callable[[int], Labels]:
    return lambda repeat: np.where(np.random.default_rng(repeat).random(truth.shape) < rate, 1 - truth, truth)


def network_scores(arrays: dict[str, NDArray[Any]], weak: Labels, noise: float, repeat: int) -> Labels:
    """P(label) of every test row, (M, C)."""
    from fastbus.learner import WeakClassifier
    from fastbus.supervision.aggregate import MultiInstance

    rule = MultiInstance(noise=(noise, noise)) if noise else MultiInstance()
    learner = WeakClassifier(rule, head="sigmoid", random_state=repeat, **NETWORK)
    return np.asarray(learner.fit(arrays["x_train"], weak).predict_proba(arrays["x_test"]))


def class_shares(arrays: dict[str, NDArray[Any]], weak: Labels) -> Labels:
    return np.tile(np.nanmean(weak, 0), (len(arrays["x_test"]), 1))


def figures(arrays: dict[str, NDArray[Any]], scores: Labels) -> tuple[float, ...]:
    """One number for each metric; labels are those of at least .5."""
    from sklearn.metrics import average_precision_score, f1_score

    truth, said = arrays["y_test"].astype(np.int64), (scores >= 0.5).astype(np.int64)
    present = truth.any(0)  # the precision of a class without positives is not defined
    return (
        float(average_precision_score(truth[:, present], scores[:, present], average="macro")),
        float(f1_score(truth, said, average="micro", zero_division=0.0)),
        float(f1_score(truth, said, average="macro", zero_division=0.0)),
        float((truth == said).mean()),
    )
