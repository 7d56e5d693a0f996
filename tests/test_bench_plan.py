"""What the paper's experiments plan: fingerprints, ceilings that cells share, and equal budgets."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fastbus.bench.paper.draw import SCORED, Source, draw_task
from fastbus.bench.paper.grid import Cell, read_grid, select, tiny_cells
from fastbus.bench.paper.methods import EQUAL, applies, choose, facts_for
from fastbus.bench.paper.plan import plan_jobs, views_of_an_epoch
from fastbus.bench.paper.sets import Images, load_set
from fastbus.errors import InputError
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import LITTLE, unaided

CIFAR = [cell for cell in read_grid() if cell.data == "cifar10"]


def test_fingerprints_tell_recipes_apart_and_not_seeds() -> None:
    cells = tiny_cells("digits")[:1]
    plain = plan_jobs(cells, ["fastbus"], [0, 1], {}, 0.0)
    assert plain[0].fingerprint == plain[1].fingerprint and plain[0].key != plain[1].key
    changed = [
        plan_jobs(cells, ["fastbus"], [0], {"epochs": 7}, 0.0),
        plan_jobs(cells, ["fastbus"], [0], {}, 0.1),
        plan_jobs(cells, ["supervised"], [0], {}, 0.0),
    ]
    assert len({plain[0].fingerprint, *(job.fingerprint for (job,) in changed)}) == 4


def test_cells_with_the_same_images_share_a_ceiling() -> None:
    noisy = [cell for cell in read_grid() if cell.setting == "noisy_label" and cell.data in ("cifar10", "cifar10n")]
    assert len(noisy) == 7
    (job,) = plan_jobs(noisy, ["supervised"], [0], {}, 0.0)
    assert job.cell == noisy[0]
    assert len(plan_jobs(noisy[1:], ["supervised"], [0, 1], {}, 0.0)) == 2
    # as many random images do as well; weak labels kept back are images that do not train
    partial = [cell for cell in read_grid() if cell.setting == "partial_label" and cell.data == "cifar10"]
    assert [job.cell for job in plan_jobs(partial, ["supervised"], [0], {}, 0.0)] == partial[:1] and len(partial) == 2
    for cells, held_out in ((partial, 0.1), (noisy[:2], 0.1), (CIFAR[:2], 0.0)):
        assert [job.cell for job in plan_jobs(cells, ["supervised"], [0], {}, held_out)] == list(cells)
    labels = np.arange(50_000) % 10
    source = Source(Images(labels, labels, labels, labels), None, Path())  # pixels play no part in a draw
    rows = [draw_task(cell, source, 0).train.rows for cell in noisy[:2]]
    np.testing.assert_array_equal(*(np.sort(some) for some in rows))


@pytest.mark.parametrize("cell", CIFAR, ids=lambda cell: cell.title)
def test_a_budget_gives_all_methods_of_a_cell_the_same_epochs(cell: Cell) -> None:
    jobs = plan_jobs([cell], choose(["all"]), [0], {"backbone": "wrn_28_2"}, 0.0, budget=1_500_000)
    assert len(jobs) > 4 and len({job.recipe.epochs for job in jobs if job.method != "supervised"}) == 1
    assert not {job.method for job in jobs} & set(EQUAL)  # one run speaks for both
    assert not (applies("uum", cell) and cell.setting == "label_proportion")  # more orders than can be listed
    assert jobs[0].variant == "backbone=wrn_28_2, views=1500000"
    for job in jobs:
        seen = job.recipe.epochs * views_of_an_epoch(cell, job.recipe, job.method)
        assert 0.9 < seen / 1_500_000 < 1.1
    with pytest.raises(InputError, match="--views with --set epochs"):
        plan_jobs([cell], ["fastbus"], [0], {"epochs": 3}, 0.0, budget=1000)
    (plain,) = plan_jobs([cell], ["fastbus"], [0], {"epochs": jobs[0].recipe.epochs, "backbone": "wrn_28_2"}, 0.0)
    begun = unaided(plain.recipe, cell.setting).replace(epochs=plain.recipe.epochs)
    assert begun == jobs[0].recipe and plain.key != jobs[0].key
    assert not any(job.groundwork for job in jobs if cell.setting not in SCORED)
    (ceiling,) = (job for job in plan_jobs([cell], ["supervised"], [0], {}, 0.0, budget=1_500_000))
    assert ceiling.recipe == ceiling.recipe.plain()


def test_runs_on_all_images_of_a_set_share_what_is_learnt_without_labels() -> None:
    cells = [cell for cell in read_grid() if cell.data in ("cifar10", "cifar10n")]
    every = {
        setting: [cell for cell in cells if cell.setting == setting]
        for setting in ("noisy_label", "semi_supervised", "partial_label")
    }

    def shared(setting: str, seeds: int = 1, **changes: object) -> set[str]:
        jobs = plan_jobs(every[setting], ["fastbus"], range(seeds), changes, 0.0)
        return {work.fingerprint for job in jobs for work in job.groundwork}

    noisy = shared("noisy_label")
    assert len(noisy) == 1 and len(every["noisy_label"]) == 7
    assert noisy < shared("noisy_label", seeds=2) and len(shared("noisy_label", seeds=2)) == 2
    assert shared("noisy_label", epochs=3) == noisy != shared("noisy_label", pretrain=3)
    assert len(shared("semi_supervised")) == 1 and shared("semi_supervised") != noisy  # another network
    assert not shared("partial_label")
    assert len(shared("partial_label", pretrain=3)) == 2  # each draws images of its own
    (told,) = plan_jobs(every["noisy_label"][:1], ["elr"], [0], {"pretrain": 3}, 0.0, budget=1_500_000)
    assert told.pretraining is not None
    scored = [cell for cell in cells if cell.setting in SCORED]
    with pytest.raises(InputError, match="pretrain=3 on similarity_confidence"):
        plan_jobs(scored, ["fastbus"], [0], {"pretrain": 3}, 0.0)


def test_views_of_an_epoch_are_those_of_a_run() -> None:
    for cell in tiny_cells("digits"):
        if cell.setting not in (*SCORED, "noisy_label"):  # which need a scorer, or an estimate, first
            (job,) = plan_jobs([cell], ["fastbus"], [0], {"epochs": 2}, 0.0, tiny=True)
            task = draw_task(cell, Source(load_set("digits", None), None, Path()), 0)
            images = torch.from_numpy(load_set("digits", None).train[task.train.rows])
            weak, sizes = torch.from_numpy(task.train.weak), torch.from_numpy(task.train.sizes)
            rule = task.supervision
            run = ImageRun(rule, images, sizes, weak, num_classes=task.num_classes, recipe=job.recipe, flip=False)
            run.run_epoch()
            assert 0.8 < run.views_seen / views_of_an_epoch(cell, job.recipe, job.method) < 1.35, cell.title


def test_dividemix_has_the_weight_its_authors_chose_for_the_true_share() -> None:
    """The authors' 20 and 80 % of labels drawn anew are .18 and .72 wrong ones: 0 and 25."""
    cells = {cell.name: cell for cell in CIFAR if cell.setting == "noisy_label"}
    told = {name: facts_for("dividemix", cell) for name, cell in cells.items()}
    assert told == {"ratio=0.3": {"unlabelled_weight": 0.0}, "ratio=0.7": {"unlabelled_weight": 25.0}}


def test_glws_learns_the_noise_that_is_estimated_for_others() -> None:
    for cell in CIFAR:
        assert facts_for("glws", cell).get("learn_transition", False) is (cell.setting == "noisy_label"), cell.title


def test_methods_are_planned_only_where_they_can_run() -> None:
    cells = [cell for cell in read_grid() if cell.data == "fashion_mnist"]
    (one_class,) = (cell for cell in cells if cell.setting == "multi_instance" and "positives" in cell.draw)
    assert facts_for("cege", one_class) == {"prior": 0.1}
    even = [cell for cell in cells if cell.setting == "similarity_confidence" and cell.draw["prior"] == 0.5]
    assert even and not any(applies(method, cell) for cell in even for method in ("sc_abs", "sc_unbiased"))
    assert applies("sc_abs", next(cell for cell in cells if cell.draw.get("prior") == 0.7))


def test_small_networks_have_their_own_entries_whichever_way_they_are_asked_for() -> None:
    (cell,) = select(read_grid(), ["noisy_label"], ["fashion_mnist"], None)
    (job,) = plan_jobs([cell], ["fastbus"], [0], {}, 0.0, budget=500_000)
    assert (job.recipe.own, job.recipe.strong, job.recipe.stride, job.recipe.settle) == (True, LITTLE, 0.0, 0.0)
    (longer,) = plan_jobs([cell], ["fastbus"], [0], {}, 0.0, budget=5_000_000)
    assert longer.recipe == job.recipe.replace(epochs=longer.recipe.epochs)
    assert unaided(job.recipe, "noisy_label") == job.recipe  # which has no use for what is said of long runs
