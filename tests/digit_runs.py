"""Runs of competing methods on small digits: weak labels of every kind they serve, and how well they end."""

import numpy as np
import torch
from torch import Tensor

import fastbus
from baselines import better_than_majority
from fastbus.methods import objective_of
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from test_image_run import QUICK, digits, weak_digits

ANNOTATOR_ERRORS = (0.1, 0.3, 0.6, 0.6, 0.6)


def method_digits(kind: str) -> tuple[Supervision, Tensor, Tensor, Tensor, np.ndarray, int]:
    """As `weak_digits`, with crowds and pairs of unlabelled sets beside."""
    images, labels = digits()
    rng = np.random.default_rng(3)
    train, truth, one = images[:1400], labels[:1400], torch.ones(1400, dtype=torch.long)
    if kind == "crowd_label":
        columns = []
        for error in ANNOTATOR_ERRORS:
            wrong = (truth + rng.integers(1, 10, 1400)) % 10
            answer = np.where(rng.random(1400) < error, wrong, truth)
            columns.append(np.where(rng.random(1400) < 0.3, -1, answer))
        return fastbus.CrowdLabel(rate=0.3), train, one, torch.from_numpy(np.stack(columns, 1)).long(), labels, 10
    if kind == "unlabeled_unlabeled":
        positive = (labels < 5).astype(np.int64)
        first = rng.random(1400) < np.where(positive[:1400] == 1, 0.8, 0.2)
        shares = [float(positive[:1400][first == flag].mean()) for flag in (True, False)]
        sets = torch.from_numpy(np.where(first, 0, 1))
        return fastbus.UnlabeledUnlabeled(shares), train, one, sets, positive, 2
    return weak_digits(kind)


def method_run(
    kind: str, method: str, recipe: Recipe = QUICK, seed: int = 0, *, device: str = "cpu", **facts: object
) -> ImageRun:
    """A run that has not started."""
    rule, images, sizes, weak, _, classes = method_digits(kind)
    make = objective_of(method, **facts)
    return ImageRun(
        rule, images, sizes, weak, num_classes=classes, recipe=recipe, seed=seed, device=device, flip=False,
        objective=make,
    )  # fmt: skip


def unseen_accuracy(run: ImageRun, kind: str) -> float:
    """Train to the end; the accuracy on digits that were not trained on, above that of their most frequent class."""
    while not run.done:
        assert np.isfinite(run.run_epoch()["loss"])
    truth = method_digits(kind)[4]
    return better_than_majority(run.predict(digits()[0][1400:]).argmax(1).numpy(), truth[1400:])
