"""What row-wise methods share: logits of both views, means over some of the rows, ramps, and what labels say.

Shapes: M rows of a step, N instances of the set, C classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fastbus.errors import InputError, WeakLabelError
from fastbus.inference.fixed_build import read_all
from fastbus.supervision.confusion import symmetric_confusion
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective

if TYPE_CHECKING:
    from fastbus.training.image_run import ImageRun
MANY_CLASSES = 50  # beyond these the authors' settings for CIFAR-100 hold, not those for CIFAR-10
BOUND = 10.0  # of scores in risks that have no least one


def view_logits(inputs: StepInputs) -> tuple[Tensor, Tensor]:
    """Logits (M, C) of the weak and of the strong view, from one pass."""
    both = inputs.network(torch.cat([inputs.weak, inputs.strong]))
    M = len(inputs.weak)
    return both[:M], both[M:]


def blend(recipe: Recipe, weak: Tensor, strong: Tensor) -> Tensor:
    """The losses of the two views, weighed as the recipe says."""
    return (recipe.weak * weak + recipe.strong * strong) / (recipe.weak + recipe.strong)


def strong_share(recipe: Recipe) -> float:
    """What a term of the strong view alone weighs beside the others, 1 where the recipe weighs the views alike."""
    return recipe.strong / recipe.weak if recipe.weak else 1.0


def at_rate(x: Tensor, factor: Tensor) -> Tensor:
    """x, whose gradient is multiplied by a factor."""
    return x.detach() + factor * (x - x.detach())


def mean_where(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of values (M,) over the rows chosen (M,), which may be weights; 0 where there are none."""
    weight = chosen.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """-sum_c target_c log p_c of each row, (M,)."""
    return -(target * torch.log_softmax(logits, 1)).sum(1)


def indicator(labels: Tensor, num_classes: int) -> Tensor:
    """1 at the class of each row and 0 elsewhere, (M, C); all 0 at label -1. Unlike `one_hot` it waits for nothing."""
    return (labels[:, None] == torch.arange(num_classes, device=labels.device)).float()


def linear_ramp(progress: Tensor, start: float, end: float) -> Tensor:
    """0 until the share `start` of all steps, 1 from the share `end` on."""
    return ((progress - start) / (end - start)).clamp(0.0, 1.0).float()


def score(logits: Tensor) -> Tensor:
    """f = logit_1 - logit_0 of two classes, (M,)."""
    return logits[:, 1] - logits[:, 0]


def bounded(scores: Tensor, bound: float) -> Tensor:
    """Scores drawn in softly, so that none leaves (-bound, bound); 0 leaves them as they are."""
    return bound * torch.tanh(scores / bound) if bound else scores


def remember(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """Write the values (M, ...) of instances `rows` (M,) into a table (N, ...), in place.

    The last batch of a pass may hold an instance twice. The first of its values counts then: a GPU writes in any order,
    and a run must come out the same each time.
    """
    first = (rows[:, None] == rows).int().argmax(1)
    table.index_copy_(0, rows, values.index_select(0, first))


class BoundedScores(StepObjective):
    """An objective on scores within `bound`, by which it is judged, too; 0 for none."""

    bound: float = 0.0

    def judged(self, run: ImageRun, x: Tensor, logits: Tensor, average: bool) -> Tensor:
        if not self.bound:
            return logits
        f = bounded(score(logits), self.bound)
        return torch.stack([torch.zeros_like(f), f], 1)


def candidates_of(run: ImageRun) -> Tensor:
    """Which classes an instance may have, (N, C) of booleans on the run's device; all where nothing was said."""
    evidence = read_all(run.supervision, run.weak, run.sizes, run.num_classes)
    assert evidence.instance is not None
    inside = torch.arange(evidence.instance.shape[1]) < run.sizes[:, None]
    candidates = evidence.instance[inside] > float("-inf")
    if not bool(candidates.any(1).all()):
        row = int((~candidates.any(1)).nonzero()[0])
        raise WeakLabelError(
            f"{run.supervision.name}: no candidate at instance {row}; expected one at least. Correct or drop it."
        )
    return candidates.to(run.device)


def classes_of(weak: Tensor, num_classes: int, name: str) -> Tensor:
    """Class indices with -1 for none, of any shape, as whole numbers; NaN counts as none."""
    labels = torch.where(weak.isnan(), -1.0, weak).round().long() if weak.is_floating_point() else weak.long()
    bad = (labels < -1) | (labels >= num_classes)
    if bool(bad.any()):
        value, row = int(labels[bad][0]), int(bad.nonzero()[0, 0])
        raise WeakLabelError(
            f"{name}: label {value} at instance {row}; expected classes 0 to {num_classes - 1}, -1 for none. "
            "Number the classes from 0."
        )
    return labels


def labelled_part(run: ImageRun, method: str) -> int:
    """How many rows of each step carry a label of their own; the rest carry none."""
    if run.labelled is None or not run.labelled.any():
        found = "every instance" if run.labelled is None else "no instance"
        raise InputError(
            f"{method}: {found} has a label; expected some with and some without. Mark the unlabelled ones with -1."
        )
    if run.recipe.labelled_rows < 1:
        raise InputError(
            f"{method}: labelled_rows={run.recipe.labelled_rows}; expected 1 or more, rows with a label in each step. "
            "Raise it in the recipe."
        )
    return min(run.recipe.labelled_rows, run.recipe.rows - 1)


def held_rows(run: ImageRun, share: float) -> Tensor:
    """A share of the labelled and of the unlabelled instances, by lot, (N,) of booleans; at least one of either.

    None of both where there is but one of a kind: what is held out compares the two, and training needs both.
    """
    assert run.labelled is not None
    rng = np.random.default_rng([run.seed, 7])
    held = np.zeros(len(run.labelled), dtype=bool)
    pools = np.flatnonzero(run.labelled), np.flatnonzero(~run.labelled)
    if share and min(map(len, pools)) > 1:
        for pool in pools:
            held[rng.permutation(pool)[: max(1, round(share * len(pool)))]] = True
    return torch.from_numpy(held)


def transition_of(run: ImageRun, rate: float | None, method: str) -> Tensor | None:
    """P(said | class), (C, C) float64, of noisy labels: a matrix, or a rate of symmetric noise; None if none is told.

    rate: as `MethodOptions` have it.
    """
    even = None if rate is None else symmetric_confusion(rate, run.num_classes)
    given: Tensor | None = getattr(run.supervision, "transition", None)
    if given is None:
        return even
    read_all(run.supervision, run.weak, run.sizes, run.num_classes)  # complains of a matrix of other classes
    given = given.detach().cpu().double()
    if even is not None and not torch.allclose(given, even, atol=1e-6):
        raise InputError(
            f"{method}: noise_rate={rate:g} beside a transition of other rates; expected one of the two. Leave "
            "noise_rate out, the transition says more."
        )
    return given
