"""kill -9 of real training runs: every one resumes, and ends bit-identical to the run that was never killed.

    python -m fastbus.bench.kill_runs [--kills 50] [--seed 0] [--json]

Half of the kills fall at random moments, half at named moments of a checkpoint's write. After each the
checkpoint must be readable, or not be there yet; then the run is resumed until it ends, and its weights and
metrics are compared. The run that is left alone has an interpreter of its own; those that are killed and those
that resume are forked from a process that has imported everything and done nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

MOMENTS = (
    "within the temporary file",
    "after the temporary file",
    "before the rename",
    "after the rename",
    "before the temporary file",
)
EPOCHS = 10
LANES = 2  # kills at a time
DIGEST = "digest.sha256"
LOG = "moments.log"
ERRORS = "errors.log"


class Kill(NamedTuple):
    """What one kill did."""

    planned: str  # a moment, or "after n s"
    fell: str  # the last moment the log has
    signalled: bool
    readable: bool  # the checkpoint afterwards, or none yet
    epoch: int  # epochs it held, 0 for none
    identical: bool  # weights and metrics at the end of the resumed run


# -- the process that is killed ------------------------------------------------------------------


def work(folder: Path, kill_at: str = "", kill_write: int = 0) -> None:
    """Train on digits from label proportions, resuming where a checkpoint is; die at the named moment."""
    import torch
    from sklearn.datasets import load_digits

    from fastbus.models.build import build_backbone
    from fastbus.objective import WeakLoss
    from fastbus.supervision import LabelProportion
    from fastbus.training.bag_set import BagSet
    from fastbus.training.config import TrainConfig
    from fastbus.training.fit import CHECKPOINT, METRICS, train

    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    rows = torch.from_numpy(X[:240] / 16).float()
    counts = torch.nn.functional.one_hot(torch.from_numpy(y[:240]).reshape(60, 4).long(), 10).sum(1)
    data = BagSet(LabelProportion(), rows, torch.full((60,), 4), counts)
    bags = torch.arange(60)
    config = TrainConfig(epochs=EPOCHS, max_bags=8, ema=0.9, patience=EPOCHS, held_out=0.2, accumulate=2, seed=3)
    writes = 0

    def moment(name: str) -> None:
        nonlocal writes
        writes += name == "before the temporary file"
        # what is handed to the kernel survives the process
        with open(folder / LOG, "a") as log:
            log.write(f"{name}, write {writes}\n")
        if name == kill_at and writes == kill_write:
            os.kill(os.getpid(), signal.SIGKILL)

    network = build_backbone("mlp", (64,), 10, seed=0, hidden=(32,), dropout=0.1)
    result = train(
        network,
        WeakLoss("label_proportion"),
        data.subset(bags[:48]),
        config,
        held_out=data.subset(bags[48:]),
        folder=folder,
        resume=(folder / CHECKPOINT).is_file(),
        trainer_options={"accelerator": "cpu"},
        moment=moment,
    )
    digest = hashlib.sha256((folder / METRICS).read_bytes())
    for name, tensor in result.network.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    (folder / DIGEST).write_text(digest.hexdigest())


def _fork(task: Callable[[], None], errors: Path) -> int:
    """Run a task in a process of its own and return its id; nothing of the parent is cleaned up by it."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        with open(errors, "w") as file:
            os.dup2(file.fileno(), 2)
        task()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _must_succeed(code: int, errors: Path) -> None:
    if code != 0:
        raise RuntimeError(f"a run ended with {code}: {errors.read_text()[-2000:]}")


# -- killing -------------------------------------------------------------------------------------


def reference(folder: Path) -> tuple[str, float]:
    """The digest of a run that is left alone, and the seconds from its first write to its end."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "fastbus.bench.kill_runs", "--work", str(folder)]
    with open(folder / ERRORS, "w") as errors:
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=errors)
        while not (folder / LOG).is_file() and process.poll() is None:
            time.sleep(0.01)
        start = time.perf_counter()
        _must_succeed(process.wait(timeout=300), folder / ERRORS)
    return (folder / DIGEST).read_text(), time.perf_counter() - start


def kill_named(folder: Path, moment: str, write: int, truth: str) -> Kill:
    """A run that dies at a moment of one of its writes."""
    folder.mkdir(parents=True)
    code = _wait(_fork(lambda: work(folder, moment, write), folder / ERRORS))
    return _after(folder, f"{moment}, write {write}", code, truth)


def kill_after(folder: Path, seconds: float, truth: str) -> Kill:
    """A run that is killed from outside, some seconds after its first write began."""
    folder.mkdir(parents=True)
    process = _fork(lambda: work(folder), folder / ERRORS)
    while not (folder / LOG).is_file() and os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.002)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    code = _wait(process)
    if code == 0:  # it was faster than the reference
        shutil.rmtree(folder)
        return kill_after(folder, seconds / 2, truth)
    return _after(folder, f"after {seconds:.3f} s", code, truth)


def _after(folder: Path, planned: str, code: int, truth: str) -> Kill:
    from fastbus.training.checkpoint import CheckpointError, read_checkpoint
    from fastbus.training.fit import CHECKPOINT

    if code != -signal.SIGKILL:
        raise RuntimeError(f"{planned}: not killed but ended with {code}: {(folder / ERRORS).read_text()[-2000:]}")
    lines = (folder / LOG).read_text().splitlines()
    readable, epoch = True, 0
    if (folder / CHECKPOINT).is_file():
        try:
            epoch = len(read_checkpoint(folder / CHECKPOINT)["fastbus"]["history"])
        except CheckpointError:
            readable = False
    _must_succeed(_wait(_fork(lambda: work(folder), folder / ERRORS)), folder / ERRORS)
    left = list(folder.glob(".*.part"))
    identical = (folder / DIGEST).read_text() == truth and not left
    return Kill(planned, lines[-1] if lines else "no write yet", True, readable, epoch, identical)


def kill_many(kills: int, seed: int, root: Path) -> list[Kill]:
    """Half named, half random; moments and epochs take turns. `LANES` are under way at a time."""
    import pytorch_lightning
    import sklearn.datasets
    import torch

    import fastbus.training.module

    del pytorch_lightning, sklearn, fastbus  # imported for the processes to come
    torch.set_num_threads(1)
    truth, seconds = reference(root / "reference")
    shares = np.random.default_rng(seed).uniform(0.0, 0.9, kills)

    def one(index: int) -> Kill:
        folder, turn = root / f"run-{index}", index // 2
        if index % 2 == 0:
            return kill_named(folder, MOMENTS[turn % len(MOMENTS)], 1 + turn % (EPOCHS - 1), truth)
        return kill_after(folder, float(shares[index]) * seconds, truth)

    def lane(number: int) -> None:
        rows = {index: one(index) for index in range(number, kills, LANES)}
        (root / f"lane-{number}.json").write_text(json.dumps(rows))

    # processes, not threads, wait for them: a process with threads should not fork
    lanes = {number: _fork(partial(lane, number), root / f"lane-{number}.log") for number in range(LANES)}
    for number, process in lanes.items():
        _must_succeed(_wait(process), root / f"lane-{number}.log")
    rows: dict[int, Kill] = {}
    for number in lanes:
        kept = json.loads((root / f"lane-{number}.json").read_text())
        rows |= {int(index): Kill(*row) for index, row in kept.items()}
    return [rows[index] for index in sorted(rows)]


def _print(rows: list[Kill]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="kill -9 and resume")
    for heading in ("killed", "last moment in the log", "epochs kept", "readable", "bit-identical"):
        table.add_column(heading)
    for row in rows:
        cells = (str(row.epoch), "yes" if row.readable else "NO", "yes" if row.identical else "NO")
        table.add_row(row.planned, row.fell, *cells)
    console = Console(width=120)
    console.print(table)
    lost = sum(not row.readable for row in rows)
    same = sum(row.identical for row in rows)
    console.print(f"{len(rows)} kills: {lost} unreadable checkpoints, {same} of {len(rows)} runs bit-identical")


def main(argv: list[str] | None = None) -> int:
    """Print a row a kill; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m fastbus.bench.kill_runs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work is not None:
        work(options.work)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = kill_many(options.kills, options.seed, Path(folder))
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        _print(rows)
    return 0 if all(row.readable and row.identical for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
