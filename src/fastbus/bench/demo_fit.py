"""Training one row of the demonstration: the same network and settings on weak labels or on true ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fastbus.bench.demo_kinds import Array, Digits, Task
from fastbus.bench.demo_sum import fit_sum
from fastbus.models.backbone import Backbone
from fastbus.models.build import build_backbone


class Settings(NamedTuple):
    """What all rows share. `fastbus.bench.demo_selection` chose the defaults, from weak labels alone."""

    epochs: int = 30
    dropout: float = 0.2
    weight_decay: float = 1e-2


WITH_MORE_DROPOUT = ("complementary_label", "noisy_label", "pair_comparison")
"""The kinds whose held-out weak labels are clearly more probable with dropout .5, at 20, 30 and 50 epochs."""
WITHOUT_DROPOUT = "positive_confidence"
"""A confidence is no draw that could be learnt by heart: held-out risks 1 / r weighted are lower without dropout."""


def settings_of(name: str, epochs: int) -> Settings:
    """The settings of a row: one of those whose held-out likelihood was measured."""
    if name == WITHOUT_DROPOUT:
        return Settings(epochs, dropout=0.0)
    return Settings(epochs, dropout=0.5, weight_decay=1e-3) if name in WITH_MORE_DROPOUT else Settings(epochs)


class Fitted(NamedTuple):
    """A trained row: the classes of images and their probabilities, and log P(w | x) of other weak labels."""

    predict: Callable[[Array], Array]  # (N, 64) -> (N,)
    probabilities: Callable[[Array], Array]  # (N, 64) -> (N, C)
    likelihood: Callable[[Task], float]  # mean of a bag


def network(task: Task, seed: int, dropout: float) -> Backbone:
    """The multilayer perceptron that `WeakClassifier` picks for so many rows; one for all rows."""
    rows, pixels = len(task.rows), (64,)
    return build_backbone("mlp", pixels, task.num_classes, seed=seed, num_samples=rows, dropout=dropout)


def fit_weak(task: Task, digits: Digits, seed: int, settings: Settings) -> Fitted:
    """Train on the weak labels."""
    from fastbus.learner import WeakClassifier

    start = network(task, seed, settings.dropout)
    if hasattr(task.supervision, "terms"):
        learned = fit_sum(task, start, digits.images, settings.epochs, settings.weight_decay, seed)
        return Fitted(learned.predict, learned.predict_proba, lambda other: learned.likelihood(other, digits.images))
    options = {"epochs": settings.epochs, "weight_decay": settings.weight_decay, "random_state": seed, **task.options}
    classifier = WeakClassifier(task.supervision, backbone=start, **options)
    classifier.fit(digits.images[task.rows], task.weak, bags=task.bags)

    def likelihood(other: Task) -> float:
        return classifier.weak_log_likelihood(digits.images[other.rows], other.weak, other.bags)

    return Fitted(classifier.predict, classifier.predict_proba, likelihood)


def fit_true(task: Task, digits: Digits, seed: int, settings: Settings) -> Callable[[Array], Array]:
    """Train on the true labels of the same images, in the same bags, so that every step sees the same ones."""
    from fastbus.learner import WeakClassifier

    options = {"epochs": settings.epochs, "weight_decay": settings.weight_decay, "random_state": seed, **task.options}
    options |= {"n_classes": task.num_classes, "queue": 0}
    classifier = WeakClassifier("semi_supervised", backbone=network(task, seed, settings.dropout), **options)
    rows, truth = (task.rows, task.truth) if task.more is None else task.more
    predict: Callable[[Array], Array] = classifier.fit(digits.images[rows], truth, bags=task.bags).predict
    return predict
