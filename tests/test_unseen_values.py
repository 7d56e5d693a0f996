"""Values that a transform hides lead to another route; any other trouble, such as memory that is spent, is told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import fastbus
from fastbus.inference.count_routes import LARGE, solve_counts
from fastbus.inference.ending import Ending
from fastbus.inference.shift import known, unseen
from tensors import draws

FLAGS = torch.tensor([[True, True], [True, False]])


class Spent(Tensor):
    """A tensor whose values cannot be read because the device has no memory left."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__bool__:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_flags_are_known_unless_a_transform_hides_them() -> None:
    assert known(FLAGS[0]) is True and known(FLAGS[1]) is False
    seen: list[bool | None] = []

    def note(flags: Tensor) -> Tensor:
        seen.append(known(flags))
        return flags

    torch.vmap(note)(FLAGS)
    torch.func.grad(lambda x: note(x > 0).sum() * x.sum())(torch.ones(2))
    make_fx(note)(FLAGS[0])
    make_fx(note, tracing_mode="fake")(FLAGS[0])
    make_fx(note, tracing_mode="symbolic")(FLAGS[0])
    assert seen == [None, True, None, None, None]


def test_memory_that_is_spent_is_told() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        known(FLAGS.as_subclass(Spent))
    bags, size = 1, 64
    assert size * (size + 1) >= LARGE, "small bags have but one route"
    evidence = torch.zeros(bags, size + 1, dtype=torch.float64).as_subclass(Spent)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        solve_counts(draws(bags, size, 2), torch.tensor([size]), Ending(evidence, None))


@pytest.mark.parametrize("make", [RuntimeError, torch.OutOfMemoryError, torch.AcceleratorError])
def test_other_trouble_is_no_transform(make: Callable[[str], RuntimeError]) -> None:
    assert not unseen(make("CUDA error: an illegal memory access was encountered"))


def test_counts_of_weak_labels_under_vmap_equal_those_outside() -> None:
    """64 instances, so that outside the transform quadrature answers, and inside it the recursion."""
    logits, counts = draws(1, 64, 1), torch.tensor([[3], [40], [64]])

    def labels(weak: Tensor) -> Tensor:
        return fastbus.infer("label_proportion", logits, weak[None], head="sigmoid", validate=False).labels

    together = torch.vmap(labels)(counts)
    for got, weak in zip(together, counts, strict=True):
        torch.testing.assert_close(got, labels(weak), rtol=0, atol=1e-10)
