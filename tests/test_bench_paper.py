"""The paper's experiments: the grid says what the paper says, weak labels keep to the rules, runs resume exactly."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fastbus.bench.paper import run as run_module
from fastbus.bench.paper.draw import SCORED, Source, Task, at_prior, draw_task, gold_task, true_labels
from fastbus.bench.paper.grid import SETTINGS, Cell, read_grid, tiny_cells
from fastbus.bench.paper.methods import PAPER_NAMES, applies
from fastbus.bench.paper.metrics import score
from fastbus.bench.paper.plan import Job, plan_jobs
from fastbus.bench.paper.pool import run_jobs
from fastbus.bench.paper.run import Place, work
from fastbus.bench.paper.sets import SETS, Images, load_set
from fastbus.bench.paper.show import TINY_LOG, read_runs
from fastbus.bench.results import alone_in
from fastbus.cli import main

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_paper = pytest.mark.skipif(not (SHARED / "paper").exists(), reason="the folder shared/paper is absent")
needs_labels = pytest.mark.skipif(
    not (SHARED / "data" / "cifar10n.npz").exists(), reason="the folder shared/data with CIFAR-10's labels is absent"
)
CIFAR = [cell for cell in read_grid() if cell.data == "cifar10"]
TIMES = ("seconds", "noise_seconds", "wall_seconds", "images_per_second")


# -- the grid -------------------------------------------------------------------------------------


def test_every_cell_has_a_figure_of_the_paper_or_says_why_not() -> None:
    grid = read_grid()
    assert len({cell.key for cell in grid}) == len(grid)
    assert {cell.setting for cell in grid} == set(SETTINGS)
    for cell in grid:
        assert bool(cell.paper.get("FastBUS")) != bool(cell.without), cell.title
        assert set(cell.paper) <= set(PAPER_NAMES)
    assert {cell.data for cell in grid} == {"cifar10", "cifar100", "stl10", "cifar10n", "mnist", "fashion_mnist"}


@needs_paper
def test_figures_are_those_of_the_paper() -> None:
    told = json.loads((SHARED / "paper" / "results.json").read_text())
    flat = {
        (setting, data, name): figures
        for setting, sets in told.items()
        for data, cells in sets.items()
        for name, figures in cells.items()
    }
    ours = {cell.key: cell.paper for cell in read_grid() if cell.paper}
    assert ours.keys() == flat.keys()
    for key, figures in flat.items():
        assert {name: None if x is None else tuple(x) for name, x in figures.items()} == ours[key], key


@pytest.mark.parametrize("cell", read_grid(), ids=lambda cell: cell.title)
def test_names_say_what_is_drawn(cell: Cell) -> None:
    draw = cell.draw
    if found := re.match(r"N=(\d+),K~N\((\d+),(\d+)\)", cell.name):
        assert (draw["bags"], draw["mean"], draw["std"]) == tuple(map(int, found.groups()))
    elif found := re.fullmatch(r"N=(\d+),prior=([\d.]+)", cell.name):
        assert (draw["pairs"], draw["prior"]) == (int(found[1]), float(found[2]))
    elif found := re.fullmatch(r"(?:N=(\d+),)?ratio=([\d.]+)", cell.name):
        assert (draw.get("images"), draw["ratio"]) == (found[1] and int(found[1]), float(found[2]))
    elif found := re.fullmatch(r"(?:N=(\d+),)?N_(?:pos|labels)=(\d+)", cell.name):
        assert (draw.get("images"), draw["labelled"]) == (found[1] and int(found[1]), int(found[2]))
    else:
        assert cell.data == "cifar10n" and draw["human"].endswith(("label", "label1", "label2", "label3"))


def test_methods_belong_to_the_settings_whose_tables_have_them() -> None:
    bags, *_ = CIFAR
    assert applies("glws", bags) and applies("supervised", bags) and not applies("nnpu", bags)


# -- weak labels ----------------------------------------------------------------------------------


def cifar_source() -> Source:
    """CIFAR-10's true labels; the pixels play no part in a draw. Scores are those of an imaginary scorer."""
    with np.load(SHARED / "data" / "cifar10n.npz", allow_pickle=False) as arrays:
        labels = arrays["clean_label"].astype(np.int64)
    blank = np.zeros((len(labels), 1, 1, 1), dtype=np.uint8)
    scores = np.random.default_rng(0).random(len(labels))
    scores[np.random.default_rng(1).permutation(len(labels))[:17_000]] = np.nan
    return Source(Images(blank, labels, blank, labels), scores, SHARED / "data")


@needs_labels
@pytest.mark.parametrize("cell", CIFAR, ids=lambda cell: cell.title)
def test_weak_labels_of_cifar_keep_to_the_rules(cell: Cell) -> None:
    source = cifar_source()
    task = draw_task(cell, source, seed=0)
    truth = true_labels(cell, source.images.train_labels)[task.train.rows]
    CHECKS[cell.setting](cell, task, truth, source)
    again, other = draw_task(cell, source, seed=0), draw_task(cell, source, seed=1)
    assert (again.train.rows == task.train.rows).all() and (again.train.weak == task.train.weak).all()
    same = [np.array_equal(one, two) for one, two in zip(other.train, task.train, strict=True)]
    assert not all(same)


def check_bags(cell: Cell, task: Task, truth: np.ndarray, source: Source) -> None:
    B, sizes = cell.draw["bags"], task.train.sizes
    assert len(sizes) == B and sizes.min() >= 2
    assert abs(sizes.mean() - cell.draw["mean"]) < 4 * cell.draw["std"] / np.sqrt(B)
    assert len(np.unique(task.train.rows)) == len(task.train.rows)
    ends = np.cumsum(sizes)
    for bag in (0, B // 2, B - 1):
        counts = np.bincount(truth[ends[bag] - sizes[bag] : ends[bag]], minlength=10)
        expected = counts if cell.setting == "label_proportion" else counts > 0
        assert (task.train.weak[bag] == expected).all()


def check_pairs(cell: Cell, task: Task, truth: np.ndarray, source: Source) -> None:
    N, prior = cell.draw["pairs"], cell.draw["prior"]
    first, second = truth.reshape(-1, 2).T
    assert len(first) == N
    assert abs((first & second).sum() - prior**2 * N) <= 1
    assert abs((1 - (first | second)).sum() - (1 - prior) ** 2 * N) <= 1
    weak = task.train.weak
    if cell.setting == "pair_comparison":
        assert (weak == 1).all() and (first >= second).all()
    elif cell.setting == "pair_similarity":
        assert (weak == (first == second)).all()
        assert 0.4 < (first > second).sum() / (first != second).sum() < 0.6
    if cell.setting in SCORED:
        assert source.scores is not None
        chances = at_prior(source.scores[task.train.rows].astype(np.float64), SETS[cell.data].prior, prior)
        one, two = np.clip(chances, 1e-4, 1 - 1e-4).reshape(-1, 2).T
        assert not np.isnan(one).any() and not np.isnan(two).any()
        confidence = one * two + (1 - one) * (1 - two) if cell.setting == "similarity_confidence" else two - one
        assert np.abs(weak - confidence).max() < 1e-6


def check_partial(cell: Cell, task: Task, truth: np.ndarray, source: Source) -> None:
    weak, ratio = task.train.weak, cell.draw["ratio"]
    assert weak.shape == (20_000, 10) and (weak[np.arange(20_000), truth] == 1).all()
    share = (weak.sum() - 20_000) / (20_000 * 9)
    assert abs(share - ratio) < 4 * np.sqrt(ratio * (1 - ratio) / (20_000 * 9))


def check_noisy(cell: Cell, task: Task, truth: np.ndarray, source: Source) -> None:
    weak, ratio, N = task.train.weak, cell.draw["ratio"], 50_000
    wrong = weak != truth
    assert len(weak) == N and abs(wrong.mean() - ratio) < 4 * np.sqrt(ratio * (1 - ratio) / N)
    shift = np.bincount((weak[wrong] - truth[wrong]) % 10, minlength=10)[1:]
    assert np.abs(shift / wrong.sum() - 1 / 9).max() < 0.01  # every incorrect class alike


def check_positive_unlabeled(cell: Cell, task: Task, truth: np.ndarray, source: Source) -> None:
    known = task.train.weak == 1
    assert known.sum() == cell.draw["labelled"] and (truth[known] == 1).all()
    assert set(np.unique(task.train.weak)) == {-1, 1}
    assert truth[~known].mean() == pytest.approx(0.4, abs=1e-4) == task.supervision.prior  # type: ignore[attr-defined]
    assert len(truth) > 0.97 * 50_000


def check_semi_supervised(cell: Cell, task: Task, truth: np.ndarray, source: Source) -> None:
    weak = task.train.weak
    given = weak >= 0
    assert len(weak) == 50_000 and (weak[given] == truth[given]).all()
    assert (np.bincount(weak[given]) == cell.draw["labelled"] // 10).all()


CHECKS = {
    "multi_instance": check_bags,
    "label_proportion": check_bags,
    "pair_comparison": check_pairs,
    "pair_similarity": check_pairs,
    "similarity_confidence": check_pairs,
    "confidence_difference": check_pairs,
    "partial_label": check_partial,
    "noisy_label": check_noisy,
    "positive_unlabeled": check_positive_unlabeled,
    "semi_supervised": check_semi_supervised,
}


@pytest.mark.parametrize("cell", tiny_cells("digits"), ids=lambda cell: cell.setting)
def test_kept_back_images_do_not_train_and_the_ceiling_has_the_same_images(cell: Cell) -> None:
    images = load_set("digits", None)
    scores = np.random.default_rng(0).random(len(images.train))
    task = draw_task(cell, Source(images, scores, Path()), 0, held_out=0.2)
    assert task.held_out is not None
    assert not set(task.held_out.rows) & set(task.train.rows)
    labels = cell.draw["labelled"] if cell.setting == "semi_supervised" else task.facts["bags"]
    assert len(task.held_out.sizes) == round(0.2 * labels)
    gold = gold_task(task)
    assert (gold.train.rows == task.train.rows).all() and (gold.train.sizes == 1).all()
    assert (gold.train.weak.argmax(1) == task.labels[task.train.rows]).all() and (gold.train.weak.sum(1) == 1).all()


def test_scores_by_hand() -> None:
    truth, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 0])
    assert score("accuracy", predicted, truth, 2) == 50
    assert score("balanced accuracy", predicted, truth, 2) == pytest.approx(100 * (2 / 3 + 0) / 2)
    assert score("matched accuracy", 1 - truth, truth, 2) == 100
    assert score("matched accuracy", np.array([1, 2, 0, 0]), np.array([0, 1, 2, 2]), 3) == 100


# -- runs -----------------------------------------------------------------------------------------


def place(folder: Path, deadline: float | None = None) -> Place:
    return Place(None, Path(), folder, "cpu", 1, every=1e9, deadline=deadline)


def tiny_job(setting: str, epochs: int = 3) -> Job:
    cells = [cell for cell in tiny_cells("digits") if cell.setting == setting]
    (job,) = plan_jobs(cells, ["fastbus"], [0], {"epochs": epochs}, 0.1, tiny=True)
    return job


def without_times(record: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in record.items() if name not in TIMES}


@pytest.mark.parametrize("setting", ["label_proportion", "positive_unlabeled", "noisy_label"])
def test_a_run_that_stops_at_its_deadline_goes_on_exactly(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "START_MARGIN", 0.0)
    monkeypatch.setattr(run_module, "NOISE_MARGIN", 0.0)
    job = tiny_job(setting)
    whole = work(job, place(tmp_path / "whole"))
    stops = 0
    while (record := work(job, place(tmp_path / "parts", deadline=time.time() + 0.01))) is None:
        stops += 1
        assert stops < 5
    assert stops == 2  # an epoch at a time
    assert whole is not None and [point["epoch"] for point in whole["curve"]] == [1, 2, 3]
    assert without_times(record) == without_times(whole)
    assert all("held_out" in point for point in whole["curve"])


def flags(out: Path, *more: str) -> list[str]:
    common = ["bench", "paper", "--tiny", "--out", str(out), "--checkpoints", str(out / "unfinished")]
    return [*common, "--settings", "partial_label", "pair_similarity", "--set", "epochs=3", *more]


@pytest.mark.slow
def test_runs_are_kept_and_not_repeated_and_a_killed_one_ends_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(tmp_path / "a", "--json")) == 0
    first = json.loads(capsys.readouterr().out)
    assert {record["setting"] for record in first} == {"partial_label", "pair_similarity"}
    for record in first:
        assert {"device", "versions", "commit", "views", "accuracy_last", "facts"} <= record.keys()
        assert record["views"] > 0 and record["config"]["epochs"] == 3
    assert main(flags(tmp_path / "a", "--json")) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert not list((tmp_path / "a" / "unfinished").glob("*"))

    out = tmp_path / "b"
    command = [sys.executable, "-m", "fastbus.cli", *flags(out, "--checkpoint-every", "0")]
    killed = subprocess.Popen(command, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    start = time.monotonic()
    while not list((out / "unfinished").glob("[!.]*.safetensors")) and killed.poll() is None:
        assert time.monotonic() - start < 120
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    with pytest.raises(ProcessLookupError):  # its worker leaves by itself
        while time.monotonic() - start < 150:
            os.killpg(killed.pid, 0)
            time.sleep(0.05)
    assert len(read_runs(out / TINY_LOG)) < 2
    assert main(flags(out)) == 0
    capsys.readouterr()
    again = read_runs(out / TINY_LOG)
    changing = {*TIMES, "commit", "device"}
    strip = [{name: x for name, x in record.items() if name not in changing} for record in (*first, *again)]
    assert sorted(strip[:2], key=lambda r: r["setting"]) == sorted(strip[2:], key=lambda r: r["setting"])


def test_scores_are_moved_to_another_share_of_positives() -> None:
    """Densities of a coin in both classes: the posterior by Bayes at one share, moved, is that at the other."""
    dense = np.array([[0.2, 0.7], [0.5, 0.1], [0.3, 0.2]])  # (faces, classes)

    def posterior(share: float) -> np.ndarray:
        joint = dense * [1 - share, share]
        return joint[:, 1] / joint.sum(1)

    assert np.allclose(at_prior(posterior(0.4), 0.4, 0.65), posterior(0.65), atol=1e-12)
    assert at_prior(np.array([0.0, 1.0]), 0.4, 0.65).tolist() == [0.0, 1.0]


@pytest.mark.slow
def test_confidences_come_from_a_calibrated_scorer_on_other_images(tmp_path: Path) -> None:
    job = tiny_job("confidence_difference")
    assert job.scorer is not None
    facts = work(job.scorer, place(tmp_path))
    assert facts is not None and facts["accuracy on the other images"] > 90
    record = work(job, place(tmp_path))
    assert record is not None and record["scorer"]["trained on"] == 600
    from fastbus.bench.paper.scorer import read_scores, scorer_rows

    scores, _ = read_scores(tmp_path, job.scorer)
    own = np.concatenate(scorer_rows(job.scorer, scores))
    assert np.isnan(scores[own]).all() and np.isnan(scores).sum() == len(own) == 700
    task = draw_task(job.cell, Source(load_set("digits", None), scores, Path()), 0)
    assert not set(task.train.rows) & set(own)


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name not in SCORED])
def test_every_setting_trains(setting: str, tmp_path: Path) -> None:
    record = work(tiny_job(setting, epochs=1), place(tmp_path))
    assert record is not None and 0 < record["accuracy"] <= 100 and record["views"] > 0
    assert np.isfinite(record["curve"][-1]["loss"]) and np.isfinite(record["curve"][-1]["held_out"])


def test_nothing_begins_when_the_time_is_up(tmp_path: Path) -> None:
    jobs = [tiny_job("partial_label"), tiny_job("confidence_difference")]
    tally = run_jobs(jobs, place(tmp_path, deadline=time.time() + 1), 2, lambda *_: None, print)
    assert tally == (0, ["scorer of digits", *(job.title for job in jobs)], [])
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    good = tiny_job("partial_label", epochs=1)
    bad = replace(good, cell=replace(good.cell, data="cifar100"))  # whose files are not there
    kept: list[str] = []
    tally = run_jobs([bad, good], place(tmp_path), 1, lambda job, _: kept.append(job.title), print)
    assert kept == [good.title] and tally.finished == 1 and not tally.unfinished
    assert len(tally.failed) == 1 and "expected the official files" in tally.failed[0]


def test_no_device_is_touched_before_a_run_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "paper", "--list", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "71.02 ± 0.81" in shown and "worst" in shown
    assert not torch.cuda.is_initialized()


def test_numbers_are_read_as_people_write_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["bench", "paper", "--list", "--json", "--out", str(tmp_path), "--settings", "partial_label"]
    assert main([*flags, "--dataset", "cifar10", "--set", "learning_rate=1e-3", "own=true", "decided=.4"]) == 0
    told = capsys.readouterr()
    recipe = json.loads(told.out)[0]["recipe"]
    assert (recipe["learning_rate"], recipe["own"], recipe["decided"]) == (0.001, True, 0.4) and not told.err
    assert main([*flags, "--methods", "fastbus", "majority_vote"]) == 0
    assert "no cell for majority_vote among those chosen" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "paper", "--tiny", "--out", str(tmp_path), "--device", "cuda"]) == 2
    assert 'device="cuda" without one' in (told := capsys.readouterr().err) and len(told.splitlines()) == 1


@pytest.mark.slow
def test_a_time_limit_says_when_to_call_again_and_when_it_is_no_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*flags(tmp_path)[:-5], "--settings", "partial_label", "--set", "epochs=3000"]
    assert main([*command, "--time-limit", "1"]) == 2
    assert "--time-limit is over before a run may begin; expected 20 seconds" in capsys.readouterr().err
    assert main([*command, "--time-limit", "35"]) == 3
    assert "1 of 1 runs are not finished: call again to go on" in capsys.readouterr().err
    assert len(list((tmp_path / "unfinished").glob("*.safetensors"))) == 1


def test_places_that_cannot_be_written_to_are_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for flag, place in (("--out", "/proc/nothing"), ("--checkpoints", str(tmp_path / "file"))):
        assert main([*flags(tmp_path / "a"), flag, place]) == 2
        assert place in (told := capsys.readouterr().err) and len(told.splitlines()) == 1
    with alone_in(tmp_path / "a" / "unfinished", "--checkpoints"):
        assert main(flags(tmp_path / "a")) == 2
    assert "another call is at work there" in capsys.readouterr().err
    assert not (tmp_path / "a" / "paper-tiny.jsonl").exists()


@pytest.mark.parametrize(
    "flag",
    [
        ["--settings", "magic"],
        ["--dataset", "moons"],
        ["--cells", "N=1"],
        ["--methods", "guess"],
        ["--set", "epochs"],
        ["--set", "colour=3"],
        ["--set", "epochs=no"],
        ["--set", "epochs=1", "epochs=2"],
        ["--set", "backbone=resnet"],
        ["--held-out", "1"],
        ["--seeds", "0"],
        ["--settings", "partial_label", "--cells", "N_pos=250"],
        ["--dataset", "cifar100"],  # its official files are not there
    ],
)
def test_malformed_flags(flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "paper", "--out", str(tmp_path), "--images", str(tmp_path), *flag]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "paper.jsonl").exists()
