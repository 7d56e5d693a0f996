"""Counts of large bags: quadrature equals the recursion over counts, and a mean count is one shift of all odds."""

import pytest
import torch
from torch.nn.functional import logsigmoid

from fastbus.inference.count import solve_count
from fastbus.inference.count_routes import partition_count, solve_counts
from fastbus.inference.ending import Ending, SoftEnding
from fastbus.inference.quadrature import solve_hard_count
from fastbus.inference.shift import solve_mean

torch.set_num_threads(1)
INF = float("inf")


def potentials(log_odds):
    return torch.stack([logsigmoid(-log_odds), logsigmoid(log_odds)], -1)


def hard(counts, states):
    return torch.where(torch.arange(states) == counts[:, None], 0.0, -INF).double()


def normal(*shape, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scale


def agree(log_odds, counts, lengths=None):
    N, K = log_odds.shape
    lengths = torch.full((N,), K) if lengths is None else lengths
    u, evidence = potentials(log_odds), hard(counts, K + 1)
    fast, plain = solve_hard_count(u, lengths, evidence), solve_count(u, lengths, Ending(evidence))
    real = torch.arange(K) < lengths[:, None]
    torch.testing.assert_close(fast[0].exp()[real], plain[0].exp()[real], rtol=0, atol=1e-10)
    torch.testing.assert_close(fast[1], plain[1], rtol=1e-12, atol=1e-10)
    return fast


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 20.0, 300.0, 1e4])
@pytest.mark.parametrize("K", [2, 3, 17, 150])
def test_equals_the_recursion(K, scale):
    counts = torch.tensor([0, 1, K // 2, K - 1, K])
    agree(normal(5, K, scale=scale), counts)
    agree(normal(5, K, scale=scale), counts // 2, torch.tensor([K, max(1, K // 2), K, K, K]))


def test_improbable_counts():
    _, likelihood = agree(torch.full((1, 300), -2.1972245773362196).double(), torch.tensor([270]))
    assert float(likelihood) < -400
    signs = torch.where(normal(3, 300) > 0, 20.0, -20.0).double()
    likely = (signs > 0).sum(1)
    agree(signs, likely + torch.tensor([0, 1, -60]))


def test_certain_instances():
    odds = normal(4, 60, scale=3.0)
    odds[:, :10], odds[:, 10:25] = INF, -INF
    log_posterior, likelihood = agree(odds, torch.tensor([10, 45, 30, 9]))
    assert likelihood.isfinite().tolist() == [True, True, True, False]
    assert not bool(log_posterior.isnan().any())


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_gradients_of_likelihood_and_posterior(scale):
    lengths, evidence = torch.tensor([60, 50]), Ending(hard(torch.tensor([20, 3]), 61))
    results = []
    for solve in (solve_counts, partition_count):
        x = normal(2, 60, scale=scale).requires_grad_()
        log_posterior, likelihood = solve(potentials(x), lengths, evidence)
        (first,) = torch.autograd.grad(likelihood.sum(), x, retain_graph=True)
        (second,) = torch.autograd.grad((log_posterior.exp()[..., 1] * normal(2, 60)).sum(), x)
        results.append((first, second))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-10)
    assert float(results[0][1].abs().max()) > 1e-3


def test_mean_count_equals_the_states():
    K = 40
    odds = normal(4, K, scale=2.0)
    odds[1, :5] = INF
    lengths, target = torch.tensor([40, 40, 30, 40]), torch.tensor([12.3, 20.0, 29.9, 40.0]).double()
    states = torch.arange(K + 1)
    soft = SoftEnding("mean", target, torch.ones(4, dtype=torch.bool), states[None], states.double())
    ending = Ending(torch.zeros(4, K + 1).double(), soft)
    fast, plain = solve_mean(potentials(odds), lengths, target), solve_count(potentials(odds), lengths, ending)
    real = torch.arange(K) < lengths[:, None]
    torch.testing.assert_close(fast[0].exp()[real], plain[0].exp()[real], rtol=0, atol=1e-10)
    torch.testing.assert_close(fast[1], plain[1], rtol=1e-11, atol=1e-10)


def test_mixed_batches_are_put_back_in_order():
    evidence = hard(torch.tensor([5, 0, 70, 33]), 81)
    evidence[1], evidence[2, 60:] = 0.0, 0.0
    u, lengths = potentials(normal(4, 80)), torch.tensor([80, 80, 80, 44])
    mixed, plain = solve_counts(u, lengths, Ending(evidence)), partition_count(u, lengths, Ending(evidence))
    torch.testing.assert_close([mixed[0].exp(), mixed[1]], [plain[0].exp(), plain[1]], rtol=1e-12, atol=1e-10)
