"""Training by any method keeps to one device, which a machine without a GPU can only pretend to have."""

import pytest
import torch

from pretend_device import THERE, PretendDevice
from test_methods_steps import CASES, ready_run

BY_KERNELS = {("gbm", "multi_instance"), ("gbm", "label_proportion"), ("uum", "multi_instance")}  # posteriors by Triton


@pytest.mark.filterwarnings("ignore:CUDA is not available")  # as of DivideMix's second network, which asks for bfloat16
@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case not in BY_KERNELS])
def test_training_mixes_no_devices(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = PretendDevice()
    with device.here(monkeypatch):
        run = ready_run(name, kind, device="cuda")
        run.training.gpu = False  # nothing to capture a step with, nor bfloat16 there
        while not run.done:
            run.objective.start_epoch(run)
            run.training.load(run._pack(run.epoch))
            with device.step():
                run.training.run(1)
            run.epoch += 1
        run.objective.end(run)
        assert device.holds(run.training.loss)
        predicted = run.predict(run.training.images[:20])
    assert not device.holds(predicted) and bool(torch.isfinite(predicted).all())


def test_mixing_devices_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    device = PretendDevice()
    with device.here(monkeypatch):
        there, left = torch.ones(3, device="cuda"), torch.ones(3)
        assert (there + 1).device == THERE and left.device.type == "cpu"
        assert (there.cpu() + left).device.type == "cpu" and (left.to(there) + there).device == THERE
        with pytest.raises(AssertionError, match="mixes devices"):
            there + left
        with pytest.raises(AssertionError, match="mixes devices"):
            there[torch.tensor([0, 2])]
        with device.step(), pytest.raises(AssertionError, match="within a step"):
            left.to("cuda")
