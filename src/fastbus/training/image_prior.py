"""The share of positives among unlabelled images, where the caller does not know it.

Short runs, each on two thirds of the images, tell known positives from unlabelled images, as many of both in a batch;
the ranks of the last third show how many unlabelled images are like the positives.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fastbus.supervision.base import Supervision
from fastbus.supervision.incomplete import PositiveUnlabeled
from fastbus.training.image_run import ImageRun
from fastbus.training.noise import FOLDS, fold_of, known_positives
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective
from fastbus.training.views import Views

# Of each run, as near as whole passes come: a longer one learns the few positives by heart, and tells them from those
# hidden.
STEPS = 600
ROWS = 128


class AgainstUnlabelled(StepObjective):
    """Logistic loss of the two views, known positives (the first rows of a batch) against the others."""

    def __init__(self, labelled: int) -> None:
        super().__init__()
        self.labelled = labelled

    def __call__(self, inputs: StepInputs) -> Tensor:
        logits = inputs.network(torch.cat([inputs.weak, inputs.strong]))
        score = (logits[:, 1] - logits[:, 0]).view(2, -1)
        return (softplus(-score[:, : self.labelled]).mean() + softplus(score[:, self.labelled :]).mean()) / 2


def at_most(count: int, marked: Tensor, seed: int) -> Tensor:
    """So many of the marked rows (N,) at most, drawn at random: the order of a set may tell its classes."""
    rows = torch.nonzero(marked).flatten()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros_like(marked)
    chosen[rows[order[:count]]] = True
    return chosen


def with_known_prior(
    supervision: Supervision,
    images: Tensor,
    weak: Tensor,
    *,
    recipe: Recipe,
    seed: int,
    device: str,
    flip: bool = True,
    views: Views | None = None,
) -> Supervision:
    """The supervision with its prior estimated; itself where it is known, or has none."""
    if not isinstance(supervision, PositiveUnlabeled) or supervision.prior is not None:
        return supervision
    positive = known_positives(weak, FOLDS)
    fold = fold_of(positive.long(), FOLDS, seed)
    rows = max(2, min(ROWS, recipe.rows))
    others = rows - rows // 2  # of a batch
    early = recipe.replace(rows=rows, labelled_rows=rows // 2, teacher=False, mixup=0.0)
    logits = torch.zeros(len(weak), 2)
    for number in range(FOLDS):
        seen, mine = fold != number, fold == number
        seen &= positive | at_most(STEPS * others, seen & ~positive, seed)  # no more than the steps can look at
        passes = round(STEPS / math.ceil(int((seen & ~positive).sum()) / others))
        run = ImageRun(
            supervision,
            images[seen],
            torch.ones(int(seen.sum()), dtype=torch.long),
            weak[seen],
            num_classes=2,
            recipe=early.replace(epochs=max(1, passes)),
            seed=seed,
            device=device,
            flip=flip,
            views=views,
            objective=lambda run: AgainstUnlabelled(run.recipe.rows_with_labels),
        )
        while not run.done:
            run.run_epoch()
        logits[mine] = run.logits(images[mine])
    return PositiveUnlabeled.estimate(logits, weak, fold, constraint=supervision.constraint)
