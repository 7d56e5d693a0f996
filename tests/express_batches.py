"""Random batches for the express way through `infer`, and both ways to solve them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.inference.express_posterior import QuickPosterior

NAN = float("nan")
KINDS = [(kind, head) for kind in ("label_proportion", "multi_instance") for head in ("sigmoid", "softmax")]
every_kind = pytest.mark.parametrize(("kind", "head"), KINDS)
every_layout = pytest.mark.parametrize("layout", ["full", "masked", "flat"])


@contextmanager
def kernels(on: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTBUS_KERNELS", "1" if on else "0")
        yield


def ordinary(*given: Any, **options: Any) -> fastbus.Posterior:
    with kernels(on=False):
        post = fastbus.infer(*given, **options)
    assert not isinstance(post, QuickPosterior)
    return post


def quick(*given: Any, **options: Any) -> fastbus.Posterior:
    post = fastbus.infer(*given, **options)
    assert isinstance(post, QuickPosterior), "the ordinary path was taken"
    return post


class Batch(NamedTuple):
    kind: str
    logits: Tensor
    weak: Tensor
    options: dict[str, Any]

    def at(self, logits: Tensor) -> tuple[str, Tensor, Tensor]:
        return self.kind, logits, self.weak

    @property
    def given(self) -> tuple[str, Tensor, Tensor]:
        return self.at(self.logits)


def draw(
    kind: str,
    head: str,
    layout: str = "full",
    *,
    sizes: tuple[int, ...] = (5, 3, 1, 4),
    classes: int = 3,
    missing: float = 0.0,
    scale: float = 2.0,
    seed: int = 0,
) -> Batch:
    """Random logits, and the weak labels of random labellings; padding holds NaN."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (max(sizes),) * len(sizes) if layout == "full" else sizes
    bags, weak = [], []
    for size in sizes:
        bags.append(scale * torch.randn(size, classes, generator=generator, dtype=torch.float64))
        if head == "softmax":
            labels = torch.nn.functional.one_hot(torch.randint(0, classes, (size,), generator=generator), classes)
        else:
            labels = torch.randint(0, 2, (size, classes), generator=generator)
        weak.append(labels.sum(0) if kind == "label_proportion" else labels.amax(0))
    said = torch.stack(weak)
    said = torch.where(torch.rand(said.shape, generator=generator) < missing, -1, said)
    options: dict[str, Any] = {"head": head}
    if layout == "flat":
        return Batch(kind, torch.cat(bags), said, options | {"bag_sizes": torch.tensor(sizes)})
    logits = torch.nn.utils.rnn.pad_sequence(bags, batch_first=True, padding_value=NAN)
    if layout == "masked":
        options["mask"] = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    return Batch(kind, logits, said, options)


def assert_same(got: fastbus.Posterior, expected: fastbus.Posterior, rounding: float = 1e-12) -> None:
    torch.testing.assert_close(got.labels, expected.labels, rtol=0, atol=rounding)
    torch.testing.assert_close(got.log_likelihood, expected.log_likelihood, rtol=rounding, atol=rounding)
    for name in ("exact_bags", "converged", "ignored", "informed"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    assert got.coupling == expected.coupling and got.likelihood == expected.likelihood == "exact"
