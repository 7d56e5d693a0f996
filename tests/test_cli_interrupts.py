"""Runs that are killed or interrupted go on to the same end; inference streams in flat memory. Real processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command_tables import digest, iris_files
from fastbus import cli
from fastbus.bench.stream_memory import measure
from fastbus.training.fit import train

EPOCHS = 24


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fastbus.cli", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def fit_words(folder: Path, out: Path) -> list[object]:
    words: list[object] = ["fit", folder / "iris.csv", "--bags", folder / "bags.csv", "--supervision"]
    words += ["label_proportion", "--epochs", EPOCHS, "--patience", EPOCHS, "--ema", 0.9, "--threads", 1]
    return [*words, "--seed", 5, "--out", out]


def epochs_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 0


def wait_for_epochs(run: Path, process: subprocess.Popen[str], epochs: int) -> None:
    deadline = time.monotonic() + 120
    while epochs_of(run) < epochs and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables, and a run that was left alone, in a process of its own."""
    folder = tmp_path_factory.mktemp("alone")
    iris_files(folder)
    process = start(*fit_words(folder, folder / "run"), "--json")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert json.loads(out)["epochs"] == EPOCHS, "stdout is the summary and nothing else"
    return folder


def resumed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        assert cli.main(["resume", str(run), "--json"]) == 0, capsys.readouterr().err
    finally:
        torch.set_num_threads(before)


def assert_same(run: Path, other: Path) -> None:
    assert digest(run) == digest(other)
    assert (run / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    assert (run / "summary.json").read_bytes() == (other / "summary.json").read_bytes()
    assert not list(run.glob(".*.part"))


def test_resume_after_kill_9_ends_the_same(
    alone: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alone / "killed"
    process = start(*fit_words(alone, run))
    wait_for_epochs(run, process, 4)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert 4 <= epochs_of(run) < EPOCHS and not (run / "summary.json").exists()
    assert cli.main([*map(str, fit_words(alone, run))]) == 2
    assert f"fastbus resume {run}" in capsys.readouterr().err, "an unfinished run is not overwritten"
    went_on: list[bool] = []

    def watched(*arguments: Any, resume: bool, **options: Any) -> Any:
        went_on.append(resume)
        return train(*arguments, resume=resume, **options)

    monkeypatch.setattr("fastbus.learner.train", watched)
    resumed(run, capsys)
    assert went_on == [True], "the checkpoint was used, not training begun anew"
    assert_same(run, alone / "run")
    assert cli.main(["resume", str(run)]) == 2
    assert "is finished" in capsys.readouterr().err


def test_interrupt_gives_130_and_says_how_to_go_on(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = alone / "interrupted"
    process = start(*fit_words(alone, run))
    wait_for_epochs(run, process, 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == "" and err == f"fastbus: interrupted; go on with: fastbus resume {run}\n"
    assert (run / "checkpoint.safetensors").is_file() and not (run / "model.safetensors").exists()
    # moved as a whole, the run still finds its data
    shutil.copytree(alone, moved := alone.parent / "moved")
    resumed(moved / "interrupted", capsys)
    assert_same(moved / "interrupted", alone / "run")


def test_resume_before_the_first_checkpoint(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = alone / "early"
    shutil.copytree(alone / "run", run)
    for name in ("checkpoint.safetensors", "metrics.jsonl", "model.safetensors", "model.json", "summary.json"):
        (run / name).unlink()
    (run / ".checkpoint.safetensors.1.part").write_bytes(b"half")
    resumed(run, capsys)
    assert_same(run, alone / "run")


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_resume_refuses_other_data(
    alone: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(alone, tmp_path / "all")
    run, table = tmp_path / "all" / "run", tmp_path / "all" / "iris.csv"
    (run / "summary.json").unlink()
    table.write_text(table.read_text().replace("5.1", "5.2", 1)) if change == "changed" else table.unlink()
    assert cli.main(["resume", str(run)]) == 2
    err = capsys.readouterr().err
    assert "iris.csv" in err and ("has changed" if change == "changed" else "is not there") in err


def test_infer_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    few, many = (measure(tmp_path, bags, 4) for bags in (10_000, 100_000))
    assert many["instances"] == 400_000
    assert many["peak_memory_mib"] < few["peak_memory_mib"] + 64


def test_interrupted_infer_leaves_nothing_half_written(tmp_path: Path) -> None:
    from fastbus.bench.stream_memory import write_bags

    predictions, bags = write_bags(tmp_path, 100_000, 4)
    out = tmp_path / "q.parquet"
    process = start("infer", predictions, "--bags", bags, "--supervision", "label_proportion", "--out", out)
    while not list(tmp_path.glob(".q.parquet.*.part")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err == "fastbus: interrupted\n"
    assert not list(tmp_path.glob("*q.parquet*")) and not list(tmp_path.glob(".q*"))
