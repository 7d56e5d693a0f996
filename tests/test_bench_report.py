"""The report of the paper's experiments: sums that can be checked by hand, missing cells marked, a page that opens."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fastbus.bench.paper.grid import read_grid
from fastbus.bench.paper.plan import product_job
from fastbus.bench.paper_report.budget import budget_lines, budget_reasons, rates_tried
from fastbus.bench.paper_report.markdown import as_markdown
from fastbus.bench.paper_report.page import as_page
from fastbus.bench.paper_report.plots import apart
from fastbus.bench.paper_report.summary import (
    FORMER,
    best_rival,
    changed_lines,
    figure_text,
    lines_of,
    summarise,
)
from fastbus.cli import main
from test_report_page import Page, opened

pytest.importorskip("matplotlib")
CELLS = [cell for cell in read_grid() if cell.setting in ("multi_instance", "similarity_confidence")]
# no "align": a line of a time when there was none
CONFIG = {"backbone": "wrn_28_2", "epochs": 10, "held_out": 0.0, "mixup": 0.0, "images": 100}
SCORER = {"trained on": 15000, "accuracy on the other images": 96.9, "fingerprint": "x"}


def record(accuracy: float, seed: int = 0, method: str = "fastbus", **changes: Any) -> dict[str, Any]:
    """A line of paper.jsonl: bags of CIFAR-10 unless told otherwise."""
    config = CONFIG | changes.pop("config", {})
    curve = [{"epoch": epoch, "loss": 1 / epoch, "accuracy": accuracy - 10 / epoch} for epoch in (5, 10)]
    line = {
        "setting": "multi_instance", "data": "cifar10", "cell": "N=800,K~N(8,1)", "method": method, "variant": "",
        "seed": seed, "fingerprint": json.dumps([method, config]), "metric": "balanced accuracy", "accuracy": accuracy,
        "accuracy_last": accuracy - 1, "curve": curve, "seconds": 100.0, "views": 2_000_000, "config": config,
        "images_per_second": 2e4, "facts": {"mean size": 8.01, "replaced": False}, "scorer": None, "device": "a device",
    }  # fmt: skip
    return line | changes


def runs() -> list[dict[str, Any]]:
    """Three seeds, a ceiling, an ablation, another method, weak labels kept back, and a scored cell."""
    pairs = {"setting": "similarity_confidence", "cell": "N=10000,prior=0.65", "scorer": SCORER}
    kept = [{"epoch": epoch, "loss": 1.0, "accuracy": 80.0, "held_out": -1 / epoch} for epoch in (5, 10)]
    return [
        record(80.0, 0),
        record(82.0, 1),
        record(84.0, 2),
        record(90.0, method="supervised"),
        record(79.0, variant="mixup=0.5", config={"mixup": 0.5}),
        record(66.0, method="glws", config={"epochs": 12}, views=2_400_000),
        record(81.0, config={"held_out": 0.1}, curve=kept),
        record(96.0, **pairs),
    ]


def test_means_deviations_and_what_stands_beside_them() -> None:
    rows = summarise(CELLS, runs())
    row = rows[0]
    assert [group.method for group in row.groups] == ["fastbus", "glws"]
    assert row.ours is not None and row.ceiling is not None
    assert row.ours.mean == 82 and row.ours.spread == 2 and row.ours.paper == (71.02, 0.81)
    fastbus, glws = lines_of(row)
    assert fastbus[3:10] == ("82.00 ± 2.00§", "3", "81.00", "71.02 ± 0.81", "+10.98", "GLWS 68.97", "90.00")
    assert fastbus[10:] == ("wrn_28_2", "10", "2.00 M", "100")
    assert glws[6:8] == ("68.97 ± 0.79", "−2.97") and glws[9] == "90.00‡"
    assert [change for _, change in row.ablations] == ["mixup 0 → 0.5", "held_out 0 → 0.1"]
    assert best_rival(row.cell) == ("GLWS", 68.97)


def test_methods_at_one_budget_have_a_table_of_their_own() -> None:
    equal = {"variant": "views=1000", "budget": 1000, "config": {"epochs": 7}}
    lines = [*runs(), record(70.0, **equal), record(60.0, method="glws", **equal), record(71.0, 1, **equal)]
    # weak labels kept back, and an older recipe, do not count
    lines += [record(99.0, **equal | {"config": {"epochs": 7, "held_out": 0.1}})]
    lines = [record(98.0, method="glws", **equal | {"config": {"epochs": 7, "mixup": 0.3}}), *lines]
    (row, *_) = summarise(CELLS, lines)
    assert row.ours is not None and row.ours.mean == 82  # the product's recipe as before
    assert [(group.method, len(group.runs)) for group in row.alike] == [("fastbus", 2), ("glws", 1)]
    assert [change for _, change in row.ablations] == ["mixup 0 → 0.5", "held_out 0 → 0.1"]  # of runs() alone
    assert [line[3:8] + line[-1:] for line in budget_lines([row])] == [
        ("fastbus", "70.50 ± 0.71", "2", "71.02 ± 0.81", "−0.52", ""),
        ("glws", "60.00", "1", "68.97 ± 0.79", "−8.97", "†"),
    ]
    assert budget_reasons([row]) == ["† glws: not explained yet"]
    assert "one budget" in as_markdown([row]) and "one budget" in as_page([row])


def test_a_cell_that_was_run_at_one_budget_alone_says_so() -> None:
    (row, *_) = summarise(CELLS, [record(70.0, variant="views=1000", budget=1000)])
    assert row.ours is None and lines_of(row)[0][3] == "at one budget alone, below"


def test_rates_of_ones_own_are_marked_and_their_trials_are_no_ablations() -> None:
    equal = {"variant": "views=1000, learning_rate=tuned", "budget": 1000, "config": {"learning_rate": 0.01}}
    kept = [{"epoch": 5, "loss": 1.0, "accuracy": 70.0, "held_out": -1.0, "held_out_tempered": -0.9}]
    trials = [
        record(50.0, method="glws", budget=500, config={"learning_rate": rate, "held_out": 0.1}, curve=kept)
        for rate in (0.01, 0.03)
    ]
    both = [record(60.0, method="glws", **equal), record(50.0, method="supervised", **equal)]  # whose rate is given
    (row, *_) = summarise(CELLS, [*runs(), *trials, *both])
    assert [line[9] for line in budget_lines([row])] == ["0.01*", "0.01"]
    (told,) = rates_tried([row])
    assert "0.01, 0.03" in told and "500 views" in told
    assert [change for _, change in row.ablations] == ["mixup 0 → 0.5", "held_out 0 → 0.1"]
    assert told in as_markdown([row])
    assert "All methods at one budget of views, cell by cell" in as_page([row])


def test_a_changed_entry_at_a_budget_is_an_ablation_beside_the_runs_of_that_budget() -> None:
    equal: dict[str, Any] = {"variant": "views=1000, learning_rate=tuned", "budget": 1000, "config": {"epochs": 7}}
    changed = {"variant": "coupling=independent, views=1000", "config": {"epochs": 7, "coupling": "independent"}}
    lines = [record(70.0, **equal), record(60.0, method="glws", **equal), record(65.0, **equal | changed)]
    for order in (lines, lines[::-1]):
        (row, *_) = summarise(CELLS, [*runs(), *order])
        assert [(group.method, group.mean) for group in row.alike] == [("fastbus", 70.0), ("glws", 60.0)]
        told = [(group.mean, change) for group, change in row.ablations if group.budget]
        assert told == [(65.0, "coupling 0 → independent")]


def test_runs_that_failed_are_told_whatever_their_accuracy() -> None:
    equal = {"variant": "views=1000", "budget": 1000}
    runs = [record(60.0, seed, **equal, predicted_shares=shares) for seed, shares in enumerate(([], [1.0, 0.0]))]
    (row, *_) = summarise(CELLS, [*runs, record(60.0, 2, **equal, predicted_shares=[0.6, 0.4])])
    assert budget_lines([row])[0][-1].endswith("1 of 3 ended in no numbers, 1 of 3 predict one class")
    # ten classes: a quarter of an even share is .025
    some = [[0.024, 0.176, *[0.1] * 8], [0.026, 0.174, *[0.1] * 8], [0.0, 1.0, *[0.0] * 8]]
    (row, *_) = summarise(CELLS, [record(60.0, seed, **equal, predicted_shares=x) for seed, x in enumerate(some)])
    assert budget_lines([row])[0][-1].endswith("1 of 3 predict one class, 1 of 3 give a class up")


def test_a_method_that_equals_another_shows_its_runs() -> None:
    equal = {"variant": "views=1000", "budget": 1000, "setting": "multi_instance"}
    (row, *_) = summarise(CELLS, [record(65.0, method="gbm", **equal)])
    shown = [(line[3], line[4], line[6], line[-1]) for line in budget_lines([row])]
    uum = row.cell.paper["UUM"]
    assert uum is not None
    assert shown == [("gbm", "65.00", "–", ""), ("uum", "65.00", figure_text(uum), "equals gbm")]


def test_a_shared_ceiling_stands_beside_every_cell_of_the_same_images() -> None:
    noisy = {"setting": "noisy_label", "data": "cifar10"}
    lines = [record(95.0, method="supervised", cell="ratio=0.3", **noisy), record(90.0, cell="ratio=0.7", **noisy)]
    rows = {row.cell.key: row for row in summarise(read_grid(), lines)}
    for key in (("cifar10", "ratio=0.3"), ("cifar10", "ratio=0.7"), ("cifar10n", "worst")):
        ceiling = rows["noisy_label", *key].ceiling
        assert ceiling is not None and ceiling.mean == 95
    assert rows["noisy_label", "cifar100", "ratio=0.7"].ceiling is None
    assert rows["partial_label", "cifar10", "N=20000,ratio=0.30"].ceiling is None


def test_the_newest_recipe_counts_and_older_ones_are_ablations() -> None:
    old, new = record(85.0, config={"epochs": 99}), record(80.0)
    (row, *_) = summarise(CELLS, [old, new])
    assert row.ours is not None and row.ours.mean == 80
    assert [change for _, change in row.ablations] == ["epochs 10 → 99"]
    (row, *_) = summarise(CELLS, [record(85.0, config={"epochs": 99}), record(80.0, config={"align": 0.0})])
    assert [change for _, change in row.ablations] == ["epochs 10 → 99"]
    (row, *_) = summarise(CELLS, [new, old])
    assert row.ours is not None and row.ours.mean == 85
    (row, *_) = summarise(CELLS, [record(50.0, variant="mixup=0.5", config={"mixup": 0.5})])
    assert row.ours is None and row.state == "not run" and len(row.ablations) == 1


def test_the_recipe_of_the_product_counts_however_it_was_asked_for() -> None:
    """A trial that became the recipe is the figure; one by an earlier recipe stands in its place until then."""
    product = product_job(CELLS[0], "fastbus")
    assert product is not None
    trial = record(70.0, variant="learning_rate=0.1", fingerprint=product.fingerprint, config={"learning_rate": 0.1})
    later = record(85.0, config={"epochs": 99})
    (row, *_) = summarise(CELLS, [trial, later])
    assert row.ours is not None and row.ours.mean == 70
    assert len(row.ablations) == 1 and "by an earlier recipe or" not in as_markdown([row])
    (row, *_) = summarise(CELLS, [later])
    assert row.ours is not None and row.ours.mean == 85 and "by an earlier recipe or" in as_markdown([row])
    same = record(75.0, variant="epochs=200", fingerprint="other", config=product.recipe.as_dict())  # but for its data
    (row, *_) = summarise(CELLS, [same, later])
    assert row.ours is not None and row.ours.mean == 75 and "by an earlier recipe or" in as_markdown([row])
    kept_back = record(75.0, fingerprint="other", config=product.recipe.as_dict() | {"held_out": 0.1})
    (row, *_) = summarise(CELLS, [kept_back])
    assert row.ours is None and len(row.ablations) == 1


def test_fewer_epochs_count_and_say_so_and_a_ceiling_may_begin_with_random_weights() -> None:
    (cell,) = (cell for cell in read_grid() if (cell.data, cell.name) == ("cifar10", "ratio=0.7"))
    product, ceiling = product_job(cell, "fastbus"), product_job(cell, "supervised")
    assert product is not None and ceiling is not None and product.recipe.pretrain

    def of_cell(accuracy: float, method: str, entries: dict[str, Any]) -> dict[str, Any]:
        place = {"setting": cell.setting, "cell": cell.name, "variant": "epochs=20"}
        return record(accuracy, method=method, **place, config={"held_out": 0.0, **entries})

    shorter = product.recipe.as_dict() | {"epochs": 20}
    random = ceiling.recipe.as_dict() | {"epochs": 20, "pretrain": 0}
    # the ceiling belongs to all cells of as many images, and stands with the first of them
    first = {"cell": "ratio=0.3"}
    known = {"pretraining": {"views": 9_000_000, "seconds": 100.0}}
    lines = [of_cell(80.0, "fastbus", shorter) | known, of_cell(90.0, "supervised", random) | first]
    grid = [cell for cell in read_grid() if cell.setting == "noisy_label"]
    (row,) = (row for row in summarise(grid, lines) if row.cell == cell)
    assert row.ours is not None and row.ours.mean == 80 and row.ours.shortened == product.recipe.epochs
    assert row.ceiling is not None and row.ceiling.mean == 90
    (line,) = lines_of(row)
    assert line[9] == "90.00‡" and line[11] == "20"
    assert f"20 epochs, of which the recipe has {product.recipe.epochs}" in as_markdown([row])
    # for the method itself, random weights are another recipe
    (row,) = summarise([cell], [of_cell(80.0, "fastbus", shorter | {"pretrain": 0})])
    assert row.ours is None and len(row.ablations) == 1


def test_a_recipe_that_the_product_once_had_stands_before_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    product = product_job(CELLS[0], "fastbus")
    assert product is not None
    older = record(85.0, config={"epochs": 99})
    former = record(80.0, variant="mixup=0.5", config=product.recipe.as_dict() | {"mixup": 0.5})
    (row, *_) = summarise(CELLS, [older, former])
    assert row.ours is not None and row.ours.mean == 85  # a trial like others
    monkeypatch.setitem(FORMER, "multi_instance", ({"mixup": 0.5},))
    (row, *_) = summarise(CELLS, [older, former])
    assert row.ours is not None and row.ours.mean == 80 and "by an earlier recipe or" in as_markdown([row])


def test_what_changed_is_told_as_it_was_and_beside_it_how_likely_kept_labels_were() -> None:
    kept = [{"epoch": epoch, "loss": 1.0, "accuracy": 80.0, "held_out": -1 / epoch} for epoch in (5, 10)]
    trial = {"variant": "decided=0.4", "curve": kept, "config": {"decided": 0.4, "own": False, "held_out": 0.1}}
    (row, *_) = summarise(CELLS, [record(80.0, config={"decided": True, "own": True}), record(70.0, **trial)])
    (line,) = changed_lines([row])
    assert line[0] == "1" and line[-1] == "−0.1000"
    assert line[4] == "decided True → 0.4, held_out 0 → 0.1, own True → False"


def test_numbers_beside_lines_do_not_touch_and_keep_their_order() -> None:
    places = [0.0, 5.0, 0.1, 0.05, 5.0]
    moved = apart(places, 1.0, -9.0, 9.0)
    order = sorted(range(5), key=lambda at: places[at])
    assert all(moved[above] - moved[below] >= 1 - 1e-12 for below, above in pairwise(order))
    assert abs(sum(moved) - sum(places)) < 1e-12
    assert moved[1] - moved[4] in (1.0, -1.0) and sorted((moved[1], moved[4])) == [4.5, 5.5]  # a crowd of its own
    assert apart([3.0, 1.0], 1.0, 0.0, 9.0) == [3.0, 1.0]
    assert apart(places, 1.0, 0.0, 5.0) == [0.0, 4.0, 2.0, 1.0, 5.0]  # all of them between low and high


def test_a_seed_run_twice_counts_once() -> None:
    (row, *_) = summarise(CELLS, [record(80.0), record(70.0)])
    assert row.ours is not None and row.ours.scores == [70.0] and row.ours.spread is None


def test_cells_without_runs_are_marked() -> None:
    text = as_markdown(summarise(CELLS, runs()))
    assert text.count("official files needed") == sum(cell.data in ("cifar100", "stl10") for cell in CELLS)
    assert "| cifar10 | N=1200,K~N(5,1) | fastbus | not run | 0 |" in text
    assert "74.56 ± 0.63" in text and "trained on 15000" in text
    assert "| 1 | cifar10 | N=800,K~N(8,1) | fastbus | mixup 0 → 0.5 | 79.00 | 1 | 78.00 | – |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| ") and "seconds" not in line}
    assert widths == {15, 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("results")
    (place / "paper.jsonl").write_text("".join(json.dumps(line) + "\n" for line in runs()), encoding="utf-8")
    assert main(["bench", "report", "--results", str(place)]) == 0
    return place


def test_the_page_is_well_formed_and_self_contained(folder: Path) -> None:
    text = (folder / "paper.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.problems == []
    assert not re.search(r"https?://|//cdn|@import|url\((?!#)", text)
    assert "82.00 ± 2.00" in text and "not run" in text and "official files needed" in text
    assert page.tags.count("svg") == 4  # overview, two cells' curves, weak labels kept back
    assert all(page.labels)


def test_it_opens_in_a_browser(folder: Path, tmp_path: Path) -> None:
    printed, asked = opened(folder / "paper.html", tmp_path)
    assert "CONSOLE" not in printed and [url for url in asked if not url.startswith("data:")] == []


def test_a_report_without_any_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "paper.jsonl").touch()
    assert main(["bench", "report", "--results", str(tmp_path), "--dataset", "cifar10"]) == 0
    pages = [tmp_path / "paper-cifar10.md", tmp_path / "paper-cifar10.html"]  # a part does not replace the whole
    assert capsys.readouterr().out.split() == [str(page) for page in pages]
    text = pages[0].read_text(encoding="utf-8")
    assert text.count("| not run |") == 20 and "mnist" not in text.partition("## ")[2]


def test_a_folder_without_runs_is_refused_and_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (tmp_path, tmp_path / "typo"):
        assert main(["bench", "report", "--results", str(place)]) == 2
        err = capsys.readouterr().err
        assert f"{place} holds no paper.jsonl; expected the runs of fastbus bench paper" in err and "--results" in err
    assert list(tmp_path.iterdir()) == []


def test_damaged_lines_and_wrong_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "report", "--results", str(tmp_path), "--dataset", "moons"]) == 2
    (tmp_path / "paper.jsonl").write_text('{"setting": 3}\n')
    assert main(["bench", "report", "--results", str(tmp_path)]) == 2
    assert "line 1" in capsys.readouterr().err
