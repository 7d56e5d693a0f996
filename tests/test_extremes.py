"""Nothing but finite numbers, however extreme the predictions, long the bags, or improbable the evidence.

`make extremes` runs the same sweeps with more than 100,000 bags.
"""

import math

import mpmath
import pytest
import torch

import fastbus
from fastbus.bench.extremes import IMPROBABLE, improbable, sweep_case, sweeps_planned, within_bounds
from fastbus.bench.problems import CASES

PLAN = sweeps_planned(bags=5_000, long_bags=100)


def test_the_plan_is_large_enough():
    # every sweep rounds up to all scales, so the totals are at least what is asked for
    assert sum(bags for _, _, bags, _ in PLAN) >= 5_000
    assert sum(long for *_, long in PLAN) >= 100


@pytest.mark.parametrize(("name", "coupling", "bags", "long"), PLAN, ids=[f"{n} {c}" for n, c, *_ in PLAN])
def test_every_number_is_finite(name, coupling, bags, long):
    sweep = sweep_case(CASES[name], bags, min(long, 6), seed=7, coupling=coupling, batches=(6, 1))
    assert sweep.bags >= bags
    assert sweep.non_finite == 0
    assert sweep.outside == 0


@pytest.mark.parametrize("row", IMPROBABLE, ids=str)
def test_improbable_counts_match_decimal_arithmetic(row):
    result = improbable(*row, checked=2)
    assert within_bounds(result), result


def test_the_example_of_the_design():
    # K = 1000, p = .1, w = 900: by symmetry every posterior is .9, and the likelihood is binomial
    with mpmath.workdps(40):
        truth = mpmath.log(mpmath.binomial(1000, 900)) + 900 * mpmath.log(0.1) + 100 * mpmath.log(0.9)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-10)):
        logits = torch.full((1, 1000, 1), math.log(0.1 / 0.9), dtype=dtype)
        post = fastbus.infer("label_proportion", logits, torch.tensor([900]), head="sigmoid")
        assert (post.labels - 0.9).abs().max() <= tolerance
        assert abs(float(post.log_likelihood[0]) / float(truth) - 1) <= tolerance


def test_mean_constraint_at_huge_odds_matches_high_precision():
    # three masses of odds e^4000 and e^-3000: theta is of that size, and d must still be met
    logits = torch.tensor([[[4000.0], [-3000.0]]], dtype=torch.float64)
    post = fastbus.infer(fastbus.ConfidenceDifference(), logits, torch.tensor([0.25]), head="sigmoid")
    first, second = post.labels[0, :, 0].tolist()
    assert math.isclose(second - first, 0.25, abs_tol=1e-12)
    with mpmath.workdps(4000):
        # weights of (y1, y2) up to a factor: (0, 0), (0, 1), (1, 0), (1, 1)
        neither, plus, minus, both = (mpmath.exp(power) for power in (3000, 0, 7000, 4000))
        d = mpmath.mpf("0.25")
        # plus t - minus / t = d (plus t + neither + both + minus / t), a quadratic in t = e^theta
        a, b, c = plus * (1 - d), -d * (neither + both), -minus * (1 + d)
        t = (-b + mpmath.sqrt(b * b - 4 * a * c)) / (2 * a)
        total = plus * t + neither + both + minus / t
        truth = [float((minus / t + both) / total), float((plus * t + both) / total)]
    assert math.isclose(first, truth[0], abs_tol=1e-10)
    assert math.isclose(second, truth[1], abs_tol=1e-10)
