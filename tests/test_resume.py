"""A run that was stopped, at any moment and by any means, ends as the one that was not, bit for bit."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from digit_bags import counting_loss, half_labelled, mlp, positive_unlabeled, proportions, weights_of
from fastbus.bench.kill_runs import MOMENTS
from fastbus.errors import InputError
from fastbus.objective import WeakLoss
from fastbus.supervision import PositiveUnlabeled
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from fastbus.training.config import TrainConfig
from fastbus.training.fit import CHECKPOINT, METRICS, TrainResult, train
from fastbus.training.views import build_views


class PowerCutError(Exception):
    """It went off."""


def off_at(write: int, moment: str = "after the rename") -> Callable[[str], None]:
    """Stop at a moment of that write, counted from 1."""
    writes = 0

    def listen(name: str) -> None:
        nonlocal writes
        writes += name == "before the temporary file"
        if writes == write and name == moment:
            raise PowerCutError

    return listen


class Run:
    """All that a run is made of; every call starts from new networks and losses."""

    def __init__(self, config: dict[str, Any], **options: Any) -> None:
        self.config = TrainConfig(**{"max_bags": 4, "learning_rate": 0.02} | config)
        self.data: BagSet = options.pop("data", proportions(12))
        self.network: Callable[[], nn.Module] = options.pop("network", mlp)
        self.loss: Callable[[], WeakLoss] = options.pop("loss", counting_loss)
        self.options = options

    def __call__(self, folder: Path, **more: Any) -> TrainResult:
        given: dict[str, Any] = {"trainer_options": {"accelerator": "cpu"}} | self.options | more
        return train(self.network(), self.loss(), self.data, self.config, folder=folder, **given)


def batch_norm() -> nn.Module:
    return mlp(norm="batch", dropout=0.2)


RUNS = {
    "plain": Run({"epochs": 4}),
    "sgd with momentum": Run({"epochs": 4, "optimizer": "sgd", "warmup": 7}),
    "dropout and batch norm": Run({"epochs": 4}, network=batch_norm),
    "average and accumulation": Run({"epochs": 4, "ema": 0.9, "accumulate": 2, "teacher": "average"}),
    "views": Run(
        {"epochs": 4, "views": True, "ema": 0.5},
        network=lambda: mlp(dropout=0.3),
        views=build_views("table", (64,), jitter=0.1),
    ),
    "held-out bags": Run({"epochs": 4}, held_out=proportions(6, start=600)),
    "early stopping": Run(
        {"epochs": 40, "learning_rate": 0.03, "patience": 3, "schedule": "constant", "ema": 0.3},
        held_out=proportions(6, start=600),
    ),
    "prediction queue": Run(
        {"epochs": 4, "max_bags": 50},
        data=positive_unlabeled(),
        network=lambda: mlp(2),
        loss=lambda: WeakLoss(PositiveUnlabeled(prior=0.5), queue=64),
    ),
    "consistency": Run(
        {"epochs": 4, "max_bags": 20, "consistency": 1.0, "confidence": 0.2, "alignment": 0.9},
        data=half_labelled(),
        network=lambda: mlp(dropout=0.3),
        loss=lambda: WeakLoss("semi_supervised"),
        views=build_views("table", (64,), jitter=0.1),
    ),
    "low precision": Run({"epochs": 4, "precision": "bf16", "clip": 0.1}),
}


def same_end(left: TrainResult, right: TrainResult, folders: tuple[Path, Path]) -> None:
    assert torch.equal(weights_of(left.network), weights_of(right.network))
    assert left.history == right.history and left.epochs == right.epochs
    assert left.stopped_early == right.stopped_early
    assert (folders[0] / METRICS).read_bytes() == (folders[1] / METRICS).read_bytes()
    states = [read_checkpoint(folder / CHECKPOINT) for folder in folders]
    for name, tensor in states[0]["state_dict"].items():
        assert torch.equal(tensor, states[1]["state_dict"][name]), name


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_resumed_run_ends_as_an_uninterrupted_one(run: Run, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    wanted = run(whole)
    with pytest.raises(PowerCutError):
        run(parts, moment=off_at(2))
    with pytest.raises(PowerCutError):  # a second time, in the first epoch after it resumed
        run(parts, resume=True, moment=off_at(1, "within the temporary file"))
    assert len(read_checkpoint(parts / CHECKPOINT)["fastbus"]["history"]) == 2
    (parts / f".{CHECKPOINT}.1.part").write_bytes(b"of a killed process")
    same_end(run(parts, resume=True), wanted, (parts, whole))
    rows = [json.loads(line) for line in (parts / METRICS).read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(wanted.epochs))
    assert sorted(file.name for file in parts.iterdir()) == [CHECKPOINT, METRICS]


def test_the_early_stopping_of_these_tests_is_early() -> None:
    run = RUNS["early stopping"]
    result = train(run.network(), run.loss(), run.data, run.config, **run.options)
    assert 4 < result.epochs < 40 and result.stopped_early


def test_the_queue_is_in_the_checkpoint(tmp_path: Path) -> None:
    RUNS["prediction queue"](tmp_path)
    state = read_checkpoint(tmp_path / CHECKPOINT)["state_dict"]
    assert int(state["loss.queue.filled"][0]) == 64
    assert bool((state["loss.queue.log_odds"] != 0).all())


def test_the_running_shares_are_in_the_checkpoint(tmp_path: Path) -> None:
    RUNS["consistency"](tmp_path)
    state = read_checkpoint(tmp_path / CHECKPOINT)["state_dict"]
    assert float(state["consistency.known"].sum()) == pytest.approx(1) and len(state["consistency.predicted"]) == 10
    assert float(state["consistency.informed"]) == 4 * 40 and float(state["consistency.uninformed"]) == 4 * 80


def listing(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.mark.parametrize("name", ["plain", "early stopping", "prediction queue"])
def test_resuming_a_finished_run_does_nothing(name: str, tmp_path: Path) -> None:
    run = RUNS[name]
    wanted = run(tmp_path)
    before = listing(tmp_path)

    def never(moment: str) -> None:
        raise AssertionError(moment)

    again = run(tmp_path, resume=True, moment=never)
    assert torch.equal(weights_of(again.network), weights_of(wanted.network))
    assert again.history == wanted.history and again.stopped_early == wanted.stopped_early
    assert listing(tmp_path)[CHECKPOINT] == before[CHECKPOINT]
    assert listing(tmp_path)[METRICS][0] == before[METRICS][0]


def test_metrics_lost_at_the_very_end_are_written_again(tmp_path: Path) -> None:
    run = RUNS["plain"]
    wanted = run(tmp_path / "whole")
    with pytest.raises(PowerCutError):
        run(tmp_path / "parts", moment=off_at(4))  # the last checkpoint is there, its metrics are not
    assert len((tmp_path / "parts" / METRICS).read_text().splitlines()) == 3
    same_end(run(tmp_path / "parts", resume=True), wanted, (tmp_path / "parts", tmp_path / "whole"))


def changed(run: Run, **changes: Any) -> Run:
    options = {"data": run.data, "network": run.network, "loss": run.loss} | run.options
    config = changes.pop("config", {})
    return Run(run.config.as_dict() | config, **options | changes)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("half")
    with pytest.raises(PowerCutError):
        RUNS["held-out bags"](folder, moment=off_at(2))
    return folder


def other_rows() -> BagSet:
    return proportions(12, start=700)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "epochs": ({"config": {"epochs": 5}}, r"config\.epochs = 5; expected 4, as the checkpoint has it"),
    "seed": ({"config": {"seed": 1}}, r"config\.seed = 1; expected 0"),
    "learning rate": ({"config": {"learning_rate": 0.5}}, r"config\.learning_rate = 0\.5"),
    "fewer bags": ({"data": proportions(11)}, r"training set = \{'bags': 11.* expected \{'bags': 12"),
    "other bags": ({"data": other_rows()}, r"training set = "),
    "no held-out bags": ({"held_out": None}, r"held-out set = None"),
    "another network": ({"network": lambda: mlp(hidden=(17,))}, "network"),
    "another loss": ({"loss": lambda: counting_loss(likelihood=0.5)}, "loss = "),
    "class weights": ({"loss": lambda: counting_loss(class_weights=[2.0] + 9 * [1.0])}, "class weights"),
    "impossible bags": ({"loss": lambda: counting_loss(on_impossible="ignore")}, "on_impossible ignore"),
}


@pytest.mark.parametrize(("change", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_another_run_is_refused(change: dict[str, Any], message: str, half: Path) -> None:
    before = listing(half)
    with pytest.raises(InputError, match=message) as caught:
        changed(RUNS["held-out bags"], **change)(half, resume=True)
    assert "Resume with the same data and options" in str(caught.value) and "\n" not in str(caught.value)
    assert listing(half) == before


def test_resuming_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"resume without a checkpoint in .* Start a new run"):
        RUNS["plain"](tmp_path, resume=True)
    write_checkpoint({"weights": 1}, tmp_path / CHECKPOINT)
    with pytest.raises(InputError, match="no checkpoint of a training run"):
        RUNS["plain"](tmp_path, resume=True)
    (tmp_path / CHECKPOINT).write_bytes(b"half a checkpoint")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        RUNS["plain"](tmp_path, resume=True)


@pytest.mark.slow
def test_killed_processes_resume_bit_identical() -> None:
    command = [sys.executable, "-m", "fastbus.bench.kill_runs", "--kills", "8", "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    rows = json.loads(done.stdout)
    assert len(rows) == 8
    assert all(row["signalled"] and row["readable"] and row["identical"] for row in rows)
    named, random = rows[::2], rows[1::2]
    assert all(row["fell"] == row["planned"] for row in named)  # the log proves where each fell
    assert {row["fell"].split(",")[0] for row in named} == set(MOMENTS[:4])
    assert [row["epoch"] for row in named] == [0, 1, 2, 4]
    assert all(row["planned"].endswith(" s") for row in random)
    assert all(row["fell"] != "no write yet" for row in random)
