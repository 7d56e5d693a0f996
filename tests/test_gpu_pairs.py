"""Pairs by one launch: numbers against enumeration and the ordinary path, and a status for whatever is unusual.

On a machine without a GPU: TRITON_INTERPRET=1 python -m pytest tests/test_gpu_pairs.py
"""

import importlib.util
import os
from typing import Any

import pytest
import torch
from torch import Tensor

import fastbus
from express_batches import ordinary, quick
from fastbus.oracle import enumerate_posterior
from fastbus.supervision.base import Supervision

GPU = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(
    not ((GPU or os.environ.get("TRITON_INTERPRET") == "1") and importlib.util.find_spec("triton")),
    reason="needs Triton and a GPU, or TRITON_INTERPRET=1",
)
on_a_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU: infer takes this kernel by the device of the predictions")
DEVICE = "cuda" if GPU else "cpu"
NAN, INF = float("nan"), float("inf")
RULES: dict[str, Supervision] = {
    "sorted": fastbus.PairComparison(),
    "labelled": fastbus.PairComparison(pairs="labelled"),
    "similar": fastbus.PairSimilarity(),
    "similarity": fastbus.SimilarityConfidence(),
    "difference": fastbus.ConfidenceDifference(),
}
SOFT = ("similarity", "difference")
HEADS = [("sigmoid", 1), ("softmax", 2), ("softmax", 5), ("softmax", 16)]
CASES = [(kind, head, C) for kind in RULES for head, C in HEADS if C < 3 or kind in ("similar", "similarity")]
every_case = pytest.mark.parametrize(("kind", "head", "C"), CASES)
every_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def draw(kind: str, C: int, *, pairs: int = 40, scale: float = 2.0, missing: float = 0.2) -> tuple[Tensor, Tensor]:
    """Logits (B, 2, C) and weak labels, the first ones at the ends of their range."""
    generator = torch.Generator().manual_seed(pairs + C)
    x = scale * torch.randn(pairs, 2, C, generator=generator, dtype=torch.float64)
    drop = torch.rand(pairs, generator=generator) < missing
    drop[:3] = False
    if kind in SOFT:
        w = torch.rand(pairs, generator=generator, dtype=torch.float64)
        w[:3] = torch.tensor([0.0, 1.0, 0.5])
        return x, (2 * w - 1 if kind == "difference" else w).masked_fill(drop, NAN)
    return x, torch.randint(0, 2, (pairs,), generator=generator).masked_fill(drop, -1)


def solve_rows(kind: str, *given: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, starts, sizes and weak labels by the kernel; everything back on the CPU."""
    from fastbus.inference.kernels.gpu_pairs import solve_pairs

    posterior, likelihood, status = solve_pairs(*(x.to(DEVICE) for x in given), kind=kind, **options)
    return posterior.cpu(), likelihood.cpu(), status.cpu()


def solve(kind: str, x: Tensor, w: Tensor, *, padded: bool = True, rounded: bool = False) -> tuple[Tensor, ...]:
    B, K, C = x.shape
    rows, starts, sizes = x.reshape(K * B, C), K * torch.arange(B), torch.full((B,), 2)
    posterior, *rest = solve_rows(kind, rows, starts, sizes, w, longest=K, padded=padded, rounded=rounded)
    return posterior.view_as(x), *rest


# -- the kernel alone --------------------------------------------------------------------------


@every_case
def test_equals_enumeration(kind: str, head: str, C: int) -> None:
    x, w = draw(kind, C)
    posterior, likelihood, status = solve(kind, x, w)
    truth = enumerate_posterior(RULES[kind], x.numpy(), w.numpy(), head=head)
    assert not status.any()
    torch.testing.assert_close(posterior, torch.from_numpy(truth.labels), rtol=0, atol=1e-13)
    torch.testing.assert_close(likelihood, torch.from_numpy(truth.log_likelihood), rtol=0, atol=1e-12)


@every_case
@every_type
@pytest.mark.parametrize("scale", [1.0, 30.0, 500.0])
def test_equals_the_ordinary_path(kind: str, head: str, C: int, dtype: torch.dtype, scale: float) -> None:
    x, w = draw(kind, C, scale=scale)
    posterior, likelihood, status = solve(kind, x.to(dtype), w)
    expected = ordinary(RULES[kind], x.to(dtype).double(), w, head=head)
    assert not status.any() and posterior.dtype == dtype and likelihood.dtype == torch.float64
    rounding = 1e-12 if dtype == torch.float64 else 1e-7
    torch.testing.assert_close(posterior.double(), expected.labels, rtol=0, atol=rounding)
    torch.testing.assert_close(likelihood, expected.log_likelihood, rtol=1e-13, atol=1e-11)


@every_case
@pytest.mark.parametrize("size", [30.0, 500.0])
def test_sure_predictions_of_every_sign(kind: str, head: str, C: int, size: float) -> None:
    """Both are sure of the first, or of the last class, in all four ways, whatever the weak label says."""
    said = [-1.0, -0.9, 0.0, 0.4, 1.0] if kind == "difference" else [0.0, 0.3, 1.0] if kind in SOFT else [0, 1]
    x = torch.zeros(4, 2, C, dtype=torch.float64)
    x[..., -1] = size * torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    x, w = x.repeat(len(said), 1, 1), torch.tensor(said).repeat_interleave(4)
    posterior, likelihood, status = solve(kind, x, w)
    expected = ordinary(RULES[kind], x, w, head=head)
    assert not status.any()
    torch.testing.assert_close(posterior, expected.labels, rtol=0, atol=1e-12)
    torch.testing.assert_close(likelihood, expected.log_likelihood, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("odds", [-300.0, -40.0, 40.0, 300.0])
def test_small_posteriors_keep_their_digits(odds: float) -> None:
    """One class of five is certain but for e^-300; the pair is alike in another one only as improbably."""
    x = torch.zeros(1, 2, 5, dtype=torch.float64)
    x[:, :, 3] = odds
    p = torch.softmax(x[0, 0], -1)
    others = torch.stack([torch.cat([p[:c], p[c + 1 :]]).sum() for c in range(5)])
    for said, weights in ((1, p * p), (0, p * others)):
        posterior, likelihood, status = solve("similar", x, torch.tensor([said]))
        assert not status.any()
        torch.testing.assert_close(posterior[0, 0], weights / weights.sum(), rtol=1e-13, atol=0)
        torch.testing.assert_close(likelihood[0], weights.sum().log(), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("C", [2, 5])
def test_what_underflows_is_not_lost(C: int) -> None:
    """Both are sure of one class but for e^-2000, and e^-2001 for the second one; yet they are unlike."""
    x = torch.full((1, 2, C), -3000.0, dtype=torch.float64)
    x[..., 1] = 0.0
    x[0, :, 0] = torch.tensor([-2000.0, -2001.0])
    posterior, likelihood, status = solve("similar", x, torch.tensor([0]))
    p = torch.tensor(1.0, dtype=torch.float64).sigmoid()
    assert not status.any()
    torch.testing.assert_close(posterior[0, :, 0], torch.stack([p, 1 - p]), rtol=1e-12, atol=0)
    torch.testing.assert_close(likelihood[0], -2000 - p.log(), rtol=1e-14, atol=0)


@every_case
def test_missing_labels_leave_the_predictions(kind: str, head: str, C: int) -> None:
    x, w = draw(kind, C)
    none = torch.full_like(w, NAN if kind in SOFT else -1)
    posterior, likelihood, status = solve(kind, x, none)
    assert not status.any() and not likelihood.any()
    torch.testing.assert_close(posterior, x.sigmoid() if C == 1 else x.softmax(-1), rtol=1e-13, atol=0)


@every_case
def test_rows_of_nobody_are_zero(kind: str, head: str, C: int) -> None:
    x, w = draw(kind, C, pairs=5)
    expected = solve(kind, x, w)
    wide = torch.cat([x, torch.full((5, 1, C), NAN, dtype=torch.float64)], 1)
    for padded in (True, False):
        posterior, likelihood, status = solve(kind, wide, w, padded=padded)
        assert torch.equal(posterior[:, :2], expected[0]) and not posterior[:, 2].any()
        assert torch.equal(likelihood, expected[1]) and not status.any()


@every_type
def test_types_of_labels_and_of_the_answer(dtype: torch.dtype) -> None:
    x, w = draw("similar", 2, missing=0.0)
    expected = solve("similar", x.to(dtype), w, rounded=True)
    assert expected[1].dtype == dtype
    for weak in (w.bool(), w.to(torch.int8), w.to(torch.uint8), w.double(), w.float()):
        got = solve("similar", x.to(dtype), weak, rounded=True)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@every_case
def test_status_of_predictions(kind: str, head: str, C: int, value: float) -> None:
    x, w = draw(kind, C)
    x[17, 1, C - 1] = value
    x[23, 0, 0] = value
    assert solve(kind, x, w)[2].nonzero().flatten().tolist() == [17, 23]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("sorted", 2),
        ("labelled", -2),
        ("similar", 3),
        ("sorted", -1.0),
        ("similar", 0.5),
        ("similarity", 1.01),
        ("similarity", -0.01),
        ("similarity", INF),
        ("difference", -1.5),
    ],
)
def test_status_of_weak_labels(kind: str, said: float) -> None:
    assert solve(kind, torch.zeros(2, 2, 2), torch.tensor([type(said)(1), said]))[2].tolist() == [0, 1]


def test_status_of_other_bags_than_pairs() -> None:
    x, w = torch.zeros(6, 2), torch.tensor([1, 0])
    for starts, sizes, bad in (([0, 3], [3, 2], [1, 0]), ([0, 2], [2, 1], [0, 1]), ([-1, 5], [2, 2], [1, 1])):
        posterior, _, status = solve_rows("sorted", x, torch.tensor(starts), torch.tensor(sizes), w)
        assert status.tolist() == bad
        assert int((posterior.sum(1) > 0).sum()) == 2 * bad.count(0)
    lone = solve_rows("sorted", x[:4], torch.tensor([0, 2]), torch.tensor([1, 2]), w, longest=2, padded=True)
    assert lone[2].tolist() == [1, 0] and not lone[0][:2].any()


def test_status_of_kinds_that_know_two_classes() -> None:
    for kind in ("sorted", "labelled", "difference"):
        assert solve(kind, torch.zeros(1, 2, 3), torch.tensor([1.0]))[2].tolist() == [1]


def test_many_classes() -> None:
    for C in (100, 1000, 4096):
        x, w = draw("similarity", C, pairs=4)
        posterior, likelihood, status = solve("similarity", x, w)
        expected = ordinary(RULES["similarity"], x, w)
        assert not status.any()
        torch.testing.assert_close(posterior, expected.labels, rtol=0, atol=1e-13)
        torch.testing.assert_close(likelihood, expected.log_likelihood, rtol=1e-12, atol=1e-14)
    assert solve("similarity", torch.zeros(1, 2, 4097), torch.tensor([1.0]))[2].tolist() == [1]


# -- through infer -----------------------------------------------------------------------------


@every_case
@every_type
@pytest.mark.parametrize("layout", ["full", "masked", "flat"])
def test_the_express_way_asks_for_it(kind: str, head: str, C: int, dtype: torch.dtype, layout: str) -> None:
    """What a GPU is given by `infer`, which on a CPU would take another kernel."""
    from fastbus.inference.express import _kernel, _on_gpu
    from fastbus.inference.express_inputs import pair_labels, rows_of

    x, w, options = laid_out(kind, C, dtype, layout)
    rows = rows_of(x.to(DEVICE), options.get("mask"), options.get("bag_sizes"))
    said, kernel = pair_labels(w, len(w), x.to(DEVICE), head, kind), _kernel(False, head, kind)
    assert rows is not None and said is not None and kernel is not None
    solved = _on_gpu(kernel, x.to(DEVICE), said, rows, 4096, False, True)
    assert solved is not None
    expected = ordinary(RULES[kind], x.to(DEVICE), w, head=head, **options)
    rounding = 1e-12 if dtype == torch.float64 else 5e-7
    torch.testing.assert_close(solved[0], expected.labels, rtol=0, atol=rounding)
    torch.testing.assert_close(solved[1], expected.log_likelihood, rtol=rounding, atol=rounding)


def laid_out(kind: str, C: int, dtype: torch.dtype, layout: str) -> tuple[Tensor, Tensor, dict[str, Any]]:
    x, w = draw(kind, C)
    x = x.to(dtype)
    if layout == "masked":
        x = torch.cat([x, torch.full((len(x), 1, C), NAN, dtype=dtype)], 1)
        return x, w, {"mask": torch.tensor([True, True, False], device=DEVICE).expand(len(x), 3)}
    if layout == "flat":
        return x.flatten(0, 1), w, {"bag_sizes": torch.full((len(x),), 2, device=DEVICE)}
    return x, w, {}


@on_a_gpu
@every_case
@pytest.mark.parametrize("layout", ["full", "masked", "flat"])
@pytest.mark.parametrize("validate", [True, False])
def test_infer_takes_it(kind: str, head: str, C: int, layout: str, validate: bool) -> None:
    x, w, options = laid_out(kind, C, torch.float64, layout)
    expected = ordinary(RULES[kind], x.cuda(), w, head=head, **options)
    for weak in (w, w.cuda()):
        got = quick(RULES[kind], x.cuda(), weak, head=head, validate=validate, **options)
        torch.testing.assert_close(got.labels, expected.labels, rtol=0, atol=1e-12)
        torch.testing.assert_close(got.log_likelihood, expected.log_likelihood, rtol=1e-12, atol=1e-12)
        assert torch.equal(got.informed, expected.informed) and got.coupling == expected.coupling


@on_a_gpu
@every_case
def test_derivatives_are_those_of_the_cpu(kind: str, head: str, C: int) -> None:
    x, w = draw(kind, C, pairs=6)
    slopes = []
    for device in ("cuda", "cpu"):
        given = x.to(device).requires_grad_()
        post = quick(RULES[kind], given, w.to(device), head=head)
        slopes.append(torch.autograd.grad(post.labels.square().sum() + post.log_likelihood.sum(), given)[0].cpu())
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-10, atol=1e-10)


@on_a_gpu
def test_wrong_labels_are_complained_about() -> None:
    with pytest.raises(fastbus.errors.FastbusError):
        fastbus.infer("pair_similarity", torch.zeros(1, 2, 2, device="cuda"), torch.tensor([3]))
