"""The demonstration: learn to read digits from every kind of weak label, and compare with true labels.

scikit-learn's digits (real scans, shipped with the package) are split once. Each row trains a `WeakClassifier`
on the weak labels that `demo_kinds` makes of the training images, and is scored on unseen single images, beside a
majority guess and the same network trained with the same images, batches and epochs on the true labels.
similar_dissimilar_unlabeled, a sum over two groupings, trains with `WeakLoss` (`demo_sum`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fastbus.bench.demo_kinds import KINDS, POSITIVES, Array, Digits, Task
from fastbus.bench.demo_sum import fit_sum
from fastbus.data.draws import binary_labels
from fastbus.errors import InputError
from fastbus.models.backbone import Backbone
from fastbus.models.build import build_backbone

TEST_FRACTION = 0.25
EPOCHS = 30  # about 600 steps: less than the default of WeakClassifier, so that all rows take minutes
DROPOUT = 0.5  # wrong labels and loose constraints are otherwise learnt by heart

Progress = Callable[[str, int, int], None]
"""Told what is trained now, the trainings done and the trainings in all."""


class Row(NamedTuple):
    """What one kind of weak label taught, between a majority guess and the true labels."""

    supervision: str
    told: str  # how many weak labels, and of what
    classes: int
    images: int  # trained on
    accuracy: float
    majority: float
    ceiling: float
    gap_points: float
    seconds: float
    note: str


class DemoResult(NamedTuple):
    """All rows, with the settings that produced them."""

    rows: tuple[Row, ...]
    test_images: int
    epochs: int
    seed: int
    seconds: float


def split_digits(seed: int) -> Digits:
    """Three quarters of the digits to train on, the rest to test on, with equal shares of every class."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, classes = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(classes)), test_size=TEST_FRACTION, stratify=classes, random_state=seed
    )
    return Digits(pixels[train], classes[train], pixels[test], classes[test])


def make_task(name: str, digits: Digits, seed: int) -> Task:
    """The images and weak labels of a row; the same whichever other rows are run."""
    return KINDS[name](digits, np.random.default_rng([seed, zlib.crc32(name.encode())]))


def run_demo(
    only: Sequence[str] | None = None,
    seed: int = 0,
    epochs: int = EPOCHS,
    progress: Progress | None = None,
) -> DemoResult:
    """Train every kind, or those named in `only`, and score them on the same unseen images."""
    names = _chosen(only)
    if epochs < 1:
        raise InputError(f"epochs={epochs}; expected at least 1. Leave it out for {EPOCHS}.")
    start = time.perf_counter()
    digits = split_digits(seed)
    ceilings: dict[bytes, float] = {}
    rows = []
    for index, name in enumerate(names):
        if progress is not None:
            progress(name, index, len(names))
        rows.append(_row(name, digits, seed, epochs, ceilings))
    if progress is not None:
        progress("done", len(names), len(names))
    return DemoResult(tuple(rows), len(digits.test_labels), epochs, seed, time.perf_counter() - start)


def _chosen(only: Sequence[str] | None) -> list[str]:
    if only is None:
        return list(KINDS)
    for name in only:
        if name not in KINDS:
            known = ", ".join(repr(kind) if " " in kind else kind for kind in KINDS)
            raise InputError(f"--only {name!r}; expected some of {known}. Check the spelling.")
    return [name for name in KINDS if name in only]


def _row(name: str, digits: Digits, seed: int, epochs: int, ceilings: dict[bytes, float]) -> Row:
    task = make_task(name, digits, seed)
    truth = binary_labels(digits.test_labels, POSITIVES) if task.binary else digits.test_labels
    start = time.perf_counter()
    predict = _fit(task, digits, seed, epochs)
    seconds = time.perf_counter() - start
    predicted = predict(digits.test_images)
    accuracy = (_matched if task.matched else _accuracy)(predicted, truth)
    # kinds that were told about the same images in the same bags share the ceiling
    key = b"".join(part.tobytes() for part in (task.rows, task.truth, *([] if task.bags is None else [task.bags])))
    if key not in ceilings:
        ceilings[key] = _accuracy(_supervised(task, digits, seed, epochs)(digits.test_images), truth)
    most_frequent = np.bincount(task.truth, minlength=task.num_classes).argmax()
    return Row(
        supervision=name,
        told=task.told,
        classes=task.num_classes,
        images=len(np.unique(task.rows)),
        accuracy=accuracy,
        majority=_accuracy(np.full_like(truth, most_frequent), truth),
        ceiling=ceilings[key],
        gap_points=100 * (ceilings[key] - accuracy),
        seconds=seconds,
        note=task.note,
    )


def network(task: Task, seed: int) -> Backbone:
    """The multilayer perceptron that `WeakClassifier` picks for so many rows, with dropout; one for all rows."""
    rows, pixels = len(task.rows), (64,)
    return build_backbone("mlp", pixels, task.num_classes, seed=seed, num_samples=rows, dropout=DROPOUT)


def _fit(task: Task, digits: Digits, seed: int, epochs: int) -> Callable[[Array], Array]:
    """Train on the weak labels, and return what predicts the classes of images."""
    from fastbus.learner import WeakClassifier

    if hasattr(task.supervision, "terms"):
        return fit_sum(task, network(task, seed), digits.images, epochs, seed)
    options = {"backbone": network(task, seed), "epochs": epochs, "random_state": seed, **task.options}
    classifier = WeakClassifier(task.supervision, **options)
    predict: Callable[[Array], Array] = classifier.fit(digits.images[task.rows], task.weak, bags=task.bags).predict
    return predict


def _supervised(task: Task, digits: Digits, seed: int, epochs: int) -> Callable[[Array], Array]:
    """Train on the true labels of the same images, in the same bags, so that every step sees the same ones."""
    from fastbus.learner import WeakClassifier

    options = {"backbone": network(task, seed), "epochs": epochs, "random_state": seed, **task.options}
    classifier = WeakClassifier("semi_supervised", **options | {"n_classes": task.num_classes, "queue": 0})
    rows, truth = (task.rows, task.truth) if task.more is None else task.more
    predict: Callable[[Array], Array] = classifier.fit(digits.images[rows], truth, bags=task.bags).predict
    return predict


def _accuracy(predicted: Array, truth: Array) -> float:
    return float((predicted == truth).mean())


def _matched(predicted: Array, truth: Array) -> float:
    """Accuracy under the naming of the classes that suits best."""
    from scipy.optimize import linear_sum_assignment

    size = int(max(predicted.max(), truth.max())) + 1
    table = np.zeros((size, size))
    np.add.at(table, (predicted, truth), 1)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(truth))
