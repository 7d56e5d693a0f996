"""The CPU kernels alone: numbers against enumeration and many digits, and a status for whatever is unusual."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.inference.kernels.cpu_any import solve_any
from fastbus.inference.kernels.cpu_counts import LONGEST, solve_counts
from fastbus.inference.kernels.cpu_lattice import solve_lattice
from fastbus.inference.kernels.cpu_vector import LANES, exp_of_negative, kernel, load, store
from fastbus.oracle import enumerate_posterior

NAN, INF = float("nan"), float("inf")


def one_bag(size: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([0]), torch.tensor([size])


def poisson_binomial(logits: list[float], count: int) -> tuple[list[float], float]:
    """Posterior and log-likelihood of a count, in 50 digits, by adding one instance after the other."""
    with mpmath.workdps(50):
        both = [tuple(1 / (1 + mpmath.exp(sign * mpmath.mpf(value))) for sign in (1, -1)) for value in logits]

        def mass(chosen: list[tuple[mpmath.mpf, ...]]) -> list[mpmath.mpf]:
            out = [mpmath.mpf(1)]
            for no, yes in chosen:
                stay = [*(x * no for x in out), mpmath.mpf(0)]
                move = [mpmath.mpf(0), *(x * yes for x in out)]
                out = [a + b for a, b in zip(stay, move, strict=True)]
            return out

        total = mass(both)[count]
        rest = [mass(both[:k] + both[k + 1 :])[count - 1] if count else mpmath.mpf(0) for k in range(len(both))]
        return [float(yes * other / total) for (_, yes), other in zip(both, rest, strict=True)], float(
            mpmath.log(total)
        )


@kernel
def exponentials(x, out):  # type: ignore[no-untyped-def]
    for at in range(0, len(x), LANES):
        store(out, at, exp_of_negative(load(x, at)))


def test_exponential_to_the_last_bits() -> None:
    rng = np.random.default_rng(0)
    x = -np.concatenate(
        [rng.uniform(0, 708, 4000), rng.exponential(1.0, 3992), [0, 1e-300, 1e-17, 0.34, 0.35, 1, 700, 708]]
    )
    out = np.empty_like(x)
    exponentials(x, out)
    with mpmath.workdps(40):
        exact = np.array([float(mpmath.exp(mpmath.mpf(float(value)))) for value in x[::40]])
    assert np.abs(out[::40] / exact - 1).max() < 3e-16
    assert np.abs(out / np.exp(x) - 1).max() < 1e-15
    exponentials(np.full(8, -5000.0), out)
    assert (out[:8] > 0).all() and (out[:8] < 1e-300).all()


@pytest.mark.parametrize(
    ("scale", "size", "count"),
    [
        (1.0, 50, 45),
        (0.1, 50, 45),
        (50.0, 20, 7),
        (500.0, 20, 7),
        (500.0, 12, 1),
        (5.0, 3, 3),
        (5.0, 3, 0),
        (3.0, 1, 1),
    ],
)
def test_counts_in_many_digits(scale: float, size: int, count: int) -> None:
    """A count of 45 of 50 at probabilities of a tenth has itself a probability of 1e-38."""
    rng = np.random.default_rng(size)
    logits = scale * rng.normal(size=size) - (2.2 if size == 50 else 0.0)
    labels, likelihood, status = solve_counts(torch.tensor(logits)[:, None], *one_bag(size), torch.tensor([[count]]))
    expected, value = poisson_binomial(logits.tolist(), count)
    assert status == 0
    np.testing.assert_allclose(labels[:, 0].numpy(), expected, rtol=1e-12, atol=1e-290)
    assert likelihood.item() == pytest.approx(value, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("offset", [0.0, -30.0, -300.0, -5000.0, 40.0, 400.0])
@pytest.mark.parametrize("said", [0, 1])
def test_any_positive_in_many_digits(offset: float, said: int) -> None:
    logits = np.random.default_rng(3).normal(size=6) * 3 + offset
    labels, likelihood, status = solve_any(torch.tensor(logits)[:, None], *one_bag(6), torch.tensor([[said]]))
    with mpmath.workdps(5000 if abs(offset) > 100 else 50):
        p = [1 / (1 + mpmath.exp(-mpmath.mpf(value))) for value in logits]
        none = mpmath.fprod(1 - x for x in p)
        expected = [float(x / (1 - none)) if said else 0.0 for x in p]
        value = float(mpmath.log(1 - none if said else none))
    assert status == 0
    np.testing.assert_allclose(labels[:, 0].numpy(), expected, rtol=1e-12)
    assert likelihood.item() == pytest.approx(value, rel=1e-13, abs=1e-15)


def test_long_bags_of_any_positive() -> None:
    """More factors than a product can hold."""
    logits = torch.full((5000, 1), 0.25, dtype=torch.float64)
    _, likelihood, status = solve_any(logits, *one_bag(5000), torch.tensor([[0]]))
    assert status == 0 and likelihood.item() == pytest.approx(-5000 * math.log1p(math.exp(0.25)), rel=1e-12)


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("missing", [0.0, 0.4, 1.0])
def test_lattice_equals_enumeration(seen: bool, missing: float) -> None:
    generator = torch.Generator().manual_seed(int(10 * missing))
    rule = fastbus.MultiInstance() if seen else fastbus.LabelProportion()
    for size in (1, 2, 4, 6):
        logits = 2 * torch.randn(5, size, 3, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 3, (5, size), generator=generator)
        weak = torch.nn.functional.one_hot(labels, 3).sum(1)
        weak = weak.clamp(max=1) if seen else weak
        weak = torch.where(torch.rand(5, 3, generator=generator) < missing, -1, weak)
        truth = enumerate_posterior(rule, logits.numpy(), weak.numpy(), head="softmax")
        rows = (torch.arange(5) * size, torch.full((5,), size))
        got, likelihood, status = solve_lattice(logits.flatten(0, 1), *rows, weak, seen=seen)
        assert status == 0
        np.testing.assert_allclose(got.view_as(logits).numpy(), truth.labels, atol=1e-13)
        np.testing.assert_allclose(likelihood.numpy(), truth.log_likelihood, atol=1e-13)


def test_rows_outside_of_bags_get_nothing() -> None:
    """And nothing is read there."""
    logits = torch.full((7, 3), NAN, dtype=torch.float64)
    logits[1:3], logits[4:6] = 0.5, -1.0
    starts, sizes = torch.tensor([4, 1]), torch.tensor([2, 2])
    ones = torch.ones(2, 3, dtype=torch.long)
    for labels, _, status in (
        solve_counts(logits, starts, sizes, ones),
        solve_any(logits, starts, sizes, ones),
        solve_lattice(logits, starts, sizes, torch.tensor([[1, 1, 0], [2, 0, 0]]), seen=False),
    ):
        assert status == 0
        assert bool((labels[[0, 3, 6]] == 0).all()) and bool(labels[[1, 2, 4, 5]].sum(1).gt(0).all())


def spoiled(value: float) -> Tensor:
    logits = torch.zeros(4, 9, dtype=torch.float64)
    logits[2, 8] = value
    return logits


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e7])
def test_status_of_predictions(value: float) -> None:
    rows = one_bag(4)
    ones = torch.ones(1, 9, dtype=torch.long)
    few = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0, 0]])
    assert solve_counts(spoiled(value), *rows, ones)[2] != 0
    assert solve_any(spoiled(value), *rows, ones)[2] != 0
    assert solve_lattice(spoiled(value), *rows, few, seen=False)[2] != 0
    assert solve_lattice(spoiled(0.0), *rows, few, seen=False)[2] == 0


def test_status_of_weak_labels() -> None:
    logits, rows = torch.zeros(3, 2), one_bag(3)
    for wrong in (-2, 4):
        assert solve_counts(logits, *rows, torch.tensor([[1, wrong]]))[2] != 0
    for wrong in (-2, 2):
        assert solve_any(logits, *rows, torch.tensor([[1, wrong]]))[2] != 0
    for counts in ([1, 1], [2, 2], [0, 0], [4, -1], [3, -2]):
        assert solve_lattice(logits, *rows, torch.tensor([counts]), seen=False)[2] != 0, counts
    assert solve_lattice(logits, *rows, torch.tensor([[0, 0]]), seen=True)[2] != 0
    assert solve_lattice(logits[:1], *one_bag(1), torch.tensor([[1, 1]]), seen=True)[2] != 0


def test_status_of_rows_and_sizes() -> None:
    logits, weak = torch.zeros(3, 1), torch.tensor([[0]])
    for start, size in ((0, 0), (0, 4), (2, 2), (-1, 2)):
        rows = torch.tensor([start]), torch.tensor([size])
        assert solve_counts(logits, *rows, weak)[2] != 0
        assert solve_any(logits, *rows, weak)[2] != 0
        assert solve_lattice(logits.expand(3, 2).contiguous(), *rows, torch.tensor([[0, size]]), seen=False)[2] != 0
    long = torch.zeros(LONGEST + 1, 1)
    assert solve_counts(long, *one_bag(LONGEST + 1), weak)[2] != 0
    assert solve_counts(long, *one_bag(LONGEST), torch.tensor([[LONGEST // 2]]))[2] == 0


def test_status_beyond_the_budget() -> None:
    logits, counts = torch.zeros(6, 3), torch.tensor([[2, 2, 2]])
    assert solve_lattice(logits, *one_bag(6), counts, seen=False, budget=9)[2] == 0
    assert solve_lattice(logits, *one_bag(6), counts, seen=False, budget=8)[2] != 0
