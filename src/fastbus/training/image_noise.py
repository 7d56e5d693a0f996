"""Confusion matrices of labels on images, where the caller does not know them.

A short run on four fifths of the images, on the labels as they are (of a crowd: on the majority of its answers),
predicts the last fifth, and the matrices are counted there: an early network that did not see a label cannot
foretell its error.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.supervision.base import Supervision
from fastbus.supervision.imperfect import CrowdLabel, NoisyLabel
from fastbus.supervision.incomplete import SemiSupervised
from fastbus.training.image_run import ImageRun
from fastbus.training.noise import majority, needs_estimate
from fastbus.training.recipes import UNNORMALISED, Recipe
from fastbus.training.views import Views

HELD_OUT = 0.2
FEWEST = 5  # of which one is held out
# Enough for confident predictions: so many passes, and not fewer steps than these, unless the recipe itself has fewer.
EARLY_PASSES, EARLY_STEPS, EARLY_ROWS = 10, 1500, 128
# On CIFAR-10 with 70 % wrong labels a residual network is at 20 % after three passes at a rate of .1, its guesses
# swing from class to class, and at 40 % at .03. Small networks have gentle rates of their own: 10,000 clothes, 30 %
# wrong labels, two seeds, .371 and .360 at .03, .361 and .351 at .06; 70 %, .725 and .711; digits, .313 and .286.
EARLY_RATE = 0.03


def early_recipe(recipe: Recipe, num_images: int) -> Recipe:
    """The recipe of the short run, on so many images."""
    rows = min(recipe.rows, EARLY_ROWS)
    passes = min(recipe.epochs, max(EARLY_PASSES, math.ceil(EARLY_STEPS * rows / num_images)))
    rate = recipe.learning_rate if recipe.backbone in UNNORMALISED else min(recipe.learning_rate, EARLY_RATE)
    return recipe.plain().replace(epochs=passes, rows=rows, learning_rate=rate, mixup=0.0)


def with_known_confusions(
    supervision: Supervision,
    images: Tensor,
    weak: Tensor,
    *,
    num_classes: int,
    recipe: Recipe,
    seed: int,
    device: str,
    flip: bool = True,
    views: Views | None = None,
    network: nn.Module | None = None,
) -> Supervision:
    """The supervision with its unknown confusion matrices estimated; itself where they are known.

    network: the one to begin with, which stays as it is; None for that of the recipe.
    """
    crowd = isinstance(supervision, CrowdLabel)
    if not (crowd or isinstance(supervision, NoisyLabel)) or not needs_estimate(supervision):
        return supervision
    labels = majority(weak, num_classes) if crowd else weak
    given = torch.nonzero(labels >= 0).flatten()
    order = given[torch.from_numpy(np.random.default_rng([seed, len(given)]).permutation(len(given)))]
    held, kept = order[: int(HELD_OUT * len(order))], order[int(HELD_OUT * len(order)) :]
    if not len(held):
        raise InputError(
            f"{supervision.title}: {len(given)} labelled images to estimate confusions from; expected {FEWEST} or "
            "more. Pass rate= or the matrices."
        )
    run = ImageRun(
        SemiSupervised(),
        images[kept],
        torch.ones(len(kept), dtype=torch.long),
        labels[kept],
        num_classes=num_classes,
        recipe=early_recipe(recipe, len(kept)),
        seed=seed,
        device=device,
        flip=flip,
        views=views,
        network=copy.deepcopy(network),
    )
    while not run.done:
        run.run_epoch()
    logits = run.logits(images[held])
    if crowd:
        return CrowdLabel.estimate(logits, weak[held])
    return NoisyLabel.estimate(logits, weak[held])
