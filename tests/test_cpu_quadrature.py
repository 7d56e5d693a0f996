"""Quadrature of long bags on the CPU: numbers against extended precision and torch, and time linear in the bag."""

import math
import time

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

import fastbus
from fastbus.inference.express_posterior import QuickPosterior
from fastbus.inference.kernels import cpu_counts
from fastbus.inference.kernels.cpu_blocks import Array
from fastbus.inference.kernels.cpu_quadrature import longest_by_recursion, solve_arrays, solve_bags, solve_counts
from fastbus.inference.quadrature import solve_hard_count

NAN, INF = float("nan"), float("inf")


def draw(size: int, scale: float = 1.0, level: float = -1.0, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(size) * scale + level


def solve(x: Array, count: int) -> tuple[Array, float, int]:
    posterior, likelihood, status = solve_arrays(x[:, None], np.array([0]), np.array([len(x)]), np.array([[count]]))
    return posterior[:, 0], float(likelihood[0]), status


def recursion(x: Array, count: int) -> tuple[Array, float]:
    """Forwards and backwards over all counts, in extended precision, where the count is a likely one."""
    wide = x.astype(np.longdouble)
    low, high = -wide.max() - 30, -wide.min() + 30
    for _ in range(120):
        middle = (low + high) / 2
        above = (1 / (1 + np.exp(-np.clip(wide + middle, -700, 700)))).sum() > count
        low, high = (low, middle) if above else (middle, high)
    y = wide + low
    yes, no = np.exp(-np.logaddexp(0, -y)), np.exp(-np.logaddexp(0, y))
    K = len(x)
    forward = np.zeros((K + 1, K + 2), np.longdouble)
    forward[0, 0] = 1
    for k in range(K):
        forward[k + 1] = no[k] * forward[k]
        forward[k + 1, 1:] += yes[k] * forward[k, :-1]
    posterior, back = np.zeros(K, np.longdouble), np.zeros(K + 2, np.longdouble)
    back[count] = 1
    for k in range(K - 1, -1, -1):
        posterior[k] = yes[k] * (forward[k, :-1] * back[1:]).sum() / forward[K, count]
        back[:-1] = no[k] * back[:-1] + yes[k] * back[1:]
        back[-1] = 0
    weight = (np.logaddexp(0, y) - np.logaddexp(0, wide)).sum()
    return posterior.astype(float), float(np.log(forward[K, count]) + weight - low * count)


@pytest.mark.skipif(bool(np.finfo(np.longdouble).eps > 1e-18), reason="no extended precision on this machine")
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 30.0, 300.0])
@pytest.mark.parametrize("size", [2, 7, 65, 400])
def test_equals_the_recursion_in_extended_precision(size: int, scale: float) -> None:
    x = draw(size, scale)
    for count in sorted({1, size // 10, size // 2, size * 9 // 10, size - 1} - {0}):
        posterior, likelihood, status = solve(x, count)
        expected, log_expected = recursion(x, count)
        assert status == 0
        np.testing.assert_allclose(posterior, expected, rtol=0, atol=1e-13)
        assert likelihood == pytest.approx(log_expected, rel=1e-13, abs=1e-13)
        assert likelihood <= 0 and posterior.min() >= 0 and posterior.max() <= 1


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9])
@pytest.mark.parametrize("size", [1000, 30_000])
def test_equals_the_quadrature_of_torch(size: int, share: float) -> None:
    """Nine tenths positives at probabilities of a tenth are improbable evidence: log P is below -1e4."""
    x, count = draw(size, 1.0, -2.2), int(share * size)
    posterior, likelihood, status = solve(x, count)
    odds = torch.from_numpy(x)[None]
    evidence = torch.full((1, size + 1), -INF, dtype=torch.float64).index_fill_(1, torch.tensor([count]), 0.0)
    potential = torch.stack([logsigmoid(-odds), logsigmoid(odds)], -1)
    log_posterior, log_likelihood = solve_hard_count(potential, torch.tensor([size]), evidence)
    assert status == 0
    np.testing.assert_allclose(posterior, log_posterior[0, :, 1].exp().numpy(), rtol=0, atol=1e-12)
    assert likelihood == pytest.approx(float(log_likelihood), rel=1e-12)
    assert share < 0.5 or likelihood < -1000


@pytest.mark.parametrize("size", [1001, 10**6])
def test_equal_predictions(size: int) -> None:
    """A binomial count, whose posterior is the share of positives everywhere."""
    count, p = size * 9 // 10, 0.1
    posterior, likelihood, status = solve(np.full(size, math.log(p / (1 - p))), count)
    choices = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    assert status == 0
    np.testing.assert_allclose(posterior, count / size, rtol=0, atol=1e-12)
    assert likelihood == pytest.approx(choices + count * math.log(p) + (size - count) * math.log(1 - p), rel=1e-12)


def test_nearly_certain_predictions() -> None:
    x = np.where(draw(2000, level=0.0) > 0, 40.0, -40.0)
    likely = int((x > 0).sum())
    posterior, likelihood, status = solve(x, likely)
    assert status == 0 and -1e-12 < likelihood <= 0
    np.testing.assert_allclose(posterior, x > 0, rtol=0, atol=1e-12)
    # one more than predicted: any of the others, all alike
    posterior, _, status = solve(x, likely + 1)
    assert status == 0
    np.testing.assert_allclose(posterior[x < 0], 1 / (2000 - likely), rtol=1e-11)


def test_none_all_and_nothing_known() -> None:
    x = np.stack([draw(300, 3.0, seed=seed) for seed in range(3)], 1)
    posterior, likelihood, status = solve_arrays(x, np.array([0]), np.array([300]), np.array([[0, 300, -1]]))
    assert status == 0 and not posterior[:, 0].any() and (posterior[:, 1] == 1).all()
    np.testing.assert_allclose(posterior[:, 2], 1 / (1 + np.exp(-x[:, 2])), rtol=1e-14)
    expected = -np.logaddexp(0, x[:, 0]).sum() - np.logaddexp(0, -x[:, 1]).sum()
    assert likelihood[0] == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e7])
def test_status_of_predictions(value: float) -> None:
    x = draw(100)
    x[57] = value
    assert solve(x, 40)[2] == 1


def test_status_of_counts_and_rows() -> None:
    x = draw(100)
    assert solve(x, -2)[2] == solve(x, 101)[2] == 1
    weak = torch.tensor([[3]])
    for start, size in ((0, 101), (-1, 50), (60, 41), (0, 0)):
        *_, status = solve_counts(torch.from_numpy(x)[:, None], torch.tensor([start]), torch.tensor([size]), weak)
        assert status == 1


# -- short bags and long ones ------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 3, 10])
def test_bags_do_not_depend_on_each_other(classes: int) -> None:
    """Each size takes its own way whatever else is in the batch, so that the bits stay the same."""
    limit = longest_by_recursion(classes)
    sizes = np.array([limit + 40, 3, limit, limit + 1])
    starts = np.cumsum(sizes) - sizes
    x = np.random.default_rng(0).standard_normal((sizes.sum(), classes))
    weak = sizes[:, None] // np.arange(2, 2 + classes)
    posterior, likelihood, status = solve_bags(x, starts, sizes, weak, longest=int(sizes.max()))
    assert status == 0
    for bag, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        rows = x[start : start + size]
        alone = solve_bags(rows, np.array([0]), sizes[bag : bag + 1], weak[bag : bag + 1], longest=int(size))
        assert (alone[0] == posterior[start : start + size]).all() and alone[1][0] == likelihood[bag]
        other = (cpu_counts.solve_arrays if size > limit else solve_arrays)(
            rows, np.array([0]), sizes[bag : bag + 1], weak[bag : bag + 1]
        )
        np.testing.assert_allclose(alone[0], other[0], rtol=0, atol=1e-13)
        np.testing.assert_allclose(alone[1], other[1], rtol=1e-13)


def test_a_wrong_count_among_short_bags_is_noticed() -> None:
    x, sizes = np.zeros((403, 1)), np.array([400, 3])
    for weak in ([[5], [4]], [[401], [1]]):
        assert solve_bags(x, np.array([0, 400]), sizes, np.array(weak), longest=400)[2] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infer_takes_it(dtype: torch.dtype) -> None:
    logits = torch.from_numpy(draw(2 * 700 * 3)).reshape(2, 700, 3).to(dtype)
    weak = torch.tensor([[100, 300, -1], [0, 700, 699]])
    post = fastbus.infer("label_proportion", logits, weak, head="sigmoid")
    assert isinstance(post, QuickPosterior)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTBUS_KERNELS", "0")
        expected = fastbus.infer("label_proportion", logits, weak, head="sigmoid")
    rounding = 1e-12 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(post.labels, expected.labels, rtol=0, atol=rounding)
    torch.testing.assert_close(post.log_likelihood, expected.log_likelihood, rtol=rounding, atol=0)


def test_time_in_proportion_to_the_bag() -> None:
    """Ten times the instances take ten times as long: a factor of 40 is no noise any more."""
    seconds = []
    for size in (10**4, 10**5):
        x = draw(size)
        solve(x, size // 3)
        runs = []
        for _ in range(3):
            start = time.perf_counter()
            solve(x, size // 3)
            runs.append(time.perf_counter() - start)
        seconds.append(min(runs))
    assert seconds[1] < 40 * seconds[0]
