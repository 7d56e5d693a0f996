"""Two processes give the gradient of one, whatever bags fall to each, and neither waits for ever."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from digit_bags import counting_loss, mlp, positive_unlabeled, proportions, uneven, weights_of
from fastbus.objective import WeakLoss
from fastbus.supervision import PositiveUnlabeled
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.config import TrainConfig
from fastbus.training.fit import CHECKPOINT, METRICS, TrainResult, train

SIZES = [2, 300, 2, 5, 300, 3, 2, 4, 7, 40, 2]
SGD: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 3, "max_bags": 2}
# the first has single bags of 300, for which one process has nothing to do
CONFIGS: dict[str, dict[str, Any]] = {
    "uneven bags": SGD,
    "accumulated, clipped and averaged": SGD | {"accumulate": 2, "clip": 0.05, "ema": 0.9, "max_bags": 3},
    "weights": SGD,
    "early stopping": SGD | {"epochs": 30, "patience": 2, "learning_rate": 1.0, "schedule": "constant"},
    "positive unlabelled": SGD | {"max_bags": 40},
}
IN_PARTS = "positive unlabelled, resumed after two epochs"
EXACT = [name for name in CONFIGS if name != "positive unlabelled"]


def run(name: str, folder: Path, resume: bool = False, **options: Any) -> tuple[TrainResult, WeakLoss]:
    """One case and its loss, with as many processes as the options say."""
    config = TrainConfig(**CONFIGS[name])
    if name == "positive unlabelled":
        loss, outputs = WeakLoss(PositiveUnlabeled(prior=0.5), queue=64), 2
        data = positive_unlabeled()
    else:
        loss, outputs, data = counting_loss(), 10, uneven(SIZES)
    if name == "weights":
        bags, rows = torch.linspace(0, 2, len(data.sizes)), torch.linspace(1, 0, len(data.instances))
        data = BagSet(data.supervision, data.instances, data.sizes, data.weak, bags, rows)
    held_out = proportions(7, start=900) if name == "early stopping" else None
    given = {"accelerator": "cpu"} | options
    result = train(
        mlp(outputs), loss, data, config, held_out=held_out, folder=folder, resume=resume, trainer_options=given
    )
    return result, loss


def main(root: Path) -> None:
    """Every case on two processes; Lightning starts this script once more for the second."""
    torch.set_num_threads(1)
    two: dict[str, Any] = {"strategy": "ddp", "devices": 2}
    run("positive unlabelled", root / IN_PARTS, max_epochs=2, **two)
    for name in (*CONFIGS, IN_PARTS):
        case = "positive unlabelled" if name == IN_PARTS else name
        result, loss = run(case, root / name, resume=name == IN_PARTS, **two)
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        end = {"weights": weights_of(result.network), "history": result.history, "stopped": result.stopped_early}
        end["queue"] = {} if loss.queue is None else loss.queue.state_dict()
        write_checkpoint(end, root / f"{name} {rank}")


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both processes had at the end of each case."""
    root = tmp_path_factory.mktemp("ddp")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "ignore", __file__, str(root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return root


def end_of(root: Path, name: str, rank: int) -> dict[str, Any]:
    return read_checkpoint(root / f"{name} {rank}")


def far(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_two_processes_end_with_the_weights_of_one(name: str, ends: Path, tmp_path: Path) -> None:
    alone, _ = run(name, tmp_path)
    first, second = (end_of(ends, name, rank) for rank in range(2))
    assert torch.equal(first["weights"], second["weights"])
    assert far(first["weights"], weights_of(alone.network)) < 1e-5
    assert far(first["weights"], weights_of(mlp())) > 1e-2  # they did move
    assert len(first["history"]) == len(alone.history) and first["stopped"] == alone.stopped_early
    for mine, theirs in zip(alone.history, first["history"], strict=True):
        assert theirs == pytest.approx(mine, rel=1e-5)
    assert first["history"] == second["history"]


@pytest.mark.slow
def test_sets_of_known_prior_train_on_two_processes(ends: Path) -> None:
    first, second = (end_of(ends, "positive unlabelled", rank) for rank in range(2))
    assert torch.equal(first["weights"], second["weights"])
    assert bool(first["weights"].isfinite().all()) and far(first["weights"], weights_of(mlp(2))) > 1e-3


@pytest.mark.slow
def test_each_process_keeps_the_predictions_of_its_own_rows(ends: Path) -> None:
    """Torch sends the buffers of the first process to all others before every step, unless it is told not to."""
    first, second = (end_of(ends, "positive unlabelled", rank)["queue"] for rank in range(2))
    assert first["filled"].tolist() == second["filled"].tolist() == [64]
    assert not bool((first["log_odds"] == second["log_odds"]).any()), "predictions of rows that the other one has seen"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_of_two_processes_resumes_exactly(rank: int, ends: Path) -> None:
    whole, parts = end_of(ends, "positive unlabelled", rank), end_of(ends, IN_PARTS, rank)
    assert len(whole["history"]) == 3 and parts["history"] == whole["history"]
    assert torch.equal(parts["weights"], whole["weights"])
    assert all(torch.equal(parts["queue"][name], x) for name, x in whole["queue"].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_one_process_writes_the_files(name: str, ends: Path) -> None:
    assert sorted(file.name for file in (ends / name).iterdir()) == [CHECKPOINT, METRICS]
    rows = [json.loads(line) for line in (ends / name / METRICS).read_text().splitlines()]
    assert rows == end_of(ends, name, 0)["history"]
    assert read_checkpoint(ends / name / CHECKPOINT)["fastbus"]["history"] == rows


if __name__ == "__main__":
    main(Path(sys.argv[1]))
