"""A step of any method waits for nothing, so that a CUDA graph can hold it: it reads no value on the host."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from digit_runs import method_run
from fastbus.methods.registry import get_method, method_names
from fastbus.methods.rows import remember
from fastbus.training.image_run import ImageRun
from pair_digits import PRIOR, pair_run
from test_image_run import QUICK

aten = torch.ops.aten
WAITS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default}
PAIRS = ("pair_comparison", "pair_similarity", "similarity_confidence", "confidence_difference")
# candidates are read alike, whichever way they are told; centroids want two classes
CASES = [
    (name, kind)
    for name in method_names()
    for kind in get_method(name).settings
    if kind != "complementary_label" and (name != "cege" or kind in ("positive_unlabeled", "unlabeled_unlabeled"))
]


def ready_run(name: str, kind: str, device: str = "cpu") -> ImageRun:
    recipe = QUICK.replace(epochs=2)
    if kind in PAIRS:
        facts = {"prior": PRIOR} if "prior" in get_method(name).needs else {}
        return pair_run(kind, name, recipe, device=device, **facts)
    return method_run(kind, name, recipe, device=device)


def test_of_an_instance_that_a_batch_holds_twice_the_first_value_is_kept() -> None:
    table = torch.zeros(5, 2)
    remember(table, torch.tensor([3, 1, 3, 3, 0]), torch.arange(1.0, 11.0).view(5, 2))
    assert table.tolist() == [[9, 10], [3, 4], [0, 0], [1, 2], [0, 0]]


class Waiting(TorchDispatchMode):
    """Refuses what would need a value on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITS or (
            func is aten.index.Tensor and any(x.dtype == torch.bool for x in args[1] if x is not None)
        ):
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_step_waits_for_nothing(name: str, kind: str) -> None:
    run = ready_run(name, kind)
    if not run.objective.capturable:
        pytest.skip("no graph is captured of it")
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
