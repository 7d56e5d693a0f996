"""Pairs on the CPU: numbers against enumeration and the ordinary path, and a status for whatever is unusual."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import fastbus
from express_batches import ordinary, quick
from fastbus.errors import FastbusError
from fastbus.inference.express_posterior import QuickPosterior
from fastbus.inference.kernels.cpu_pairs import solve_pairs
from fastbus.oracle import enumerate_posterior
from fastbus.supervision.base import Supervision

NAN, INF = float("nan"), float("inf")
RULES: dict[str, Supervision] = {
    "sorted": fastbus.PairComparison(),
    "labelled": fastbus.PairComparison(pairs="labelled"),
    "similar": fastbus.PairSimilarity(),
    "similarity": fastbus.SimilarityConfidence(),
    "difference": fastbus.ConfidenceDifference(),
}
HEADS = [("softmax", 2), ("sigmoid", 1), ("softmax", 5)]
CASES = [(kind, head, C) for kind in RULES for head, C in HEADS if C < 3 or kind in ("similar", "similarity")]
every_case = pytest.mark.parametrize(("kind", "head", "C"), CASES)


def draw(kind: str, C: int, *, pairs: int = 40, scale: float = 2.0, missing: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(pairs + C)
    x = scale * torch.randn(pairs, 2, C, generator=generator, dtype=torch.float64)
    drop = torch.rand(pairs, generator=generator) < missing
    if kind in ("similarity", "difference"):
        w = torch.rand(pairs, generator=generator, dtype=torch.float64)
        w[:2] = torch.tensor([0.0, 1.0])
        return x, (2 * w - 1 if kind == "difference" else w).masked_fill(drop, NAN)
    return x, torch.randint(0, 2, (pairs,), generator=generator).masked_fill(drop, -1)


def solve(kind: str, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, int]:
    B, _, C = x.shape
    posterior, likelihood, status = solve_pairs(
        x.reshape(2 * B, C), torch.arange(0, 2 * B, 2), torch.full((B,), 2), w, kind=kind
    )
    return posterior.view_as(x), likelihood, status


# -- the kernel alone --------------------------------------------------------------------------


@every_case
def test_equals_enumeration(kind: str, head: str, C: int) -> None:
    x, w = draw(kind, C, missing=0.2)
    posterior, likelihood, status = solve(kind, x, w)
    truth = enumerate_posterior(RULES[kind], x.numpy(), w.numpy(), head=head)
    assert status == 0
    np.testing.assert_allclose(posterior.numpy(), truth.labels, rtol=0, atol=1e-13)
    np.testing.assert_allclose(likelihood.numpy(), truth.log_likelihood, rtol=0, atol=1e-12)


@every_case
def test_large_logits(kind: str, head: str, C: int) -> None:
    x, w = draw(kind, C, scale=30.0)
    posterior, likelihood, status = solve(kind, x, w)
    expected = ordinary(RULES[kind], x, w, head=head)
    assert status == 0
    torch.testing.assert_close(posterior, expected.labels, rtol=0, atol=1e-12)
    torch.testing.assert_close(likelihood, expected.log_likelihood, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("odds", [-300.0, -40.0, 40.0, 300.0])
def test_small_posteriors_keep_their_digits(odds: float) -> None:
    """One class of five is certain but for e^-300; the pair is alike in another one only as improbably."""
    x = torch.zeros(1, 2, 5, dtype=torch.float64)
    x[:, :, 3] = odds
    posterior, likelihood, status = solve("similar", x, torch.tensor([1]))
    p = torch.softmax(x, -1)
    squares = p * p
    assert status == 0
    torch.testing.assert_close(posterior, squares / squares.sum(-1, keepdim=True), rtol=1e-13, atol=0)
    torch.testing.assert_close(likelihood, squares[:, 0].sum(-1).log(), rtol=1e-13, atol=1e-15)
    # unlike: the other four hold all that class 3 leaves, which 1 - p would have rounded away
    posterior, likelihood, status = solve("similar", x, torch.tensor([0]))
    others = torch.stack([torch.cat([p[0, 0, :c], p[0, 0, c + 1 :]]).sum() for c in range(5)])
    weights = p[0, 0] * others
    torch.testing.assert_close(posterior[0, 0], weights / weights.sum(), rtol=1e-13, atol=0)
    torch.testing.assert_close(likelihood[0], weights.sum().log(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e7])
@every_case
def test_status_of_predictions(kind: str, head: str, C: int, value: float) -> None:
    x, w = draw(kind, C, missing=0.2)
    x[17, 1, C - 1] = value
    assert solve(kind, x, w)[2] == 1


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("sorted", [2]),
        ("labelled", [-2]),
        ("similar", [3]),
        ("sorted", [-1.0]),
        ("similar", [0.5]),
        ("similarity", [1.01]),
        ("similarity", [-0.01]),
        ("similarity", [INF]),
        ("difference", [-1.5]),
    ],
)
def test_status_of_weak_labels(kind: str, said: list[float]) -> None:
    assert solve(kind, torch.zeros(1, 2, 2), torch.tensor(said))[2] == 1


def test_status_of_probabilities_that_are_lost() -> None:
    sure = torch.tensor([[[0.0, 800.0], [800.0, 0.0]]], dtype=torch.float64)
    for kind, said in (("similar", 1), ("labelled", 0), ("similarity", 0.5), ("difference", 0.0)):
        assert solve(kind, sure, torch.tensor([said]))[2] == 1


def test_status_of_other_bags_than_pairs() -> None:
    x, w = torch.zeros(6, 2), torch.tensor([1, 0])
    for starts, sizes in (([0, 3], [3, 3]), ([0, 2], [2, 1]), ([0, 5], [2, 2]), ([-1, 2], [2, 2])):
        assert solve_pairs(x, torch.tensor(starts), torch.tensor(sizes), w, kind="sorted")[2] == 1


# -- through infer -----------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("layout", ["full", "masked", "flat"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infer_takes_it(kind: str, head: str, C: int, layout: str, dtype: torch.dtype) -> None:
    x, w = draw(kind, C, missing=0.3)
    x = x.to(dtype)
    options: dict[str, Any] = {"head": head}
    if layout == "masked":
        x = torch.cat([x, torch.full((len(x), 1, C), NAN, dtype=dtype)], 1)
        options["mask"] = torch.tensor([True, True, False]).expand(len(x), 3)
    elif layout == "flat":
        x, options["bag_sizes"] = x.flatten(0, 1), torch.full((len(x),), 2)
    got, expected = quick(RULES[kind], x, w, **options), ordinary(RULES[kind], x, w, **options)
    rounding = 1e-12 if dtype == torch.float64 else 5e-7
    torch.testing.assert_close(got.labels, expected.labels, rtol=0, atol=rounding)
    torch.testing.assert_close(got.log_likelihood, expected.log_likelihood, rtol=rounding, atol=rounding)
    for name in ("exact_bags", "converged", "ignored", "informed"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    assert got.coupling == expected.coupling and got.likelihood == expected.likelihood
    if kind not in ("similarity", "difference"):
        assert torch.equal(got.map(), expected.map())


@every_case
def test_derivatives(kind: str, head: str, C: int) -> None:
    x, w = draw(kind, C, pairs=4, missing=0.2)

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        post = quick(RULES[kind], x, w, head=head)
        return post.labels, post.log_likelihood

    assert gradcheck(both, x.requires_grad_(), atol=1e-7)


def test_names_and_types() -> None:
    x, w = draw("sorted", 2)
    expected = quick(RULES["sorted"], x, w)
    for weak in (w.bool(), w.to(torch.int8), w.double(), w.float(), w.numpy()):
        got = quick("pair_comparison", x, weak)
        assert torch.equal(got.labels, expected.labels) and torch.equal(got.informed, expected.informed)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fastbus.infer("pair_comparison", torch.zeros(1, 3, 2), torch.tensor([1])),
        lambda: fastbus.infer("pair_comparison", torch.zeros(1, 2, 3), torch.tensor([1])),
        lambda: fastbus.infer("pair_comparison", torch.zeros(1, 2, 2), torch.tensor([2])),
        lambda: fastbus.infer("pair_comparison", torch.zeros(1, 2, 2), torch.tensor([[1, 0]])),
        lambda: fastbus.infer("pair_similarity", torch.zeros(1, 2, 2), torch.tensor([1]), head="sigmoid"),
        lambda: fastbus.infer("pair_similarity", torch.full((1, 2, 2), NAN), torch.tensor([1])),
        lambda: fastbus.infer("similarity_confidence", torch.zeros(1, 2, 2), torch.tensor([1])),
        lambda: fastbus.infer("similarity_confidence", torch.zeros(1, 2, 2), torch.tensor([1.5])),
        lambda: fastbus.infer("confidence_difference", torch.zeros(1, 2, 3), torch.tensor([0.5])),
        lambda: fastbus.infer("pair_similarity", torch.tensor([[[0.0, INF], [INF, 0.0]]]), torch.tensor([1])),
    ],
)
def test_errors_are_those_of_the_ordinary_path(call: Callable[[], Any]) -> None:
    messages = []
    for on in ("1", "0"):
        with pytest.MonkeyPatch.context() as patch, pytest.raises(FastbusError) as problem:
            patch.setenv("FASTBUS_KERNELS", on)
            call()
        messages.append((type(problem.value), str(problem.value)))
    assert messages[0] == messages[1]


def test_rules_with_options_take_the_ordinary_path() -> None:
    x, w = draw("sorted", 2)
    for rule, weak in (
        (fastbus.PairComparison(noise=(0.1, 0.2)), w),
        (fastbus.PairSimilarity(noise=(0.1, 0.2)), w),
        (fastbus.SimilarityConfidence(soft="virtual"), w.double()),
    ):
        assert not isinstance(fastbus.infer(rule, x, weak), QuickPosterior)
