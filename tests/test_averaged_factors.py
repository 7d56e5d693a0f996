"""Moving averages: what the loss has learned is averaged with the network that it belongs to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from digit_bags import LABELS, ROWS, mlp, weights_of
from fastbus import ClassLoop, InputError, WeakClassifier, infer
from fastbus.objective import WeakLoss
from fastbus.supervision import MultiInstance
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.config import TrainConfig
from fastbus.training.fit import CHECKPOINT, TrainResult, train

DECAY = 0.9


def bags_of_parts(bags: int = 40, start: int = 0) -> BagSet:
    """Bags of five digits: is any even, at least 5, prime? A quarter of the answers is missing."""
    digits = LABELS[start : start + 5 * bags]
    truth = torch.stack([digits % 2 == 0, digits >= 5, torch.isin(digits, torch.tensor([2, 3, 5, 7]))], 1).long()
    weak = truth.reshape(bags, 5, 3).amax(1)
    missing = torch.rand(weak.shape, generator=torch.Generator().manual_seed(0)) < 0.25
    rows = ROWS[start : start + 5 * bags]
    return BagSet(MultiInstance(), rows, torch.full((bags,), 5), weak.masked_fill(missing, -1))


class Watch(pl.Callback):
    """The factors and the weights after every step."""

    def __init__(self) -> None:
        self.factors: list[Tensor] = []
        self.weights: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.factors.append(pl_module.loss.class_loop.log_pair.detach().clone())
        self.weights.append(weights_of(pl_module.network))


def run(
    folder: Path | None = None, ema: float = DECAY, resume: bool = False, **trainer: Any
) -> tuple[TrainResult, WeakLoss]:
    config = TrainConfig(epochs=4, max_bags=10, learning_rate=0.05, schedule="constant", ema=ema)
    loss = WeakLoss("multi_instance", head="sigmoid", likelihood=1.0, class_loop=ClassLoop.ones(3))
    given = {"accelerator": "cpu"} | trainer
    held_out = bags_of_parts(20, start=400)
    data = bags_of_parts()
    return train(
        mlp(3), loss, data, config, held_out=held_out, folder=folder, resume=resume, trainer_options=given
    ), loss


def averaged(steps: list[Tensor], start: Tensor) -> Tensor:
    """By the definition: decay * average + (1 - decay) * weights, with a decay that warms up."""
    mean = start.double()
    for number, x in enumerate(steps, 1):
        decay = min(DECAY, (1 + number) / (10 + number))
        mean = decay * mean + (1 - decay) * x.double()
    return mean


def test_factors_are_averaged_step_by_step_with_the_network() -> None:
    watch = Watch()
    result, loss = run(callbacks=[watch])
    assert loss.class_loop is not None and len(watch.factors) == 16
    kept = loss.class_loop.log_pair.detach().double()
    torch.testing.assert_close(kept, averaged(watch.factors, torch.zeros(3, 2, 2)), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        weights_of(result.network), averaged(watch.weights, weights_of(mlp(3))), rtol=0, atol=1e-5
    )
    assert float((kept - watch.factors[-1]).abs().max()) > 1e-2, "the last factors are as good as their average"
    _, own = run(ema=0.0, callbacks=[last := Watch()])
    assert own.class_loop is not None and torch.equal(own.class_loop.log_pair.detach(), last.factors[-1])


def test_held_out_bags_are_watched_with_what_is_returned() -> None:
    result, loss = run()
    batch = bags_of_parts(20, start=400).batch(torch.arange(20))
    with torch.no_grad():
        logits = result.network(batch.instances)
        post = infer(
            "multi_instance", logits, batch.weak, bag_sizes=batch.sizes, head="sigmoid", class_loop=loss.class_loop
        )
    assert result.history[-1]["held_out"] == pytest.approx(-float(post.log_likelihood.mean()), rel=1e-6)


def test_a_run_resumes_exactly_and_an_ended_one_is_only_read(tmp_path: Path) -> None:
    whole, expected = run(tmp_path / "whole")
    run(tmp_path / "cut", max_epochs=2)
    for _ in range(2):  # goes on, then reads
        resumed, got = run(tmp_path / "cut", resume=True)
        assert got.class_loop is not None and expected.class_loop is not None
        assert resumed.history == whole.history
        assert torch.equal(weights_of(resumed.network), weights_of(whole.network))
        assert torch.equal(got.class_loop.log_pair, expected.class_loop.log_pair)


def test_a_checkpoint_without_averaged_factors_is_refused_in_one_line(tmp_path: Path) -> None:
    run(tmp_path, max_epochs=2)
    state = read_checkpoint(tmp_path / CHECKPOINT)
    assert state["fastbus"]["fingerprint"].pop("average") == "network, class_loop"
    state["state_dict"] = {name: x for name, x in state["state_dict"].items() if not name.startswith("factors.")}
    write_checkpoint(state, tmp_path / CHECKPOINT)
    with pytest.raises(InputError, match=r"resume with average = 'network, class_loop'.*start a new run") as caught:
        run(tmp_path, resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("patience", [0, 3])
@pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # so few epochs
def test_the_estimator_answers_with_factors_and_weights_that_belong_together(patience: int) -> None:
    rows = load_digits(return_X_y=True)[0][:200]
    weak, ids = bags_of_parts().weak.numpy(), np.arange(200) // 5
    options: dict[str, Any] = {"head": "sigmoid", "class_loop": "learned", "random_state": 0, "learning_rate": 0.05}
    options |= {"epochs": 30, "held_out": 0.3, "ema": DECAY, "patience": patience}
    clf = WeakClassifier("multi_instance", train_options={"schedule": "constant"}, **options).fit(rows, weak, bags=ids)
    losses = [row["held_out"] for row in clf.history_]
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    kept = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:12].sort().values.tolist()
    found = -clf.weak_log_likelihood([rows[ids == bag] for bag in kept], weak[kept])
    assert found == pytest.approx(min(losses) if patience else losses[-1], rel=1e-5)
    assert losses[-1] > min(losses) + 1e-3
