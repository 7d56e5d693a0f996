"""A step of any method waits for nothing, so that a CUDA graph can hold it: it reads no value on the host."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from digit_runs import method_run
from fastbus.methods.registry import MODULES
from test_image_run import QUICK

aten = torch.ops.aten
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}
KINDS = {
    "imperfect_partial": "partial_label",
    "imperfect_pico": "partial_label",
    "imperfect_noisy": "noisy_label",
    "imperfect_dividemix": "noisy_label",
    "imperfect_crowd": "crowd_label",
    "incomplete_risks": "positive_unlabeled",
    "incomplete_positive": "positive_unlabeled",
    "incomplete_semi": "semi_supervised",
}
METHODS = {name: KINDS[module] for module in KINDS for name in MODULES[module]} | {"uu": "unlabeled_unlabeled"}


class Waiting(TorchDispatchMode):
    """Refuses what would need a value on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS or (
            func is aten.index.Tensor and any(x.dtype == torch.bool for x in args[1] if x is not None)
        ):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "kind"), METHODS.items(), ids=list(METHODS))
def test_a_step_waits_for_nothing(name: str, kind: str) -> None:
    run = method_run(kind, name, QUICK.replace(epochs=2))
    run.run_epoch()
    run.objective.start_epoch(run)  # past any warm-up
    run.training.load(run._pack(1))
    state = {key: x.data_ptr() for key, x in run.training.state().items() if key != "generator"}
    with Waiting():
        run.training.run(2)
    # a graph writes to the places it was captured with
    assert {key: x.data_ptr() for key, x in run.training.state().items() if key != "generator"} == state
    assert bool(torch.isfinite(run.training.loss))


def test_reading_a_value_is_caught() -> None:
    with Waiting(), pytest.raises(AssertionError, match="waits"):
        float(torch.ones(2).sum())
