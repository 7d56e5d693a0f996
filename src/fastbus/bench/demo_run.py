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

from fastbus.bench.demo_fit import Settings, fit_true, fit_weak, settings_of
from fastbus.bench.demo_kinds import KINDS, POSITIVES, Array, Digits, Task
from fastbus.data.draws import binary_labels
from fastbus.errors import InputError

TEST_FRACTION = 0.25
EPOCHS = Settings().epochs

Progress = Callable[[str, int, int], None]
"""Told what is trained now, the trainings done and the trainings in all."""


class Row(NamedTuple):
    """What one kind of weak label taught, between a majority guess and the true labels."""

    supervision: str
    told: str  # how many weak labels, and of what
    classes: int
    images: int  # trained on
    accuracy: float  # means over seeds from here on
    majority: float
    ceiling: float
    gap_points: float
    seconds: float
    note: str
    accuracy_std: float = 0.0
    ceiling_std: float = 0.0
    gap_std: float = 0.0


class DemoResult(NamedTuple):
    """All rows, with the settings that produced them."""

    rows: tuple[Row, ...]
    test_images: int
    epochs: int
    seed: int
    seconds: float
    seeds: int = 1


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
    return KINDS[name](digits, generator(name, seed))


def generator(name: str, seed: int) -> np.random.Generator:
    """The random numbers of a row's draws."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def run_demo(
    only: Sequence[str] | None = None,
    seed: int = 0,
    epochs: int = EPOCHS,
    progress: Progress | None = None,
    seeds: int = 1,
) -> DemoResult:
    """Train every kind, or those named in `only`, and score them on the same unseen images.

    seeds: how many to run from `seed` on, each with its own split, weak labels and first weights.
    """
    names = _chosen(only)
    for what, value, usual in (("epochs", epochs, EPOCHS), ("seeds", seeds, 1)):
        if value < 1:
            raise InputError(f"{what}={value}; expected at least 1. Leave it out for {usual}.")
    start = time.perf_counter()
    found: dict[str, list[Row]] = {name: [] for name in names}
    done = 0
    for number in range(seed, seed + seeds):
        digits = split_digits(number)
        ceilings: dict[bytes, float] = {}
        for name in names:
            if progress is not None:
                progress(name, done, seeds * len(names))
            found[name].append(_row(name, digits, number, settings_of(name, epochs), ceilings))
            done += 1
    if progress is not None:
        progress("done", done, done)
    rows = tuple(_averaged(of_seeds) for of_seeds in found.values())
    return DemoResult(rows, len(digits.test_labels), epochs, seed, time.perf_counter() - start, seeds)


def _averaged(rows: Sequence[Row]) -> Row:
    """Means over seeds, with standard deviations."""
    if len(rows) == 1:
        return rows[0]

    def mean(name: str) -> float:
        return float(np.mean([getattr(row, name) for row in rows]))

    def spread(name: str) -> float:
        return float(np.std([getattr(row, name) for row in rows], ddof=1))

    return rows[0]._replace(
        accuracy=mean("accuracy"),
        majority=mean("majority"),
        ceiling=mean("ceiling"),
        gap_points=mean("gap_points"),
        seconds=mean("seconds"),
        accuracy_std=spread("accuracy"),
        ceiling_std=spread("ceiling"),
        gap_std=spread("gap_points"),
    )


def _chosen(only: Sequence[str] | None) -> list[str]:
    if only is None:
        return list(KINDS)
    for name in only:
        if name not in KINDS:
            known = ", ".join(repr(kind) if " " in kind else kind for kind in KINDS)
            raise InputError(f"--only {name!r}; expected some of {known}. Check the spelling.")
    return [name for name in KINDS if name in only]


def _row(name: str, digits: Digits, seed: int, settings: Settings, ceilings: dict[bytes, float]) -> Row:
    task = make_task(name, digits, seed)
    truth = binary_labels(digits.test_labels, POSITIVES) if task.binary else digits.test_labels
    start = time.perf_counter()
    predict = fit_weak(task, digits, seed, settings).predict
    seconds = time.perf_counter() - start
    predicted = predict(digits.test_images)
    accuracy = (_matched if task.matched else _accuracy)(predicted, truth)
    # kinds with one setting that were told about the same images in the same bags share the ceiling
    shared = (np.array(settings), task.rows, task.truth, *([] if task.bags is None else [task.bags]))
    key = b"".join(part.tobytes() for part in shared)
    if key not in ceilings:
        ceilings[key] = _accuracy(fit_true(task, digits, seed, settings)(digits.test_images), truth)
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


def _accuracy(predicted: Array, truth: Array) -> float:
    return float((predicted == truth).mean())


def _matched(predicted: Array, truth: Array) -> float:
    """Accuracy under the naming of the classes that suits best."""
    from scipy.optimize import linear_sum_assignment

    size = int(max(predicted.max(), truth.max())) + 1
    table = np.zeros((size, size))
    np.add.at(table, (predicted, truth), 1)
    return float(table[linear_sum_assignment(table, maximize=True)].sum() / len(truth))
