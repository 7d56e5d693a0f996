"""Pairs of small zeros and ones with every kind of weak label about pairs, for methods that train on them."""

import numpy as np
import torch
from torch import Tensor

import fastbus
from baselines import better_than_majority
from fastbus.methods import objective_of
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from test_image_run import QUICK, digits

PRIOR = 0.7  # of zeros, the positive class
PAIRS = 400


def pair_digits(kind: str) -> tuple[Supervision, Tensor, Tensor]:
    """Supervision, images (two a pair) and weak labels; confidences are those of an annotator who is 95 % sure."""
    images, labels = digits()
    rng = np.random.default_rng(5)
    pools = [np.flatnonzero(labels[:1400] == digit) for digit in (1, 0)]
    positive = (rng.random(2 * PAIRS) < PRIOR).astype(np.int64)
    rows = np.array([rng.choice(pools[label]) for label in positive])
    y = positive.reshape(-1, 2)
    sure = np.where(y == 1, 0.95, 0.05)
    if kind == "pair_comparison":
        weak = np.where(y[:, 0] == y[:, 1], rng.integers(0, 2, PAIRS), y[:, 0])
        return fastbus.PairComparison(), images[rows], torch.from_numpy(weak)
    if kind == "pair_similarity":
        return fastbus.PairSimilarity(), images[rows], torch.from_numpy((y[:, 0] == y[:, 1]).astype(np.int64))
    if kind == "similarity_confidence":
        weak = sure[:, 0] * sure[:, 1] + (1 - sure[:, 0]) * (1 - sure[:, 1])
        return fastbus.SimilarityConfidence(), images[rows], torch.from_numpy(weak)
    return fastbus.ConfidenceDifference(), images[rows], torch.from_numpy(sure[:, 1] - sure[:, 0])


def pair_run(kind: str, method: str, recipe: Recipe = QUICK, *, device: str = "cpu", **facts: object) -> ImageRun:
    """A run of a method that has not started."""
    rule, images, weak = pair_digits(kind)
    make = objective_of(method, **facts)
    sizes = torch.full((PAIRS,), 2)
    return ImageRun(rule, images, sizes, weak, num_classes=2, recipe=recipe, device=device, flip=False, objective=make)


def pair_accuracy(run: ImageRun) -> float:
    """Train to the end; the accuracy on zeros and ones that were not trained on, above that of naming one alone.

    Similarity says nothing about which class is which.
    """
    while not run.done:
        assert np.isfinite(run.run_epoch()["loss"])
    images, labels = digits()
    unseen = np.flatnonzero((labels < 2) & (np.arange(len(labels)) >= 1400))
    found = run.predict(images[torch.from_numpy(unseen)]).argmax(1).numpy()
    return better_than_majority(found, labels[unseen] == 0, either_way=run.supervision.name == "pair_similarity")
