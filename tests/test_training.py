"""Training does what its options say: against hand-written loops, averages and schedules."""

import copy
import csv
import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from digit_bags import LABELS, ROWS, counting_loss, mlp, proportions, weights_of
from fastbus.errors import ImpossibleError
from fastbus.objective import WeakLoss
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import read_checkpoint
from fastbus.training.config import TrainConfig
from fastbus.training.ema import MovingAverage
from fastbus.training.fit import TrainResult, train
from fastbus.training.views import build_views

PLAIN: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}


class Watch(pl.Callback):
    """What every step left behind."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.weights: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        self.weights.append(weights_of(pl_module.network))


def run(network: nn.Module, loss: WeakLoss, data: BagSet, config: TrainConfig, **options: Any) -> TrainResult:
    given = {"accelerator": "cpu"} | options.pop("trainer_options", {})
    return train(network, loss, data, config, trainer_options=given, **options)


def watched(network: nn.Module, data: BagSet, config: TrainConfig, **options: Any) -> tuple[TrainResult, Watch]:
    watch = Watch()
    result = run(network, counting_loss(), data, config, trainer_options={"callbacks": [watch]}, **options)
    return result, watch


# -- the path of the weights ---------------------------------------------------------------------


def test_digits_are_learned_from_their_counts() -> None:
    result = run(mlp(hidden=(64,)), counting_loss(), proportions(200, 5), TrainConfig(epochs=20, max_bags=8))
    losses = [row["loss"] for row in result.history]
    assert losses[-1] < 0.3 * losses[0]
    with torch.no_grad():
        accuracy = (result.network(ROWS[1000:]).argmax(-1) == LABELS[1000:]).float().mean()
    assert accuracy > 0.8
    assert [row["epoch"] for row in result.history] == list(range(20)) and not result.stopped_early


def test_a_step_is_that_of_a_plain_loop() -> None:
    data, network = proportions(12), mlp()
    mine = copy.deepcopy(network)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        counting_loss()(mine(data.instances), data.weak, bag_sizes=data.sizes).backward()
        optimizer.step()
    run(network, counting_loss(), data, TrainConfig(epochs=3, learning_rate=0.1, **PLAIN))
    assert float((weights_of(network) - weights_of(mine)).abs().max()) < 1e-6


@pytest.mark.parametrize("bags", [12, 11], ids=["even", "with a shorter last batch"])
def test_accumulated_batches_equal_one_large_batch(bags: int) -> None:
    data = proportions(bags)
    one, many = mlp(), mlp()
    run(one, counting_loss(), data, TrainConfig(epochs=3, max_bags=bags, learning_rate=0.1, clip=0.5, **PLAIN))
    split = {"max_bags": 4, "accumulate": 3}
    run(many, counting_loss(), data, TrainConfig(epochs=3, learning_rate=0.1, clip=0.5, **split, **PLAIN))
    assert float((weights_of(one) - weights_of(many)).abs().max()) < 1e-6


def expected_rates(schedule: str, warmup: int, epochs: int, batches: int) -> list[float]:
    rates = []
    for step in range(epochs * batches):
        share = step / (epochs * batches)
        rate = {"cosine": (1 + math.cos(math.pi * share)) / 2, "linear": 1 - share, "constant": 1.0}[schedule]
        rates.append(0.05 * rate * min(1.0, (step + 1) / max(1, warmup)))
    return rates


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_schedules(schedule: Any, warmup: int) -> None:
    config = TrainConfig(epochs=3, max_bags=4, learning_rate=0.05, schedule=schedule, warmup=warmup)
    _, watch = watched(mlp(), proportions(12), config)
    assert watch.rates == pytest.approx(expected_rates(schedule, warmup, 3, 3), abs=1e-12)


def test_gradients_are_clipped_after_they_are_averaged() -> None:
    base = {"epochs": 2, "max_bags": 4, "learning_rate": 1.0} | PLAIN
    start = weights_of(mlp())
    _, free = watched(mlp(), proportions(12), TrainConfig(**base))
    _, held = watched(mlp(), proportions(12), TrainConfig(clip=0.05, **base))
    first = [float((watch.weights[0] - start).norm()) for watch in (free, held)]
    assert first[0] > 0.1 and first[1] == pytest.approx(0.05, rel=1e-4)
    moves = [float((b - a).norm()) for a, b in zip(held.weights, held.weights[1:], strict=False)]
    assert max(moves) < 0.0501


def test_the_average_is_the_hand_written_one() -> None:
    network, (decay, size) = mlp(), (0.8, 3)
    average = weights_of(network)
    config = TrainConfig(epochs=4, max_bags=4, accumulate=2, ema=decay, learning_rate=0.1, **PLAIN)
    result, watch = watched(network, proportions(4 * size), config)
    updates = 0
    for index, weights in enumerate(watch.weights):
        if index % size in (1, size - 1):  # steps: after two batches, and after the last of an epoch
            updates += 1
            kept = min(decay, (1 + updates) / (10 + updates))
            average = kept * average + (1 - kept) * weights
    assert float((weights_of(result.network) - average).abs().max()) < 1e-6
    assert not torch.equal(weights_of(result.network), weights_of(network))


def test_the_average_copies_buffers_and_stays_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    average = MovingAverage(network, 0.9)
    network(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)))
    average.train().update(network)
    assert torch.equal(average.network[1].running_mean, network[1].running_mean)  # type: ignore[index]
    assert not average.network.training and not any(p.requires_grad for p in average.parameters())


# -- views and teachers --------------------------------------------------------------------------


def recording_loss(**options: Any) -> tuple[WeakLoss, list[Tensor]]:
    """A loss that keeps the logits each posterior is inferred from, and works in full precision."""
    loss, seen = counting_loss(**options), []
    posterior = loss.posterior

    def keep(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
        assert not torch.is_autocast_enabled("cpu")
        seen.append(logits.detach().clone())
        return posterior(logits, *args, **kwargs)

    loss.posterior = keep  # type: ignore[method-assign]
    return loss, seen


def test_both_views_are_trained_on_the_posterior_of_the_weak_one() -> None:
    data, mine, loss = proportions(6), mlp(), counting_loss()
    both = mine(data.instances), mine(0.5 * data.instances)
    post = loss.posterior(both[0], data.weak, bag_sizes=data.sizes)
    first, second = (loss(x, data.weak, bag_sizes=data.sizes, posterior=post) for x in both)
    ((first + second) / 2).backward()
    torch.optim.SGD(mine.parameters(), lr=0.1).step()
    views = build_views("table", (64,))._replace(weak=lambda x, g: x, strong=lambda x, g: 0.5 * x)
    kept, seen = recording_loss()
    config = TrainConfig(epochs=1, views=True, learning_rate=0.1, **PLAIN)
    result = run(mlp(), kept, data, config, views=views)
    assert float((weights_of(result.network) - weights_of(mine)).abs().max()) < 1e-6
    assert len(seen) == 1


def test_views_are_drawn_anew_but_repeatably() -> None:
    views = build_views("table", (64,), jitter=0.1)
    config = TrainConfig(epochs=2, max_bags=4, views=True)
    runs = [watched(mlp(dropout=0.3), proportions(8), config, views=views)[0] for _ in range(2)]
    assert torch.equal(*(weights_of(run.network) for run in runs))
    other, _ = watched(mlp(dropout=0.3), proportions(8), TrainConfig(**(config.as_dict() | {"seed": 1})), views=views)
    assert not torch.equal(weights_of(other.network), weights_of(runs[0].network))


def test_held_out_bags_are_seen_plainly() -> None:
    views = build_views("table", (64,), mean=[0.5] * 64, std=[0.25] * 64, jitter=0.5)
    held_out = proportions(6, start=500)
    result = run(mlp(), counting_loss(), proportions(8), TrainConfig(epochs=1), held_out=held_out, views=views)
    with torch.no_grad():
        logits = result.network((held_out.instances - 0.5) / 0.25)
    post = counting_loss().posterior(logits, held_out.weak, bag_sizes=held_out.sizes)
    assert result.history[0]["held_out"] == pytest.approx(float(-post.log_likelihood.mean()), rel=1e-5)


def test_the_average_teaches() -> None:
    data, network = proportions(6), mlp()
    loss, seen = recording_loss()
    config = TrainConfig(epochs=3, ema=0.9, teacher="average", learning_rate=0.5, **PLAIN)
    _, watch = watched(network, data, config)
    run(mlp(), loss, data, config)
    averages = MovingAverage(mlp(), 0.9)
    student = mlp()
    for logits, weights in zip(seen, watch.weights, strict=True):
        with torch.no_grad():
            taught = averages.network(data.instances)
        # batches hold the bags in an order of their own
        assert torch.allclose(logits.sum(0), taught.sum(0), atol=1e-4)
        nn.utils.vector_to_parameters(weights.float(), student.parameters())
        averages.update(student)


# -- stopping ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped() -> TrainResult:
    config = TrainConfig(epochs=60, max_bags=4, learning_rate=0.05, patience=3, schedule="constant")
    return run(mlp(hidden=(64,)), counting_loss(), proportions(12), config, held_out=proportions(12, start=600))


def test_training_stops_when_held_out_bags_become_less_likely(stopped: TrainResult) -> None:
    values = [row["held_out"] for row in stopped.history]
    best = int(np.argmin(values))
    assert stopped.stopped_early and stopped.epochs == len(values) == best + 1 + 3 < 60


def test_the_best_weights_are_restored(stopped: TrainResult) -> None:
    held_out = proportions(12, start=600)
    with torch.no_grad():
        post = counting_loss().posterior(stopped.network(held_out.instances), held_out.weak, bag_sizes=held_out.sizes)
    best = min(row["held_out"] for row in stopped.history)
    assert float(-post.log_likelihood.mean()) == pytest.approx(best, rel=1e-6)
    assert best < stopped.history[-1]["held_out"]


def test_held_out_bags_are_weighted_and_cut_into_batches() -> None:
    weights = torch.tensor([1.0, 0.0, 3.0, 1.0, 2.0, 1.0, 1.0])
    held_out = proportions(7, start=500, bag_weights=weights)
    config = TrainConfig(epochs=1, max_bags=3, max_instances=10)
    result = run(mlp(), counting_loss(), proportions(8), config, held_out=held_out)
    with torch.no_grad():
        post = counting_loss().posterior(result.network(held_out.instances), held_out.weak, bag_sizes=held_out.sizes)
    wanted = float(-(post.log_likelihood * weights).sum() / weights.sum())
    assert result.history[0]["held_out"] == pytest.approx(wanted, rel=1e-5)


# -- what surrounds the loop ---------------------------------------------------------------------


def test_low_precision_trains_and_infers_in_full_precision() -> None:
    loss, seen = recording_loss()
    result = run(mlp(), loss, proportions(12), TrainConfig(epochs=4, precision="bf16", learning_rate=0.02, views=False))
    assert {logits.dtype for logits in seen} == {torch.float32}
    assert {p.dtype for p in result.network.parameters()} == {torch.float32}
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert all(torch.equal(logits, logits.bfloat16().float()) for logits in seen)


def test_loggers_are_told(tmp_path: Path) -> None:
    from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger

    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="board")]
    options = {"logger": loggers, "log_every_n_steps": 1}
    held_out = proportions(4, start=600)
    config = TrainConfig(epochs=3, max_bags=4)
    result = run(mlp(), counting_loss(), proportions(8), config, held_out=held_out, trainer_options=options)
    with open(next((tmp_path / "csv").rglob("metrics.csv"))) as file:
        rows = list(csv.DictReader(file))
    for name in ("loss", "held_out"):
        written = [float(row[name]) for row in rows]
        assert written == pytest.approx([row[name] for row in result.history], rel=1e-5)
    assert list((tmp_path / "board").rglob("events.out.tfevents.*"))


def test_the_progress_bar_is_an_option(capfd: pytest.CaptureFixture[str]) -> None:
    run(mlp(), counting_loss(), proportions(4), TrainConfig(epochs=1))
    quiet = capfd.readouterr()
    assert quiet.out == "" and quiet.err == ""
    run(mlp(), counting_loss(), proportions(4), TrainConfig(epochs=1), progress=True)
    shown = capfd.readouterr()
    assert "Epoch 0" in shown.out + shown.err


def test_random_numbers_of_the_caller_are_not_touched() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    run(mlp(dropout=0.5), counting_loss(), proportions(8), TrainConfig(epochs=2))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]


def test_lightning_is_imported_late() -> None:
    code = (
        "import sys, fastbus.training.fit, fastbus.training.checkpoint, fastbus.bench.kill_runs\n"
        "print([name for name in ('pytorch_lightning', 'lightning_fabric', 'torchmetrics') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_errors_of_the_data_pass_through() -> None:
    data = proportions(4)
    wrong = BagSet(data.supervision, data.instances, data.sizes, data.weak + 1)
    with pytest.raises(ImpossibleError):
        run(mlp(), counting_loss(), wrong, TrainConfig(epochs=1))


INTERRUPTED = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from digit_bags import counting_loss, mlp, proportions
from fastbus.training.config import TrainConfig
from fastbus.training.fit import train
try:
    train(mlp(), counting_loss(), proportions(40), TrainConfig(epochs=100000, max_bags=4), folder={folder!r},
          trainer_options={{"accelerator": "cpu"}})
except KeyboardInterrupt:
    import signal
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    sys.exit(130)
"""


def test_ctrl_c_keeps_the_checkpoint(tmp_path: Path) -> None:
    code = INTERRUPTED.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not (tmp_path / "metrics.jsonl").is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    kept = read_checkpoint(tmp_path / "checkpoint.safetensors")
    assert len(kept["fastbus"]["history"]) >= 1 and not kept["fastbus"]["finished"]
    assert not list(tmp_path.glob(".*.part"))
