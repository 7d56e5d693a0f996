"""What is to be run: jobs with their recipes, and the fingerprint by which a finished one is known again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastbus.bench.paper.draw import SCORED, ceiling_cell, expected_size, supervision_of, takes_all
from fastbus.bench.paper.grid import Cell, read_grid
from fastbus.bench.paper.methods import SUPERVISED, applies, facts_for
from fastbus.bench.paper.rates import Rates
from fastbus.bench.paper.sets import SETS
from fastbus.bench.results import Record
from fastbus.errors import InputError
from fastbus.supervision.pairwise import SimilarityConfidence
from fastbus.training.image_noise import early_recipe
from fastbus.training.pretrain import RATE, TEMPERATURE, WEIGHT_DECAY
from fastbus.training.recipes import PRETRAIN_ROWS, Recipe, recipe_for, unaided

TINY: dict[str, Any] = {
    "backbone": "small_cnn", "epochs": 20, "rows": 32, "labelled_rows": 16, "learning_rate": 0.1, "warmup": 30,
    "decay": 0.97,
}  # fmt: skip
SCORER: dict[str, Any] = {"epochs": 60, "rows": 128, "learning_rate": 0.03, "weight_decay": 5e-4, "decay": 0.999}
SCORER_IMAGES, SCORER_CALIBRATION = 15_000, 2_000
TINY_SCORER = 600, 100
TINY_HELD_OUT = 0.1
WITHOUT_LABELS = {"rows": PRETRAIN_ROWS, "rate": RATE, "decay": WEIGHT_DECAY, "heat": TEMPERATURE}
MIRRORED = ("cifar10", "cifar10n", "cifar100", "stl10")  # a mirrored digit is no digit, a mirrored shoe none of the set


@dataclass(frozen=True)
class Scorer:
    """The network whose probabilities make the confidences of a data set: its images are in no pair."""

    data: str
    recipe: Recipe
    images: int
    calibration: int

    @property
    def fingerprint(self) -> str:
        return _digest({"scorer": self.data, "recipe": _entries(self.recipe), "of": [self.images, self.calibration]})

    @property
    def title(self) -> str:
        return f"scorer of {self.data}"


@dataclass(frozen=True)
class Pretraining:
    """A network that gets to know the images of runs without their labels; where all of a set train, they share it."""

    cell: Cell
    recipe: Recipe  # of the runs
    seed: int

    @property
    def fingerprint(self) -> str:
        network = {"backbone": self.recipe.backbone, "slope": self.recipe.slope}
        how = {"passes": self.recipe.pretrain} | WITHOUT_LABELS
        images = SETS[self.cell.data].official if takes_all(self.cell) else [*self.cell.key, dict(self.cell.draw)]
        return _digest({"pretraining": images, **network, **how, "seed": self.seed})

    @property
    def title(self) -> str:
        return f"images of {self.cell.title} without labels, {self.recipe.backbone}, seed {self.seed}"


@dataclass(frozen=True)
class Job:
    """One run: a cell, a method, a seed, and how it is trained."""

    cell: Cell
    method: str
    seed: int
    recipe: Recipe
    held_out: float
    variant: str  # what differs from the recipe of the product; empty where nothing does
    scorer: Scorer | None
    budget: int | None = None  # views that all methods of a comparison have alike

    @property
    def fingerprint(self) -> str:
        """All that decides the result beside the seed and the code."""
        return _digest(
            {
                "cell": self.cell.key,
                "draw": dict(self.cell.draw),
                "method": self.method,
                "recipe": _entries(self.recipe),
                "held_out": self.held_out,
                "scorer": None if self.scorer is None else self.scorer.fingerprint,
            }
            | ({} if self.budget is None else {"budget": self.budget})
            | ({"without labels": WITHOUT_LABELS} if self.recipe.pretrain else {})
            | ({} if self.scorer is None else {"confidences": "at the cell's share of positives"})
            | ({"told": facts} if (facts := facts_for(self.method, self.cell)) else {})
        )

    @property
    def data_fingerprint(self) -> str:
        """All that decides what is estimated before the training, whichever the method and its training."""
        return _digest(
            {
                "cell": self.cell.key,
                "draw": dict(self.cell.draw),
                "recipe": _entries(early_recipe(self.recipe, expected_size(self.cell)[0])),
                "held_out": self.held_out,
            }
        )

    @property
    def pretraining(self) -> Pretraining | None:
        return Pretraining(self.cell, self.recipe, self.seed) if self.recipe.pretrain else None

    @property
    def groundwork(self) -> list[Groundwork]:
        """What must be there before it begins."""
        return [work for work in (self.scorer, self.pretraining) if work is not None]

    @property
    def key(self) -> tuple[str, int]:
        return self.fingerprint, self.seed

    @property
    def told(self) -> str:
        """What differs from the recipe of the product, and what is kept back."""
        return told(self.cell.name, self.variant, self.held_out)

    @property
    def title(self) -> str:
        return f"{self.cell.title}, {self.method}{f' [{self.told}]' if self.told else ''}, seed {self.seed}"


Groundwork = Scorer | Pretraining


def told(cell: str, variant: str, held_out: float) -> str:
    """A variant in words, with the share of weak labels that is kept back where it is not the usual one."""
    usual = TINY_HELD_OUT if cell == "tiny" else 0.0
    return ", ".join(filter(None, (variant, "" if held_out == usual else f"held_out={held_out:g}")))


def plan_jobs(
    cells: Sequence[Cell],
    methods: Sequence[str],
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    held_out: float,
    tiny: bool = False,
    budget: int | None = None,
    rates: Rates | None = None,
) -> list[Job]:
    """Every run asked for, seed after seed, so that each cell has one early; a ceiling that cells share is run once.

    budget: views of every run, nearly, instead of the recipe's epochs; from random weights, unless `changes` say how
        many passes without labels come first, which are the same for all methods and not counted.
    rates: gives each method a learning rate of its own; None leaves that of the recipe. The ceiling has this always.
    """
    common = TINY if tiny else {}
    told = dict(changes) | ({} if budget is None else {"views": budget})
    told |= {} if rates is None else {"learning_rate": "tuned"}
    variant = ", ".join(f"{name}={value}" for name, value in told.items())
    jobs: dict[tuple[str, int], Job] = {}
    for seed in seeds:
        for given in cells:
            for method in methods:
                if not applies(method, given):
                    continue
                shares = method == SUPERVISED and not held_out and not tiny
                cell = ceiling_cell(given, read_grid()) if shares else given
                recipe = _recipe_of_run(cell, method, common | dict(changes), budget)
                if rates is not None and method != SUPERVISED:
                    recipe = recipe.replace(learning_rate=rates(cell, method, recipe))
                scorer = _scorer(cell, tiny) if cell.setting in SCORED else None
                if scorer is not None and recipe.pretrain:
                    raise InputError(
                        f"pretrain={recipe.pretrain} on {cell.setting}; expected 0, for the images of its pairs are "
                        "known only when the scorer is. Leave that setting out."
                    )
                job = Job(cell, method, seed, recipe, held_out, variant, scorer, budget)
                jobs.setdefault(job.key, job)
    if budget is not None and "epochs" in changes:
        raise InputError("--views with --set epochs; expected one of them, since views are epochs. Leave one out.")
    if rates is not None and "learning_rate" in changes:
        raise InputError("--tuned with --set learning_rate; expected one of them. Leave one out.")
    if not jobs:
        raise InputError(f"no cell for {', '.join(methods)}; expected one of their settings. Look at --list.")
    return list(jobs.values())


@cache
def product_job(cell: Cell, method: str) -> Job | None:
    """The first run by the product's recipe; None where the method does not fit the cell any more."""
    return plan_jobs([cell], [method], [0], {}, 0.0)[0] if applies(method, cell) else None


def views_of_an_epoch(cell: Cell, recipe: Recipe, method: str) -> float:
    """Augmented images of a pass, both views, where batches are full."""
    images, _ = expected_size(cell)
    return 2 * images * _with_labelled(cell, recipe, method)


def _with_labelled(cell: Cell, recipe: Recipe, method: str) -> float:
    """How much longer a pass is where labelled images are drawn into every batch of unlabelled ones."""
    drawn = cell.setting in ("positive_unlabeled", "semi_supervised") and method != SUPERVISED
    return recipe.rows / (recipe.rows - recipe.rows_with_labels) if drawn else 1.0


def job_key(record: Record) -> tuple[str, int]:
    """The key of a finished run."""
    return record["fingerprint"], record["seed"]


def _recipe_of_run(cell: Cell, method: str, wanted: Mapping[str, Any], budget: int | None) -> Recipe:
    """The product's recipe with the entries that are wanted, in the epochs of the budget if there is one."""

    def suited(epochs: int | None) -> Recipe:
        # a budget is for what methods differ in: all begin alike
        return _recipe(cell, method, budget is None, epochs).replace(**wanted)

    recipe = suited(wanted.get("epochs"))
    if budget is None:
        return recipe
    epochs = max(1, round(budget / views_of_an_epoch(cell, recipe, method)))
    return suited(epochs).replace(epochs=epochs)


def _recipe(cell: Cell, method: str, aided: bool, epochs: int | None) -> Recipe:
    """The product's recipe; the ceiling has its network, views and schedule, and no use for a teacher.

    aided: with the passes without labels that it begins with, if any. epochs: None for the recipe's own.
    """
    (images, bags), shape = expected_size(cell), SETS[cell.data].shape
    recipe = recipe_for(supervision_of(cell), num_images=images, num_bags=bags, image_shape=shape, epochs=epochs)
    recipe = recipe if aided else unaided(recipe, cell.setting)
    if method != SUPERVISED:
        return recipe
    steps = _with_labelled(cell, recipe, "fastbus")  # as many as those that it is the ceiling of
    return recipe.plain().replace(epochs=round(recipe.epochs * steps))


def _scorer(cell: Cell, tiny: bool) -> Scorer:
    """The same for both settings and all trials: recipes may be tuned, weak labels must not follow."""
    images, calibration = TINY_SCORER if tiny else (SCORER_IMAGES, SCORER_CALIBRATION)
    shape = SETS[cell.data].shape
    network = recipe_for(SimilarityConfidence(), num_images=images, num_bags=images, image_shape=shape).backbone
    recipe = Recipe(**(SCORER | {"backbone": network} | (TINY if tiny else {})))
    return Scorer(cell.data, recipe, images, calibration)


def _entries(recipe: Recipe) -> dict[str, Any]:
    """All but those that are off: an entry that recipes get one day does not make runs without it others."""
    return {name: value for name, value in recipe.as_dict().items() if value}


def _digest(what: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
