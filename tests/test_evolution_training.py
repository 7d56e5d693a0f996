"""State evolution in training: it learns with the network, predictions do not need it, and a run resumes exactly."""

from pathlib import Path

import pytest
import torch
from torch import nn

from digit_bags import half_labelled, mlp, positive_unlabeled, proportions, weights_of
from fastbus import InputError, build_evolution, infer
from fastbus.objective import WeakLoss
from fastbus.training.bag_set import BagSet
from fastbus.training.config import TrainConfig
from fastbus.training.fit import TrainResult, train

CPU = {"accelerator": "cpu"}


def joint_loss(data: BagSet, outputs: int = 10, max_bag_size: int | None = None) -> WeakLoss:
    """The paper's objective with a fresh module for the features of `mlp`."""
    torch.manual_seed(0)  # of the module's initial weights
    batch = data.batch(torch.arange(2))
    logits = torch.zeros(len(batch.instances), outputs)
    sizes = {"embed": 8, "hidden": 8, "heads": 2, "keys": 2}
    evolution = build_evolution(
        data.supervision, logits, batch.weak, 16, bag_sizes=batch.sizes, max_bag_size=max_bag_size, **sizes
    )
    return WeakLoss(data.supervision, mode="joint", evolution=evolution)


def run(data: BagSet, loss: WeakLoss, epochs: int, folder: Path | None = None, resume: bool = False) -> TrainResult:
    config = TrainConfig(epochs=epochs, max_bags=4, learning_rate=0.02, schedule="constant")
    return train(mlp(), loss, data, config, folder=folder, resume=resume, trainer_options=CPU)


@pytest.mark.parametrize("data", [proportions(12), half_labelled(24, 24)], ids=["bags", "single instances"])
def test_the_module_learns_with_the_network(data: BagSet) -> None:
    loss = joint_loss(data)
    assert loss.evolution is not None
    before = {name: x.detach().clone() for name, x in loss.evolution.named_parameters()}
    result = run(data, loss, 6)
    for name, x in loss.evolution.named_parameters():
        assert not torch.equal(x.detach().cpu(), before[name]), name
    losses = [row["loss"] for row in result.history]
    assert losses[-1] < losses[0]
    # only the backbone is needed for predictions, and it has no part of the module
    assert not any("evolution" in name for name, _ in result.network.named_parameters())
    assert result.network(torch.zeros(1, 64)).shape == (1, 10)


def test_a_run_resumes_exactly(tmp_path: Path) -> None:
    data = proportions(12)
    whole = joint_loss(data)
    expected = run(data, whole, 4, tmp_path / "whole")

    class StoppedError(Exception):
        pass

    writes = 0

    def stop(moment: str) -> None:
        nonlocal writes
        writes += moment == "before the temporary file"
        if writes == 2 and moment == "after the rename":
            raise StoppedError

    config = TrainConfig(epochs=4, max_bags=4, learning_rate=0.02, schedule="constant")
    with pytest.raises(StoppedError):
        train(mlp(), joint_loss(data), data, config, folder=tmp_path / "cut", trainer_options=CPU, moment=stop)
    resumed = joint_loss(data)
    got = run(data, resumed, 4, tmp_path / "cut", resume=True)
    assert torch.equal(weights_of(got.network), weights_of(expected.network))
    assert whole.evolution is not None and resumed.evolution is not None
    assert torch.equal(weights_of(resumed.evolution), weights_of(whole.evolution))
    assert float(whole.evolution.gate.detach()) != 0
    assert got.history == expected.history


def test_a_module_of_zeros_is_exact_inference_of_the_batch() -> None:
    """Sets of known prior: frozen as it starts, the module leaves the very training that goes without it."""
    data = positive_unlabeled()
    config = TrainConfig(epochs=3, max_bags=100, learning_rate=0.02)

    def trained(loss: WeakLoss) -> TrainResult:
        return train(mlp(2), loss, data, config, trainer_options=CPU)

    learned = joint_loss(data, outputs=2, max_bag_size=100)
    assert learned.queue is None and learned.evolution is not None
    batch, network = data.batch(torch.arange(0, 200, 2)), mlp(2)
    features = network.features(batch.instances)
    read = {"bag_sizes": batch.sizes, "features": features}
    post = learned.posterior(network.classify(features), batch.weak, **read)
    exact = infer(data.supervision, network.classify(features), batch.weak, bag_sizes=batch.sizes)
    assert float((post.labels - exact.labels).detach().abs().max()) < 1e-6
    assert float((exact.labels - torch.softmax(network(batch.instances), -1)).detach().abs().max()) > 0.1
    learned.evolution.requires_grad_(False)
    without = trained(WeakLoss(data.supervision, mode="joint", queue=0))
    kept = trained(learned)
    assert float((weights_of(kept.network) - weights_of(without.network)).abs().max()) < 1e-4
    assert float((weights_of(kept.network) - weights_of(mlp(2))).abs().max()) > 0.05
    assert [row["loss"] for row in kept.history] == pytest.approx([row["loss"] for row in without.history], rel=1e-4)


def test_a_run_with_a_module_does_not_resume_without_it(tmp_path: Path) -> None:
    data = proportions(12)
    run(data, joint_loss(data), 1, tmp_path)
    with pytest.raises(InputError, match="resume with loss"):
        run(data, WeakLoss(data.supervision, mode="joint"), 1, tmp_path, resume=True)


def test_a_network_without_features_is_refused() -> None:
    data = proportions(4)
    config = TrainConfig(epochs=1)
    with pytest.raises(InputError, match=r"expected a network with features\(x\) and classify\(features\)"):
        train(nn.Linear(64, 10), joint_loss(data), data, config, trainer_options=CPU)
