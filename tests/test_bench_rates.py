"""Learning rates that trials choose: by held-out weak labels alone, however sure the predictions are."""

import math
from typing import Any

import pytest
import torch

from fastbus.bench.paper.grid import Cell, read_grid, tiny_cells
from fastbus.bench.paper.plan import plan_jobs
from fastbus.bench.paper.rates import TEMPERATURES, rates_of
from fastbus.bench.results import Record
from fastbus.errors import InputError
from fastbus.supervision.aggregate import LabelProportion
from fastbus.supervision.imperfect import PartialLabel
from fastbus.supervision.incomplete import PositiveUnlabeled
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from test_image_run import QUICK, digits

CELL, OTHER = (cell for cell in read_grid() if cell.setting == "partial_label" and cell.data == "cifar10")
RECIPE = Recipe(backbone="resnet18")


def trial(rate: float, value: float | None, seed: int = 0, cell: Cell = CELL, **changes: Any) -> Record:
    config = RECIPE.as_dict() | {"learning_rate": rate, "held_out": 0.1} | changes.pop("config", {})
    curve = [{"epoch": 1, "held_out_tempered": 5.0}, {"epoch": 2, "held_out_tempered": value, "accuracy": -100 * rate}]
    line = {"setting": cell.setting, "data": cell.data, "cell": cell.name, "method": "cc", "seed": seed}
    return line | {"budget": 1000, "config": config, "curve": curve} | changes


def test_the_rate_whose_weak_labels_were_foretold_best_is_taken() -> None:
    rates = rates_of([trial(0.1, -0.5), trial(0.03, -0.2), trial(0.01, -0.3)])
    assert rates(CELL, "cc", RECIPE) == 0.03
    # by the mean of seeds; a run that ended in no numbers is the worst there is
    seeds = [trial(0.1, -0.3), trial(0.1, -0.3, 1), trial(0.03, -0.1), trial(0.03, -0.6, 1)]
    assert rates_of(seeds)(CELL, "cc", RECIPE) == 0.1
    assert rates_of([trial(0.1, None), trial(0.03, -9.0)])(CELL, "cc", RECIPE) == 0.03


def test_trials_of_other_networks_budgets_and_methods_do_not_count() -> None:
    mine = [trial(0.1, -0.5), trial(0.03, -0.6)]
    others = [
        trial(0.01, -0.1, method="proden"),
        trial(0.01, -0.1, budget=500),
        trial(0.01, -0.1, budget=None),
        trial(0.01, -0.1, config={"backbone": "lenet5"}),
        trial(0.01, -0.1, config={"held_out": 0.0}),
        trial(0.01, -0.1, config={"held_out": 0.2}),
        trial(0.01, -0.1, config={"mixup": 0.5}),
        trial(0.01, -0.1, budget=2000),  # a larger budget, but a single rate
        trial(0.01, -0.1, cell=OTHER),
    ]
    assert rates_of([*others, *mine])(CELL, "cc", RECIPE) == 0.1
    assert rates_of(mine)(OTHER, "cc", RECIPE) == 0.1  # a cell without trials goes by those of its neighbour
    for few in ([], mine[:1], [trial(0.1, -0.5, data="mnist"), trial(0.03, -0.4, data="mnist")]):
        with pytest.raises(InputError, match=r"cc on .* has trials at [01] learning rates by the recipe of this"):
            rates_of(few)(CELL, "cc", RECIPE)


def test_jobs_have_the_rate_and_say_that_it_was_chosen() -> None:
    cells, rates = tiny_cells("digits")[:1], {"fastbus": 0.07, "gbm": 0.007}
    jobs = plan_jobs(
        cells, ["fastbus", "gbm", "supervised"], [0], {}, 0.0, True, 3000, lambda _, method, recipe: rates[method]
    )
    plain = plan_jobs(cells, ["supervised"], [0], {}, 0.0, True, 3000)[0].recipe.learning_rate
    assert [job.recipe.learning_rate for job in jobs] == [0.07, 0.007, plain]
    assert {job.variant for job in jobs} == {"views=3000, learning_rate=tuned"}
    with pytest.raises(InputError, match="--tuned with --set learning_rate"):
        plan_jobs(cells, ["gbm"], [0], {"learning_rate": 0.1}, 0.0, True, 3000, lambda *_: 0.1)


def started(rule: Any, weak: torch.Tensor, size: int, classes: int) -> ImageRun:
    images = digits()[0][: len(weak) * size]
    sizes = torch.full((len(weak),), size)
    return ImageRun(rule, images, sizes, weak, num_classes=classes, recipe=QUICK.replace(epochs=1, labelled_rows=8))


def test_predictions_are_judged_as_hard_or_soft_as_suits_them() -> None:
    source = torch.Generator().manual_seed(0)
    sets = (torch.rand(80, 10, generator=source) < 0.4).long()
    sets[:, 3] = 1
    run = started(PartialLabel(), sets, 1, 10)
    run.run_epoch()
    logits = run.logits(digits()[0][:80]).double()
    by_hand = [float(((logits / t).softmax(1) * sets).sum(1).log().mean()) for t in TEMPERATURES]
    kept = digits()[0][:80], torch.ones(80, dtype=torch.long), sets
    assert run.weak_score(*kept, temperatures=TEMPERATURES) == pytest.approx(max(by_hand), abs=1e-6)
    assert run.weak_score(*kept) == pytest.approx(by_hand[TEMPERATURES.index(1.0)], abs=1e-6)
    assert max(by_hand) > by_hand[TEMPERATURES.index(1.0)] + 1e-3


def test_predictions_that_are_no_numbers_have_no_score() -> None:
    counts = torch.tensor([[1, 1], [2, 0], [0, 2], [1, 1]])
    positives = torch.where(torch.arange(80) < 20, 1, -1)
    for rule, weak, size in ((LabelProportion(), counts, 2), (PositiveUnlabeled(prior=0.4), positives, 1)):
        run = started(rule, weak, size, 2)
        sizes, images = torch.full((len(weak),), size), digits()[0][: len(weak) * size]
        score = run.weak_score(images, sizes, weak)
        assert score is not None and math.isfinite(score)
        with torch.no_grad():
            next(iter(run.training.average.parameters())).fill_(float("nan"))
        assert run.weak_score(images, sizes, weak, temperatures=TEMPERATURES) is None
