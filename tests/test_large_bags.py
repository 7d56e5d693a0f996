"""Counts of large bags: quadrature equals the recursion over counts, and a mean count is one shift of all odds."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap
from torch.nn.functional import logsigmoid

import fastbus
from catalogue import CASES, infer, random_batch
from fastbus.bench import large_bags
from fastbus.inference import count_routes
from fastbus.inference.count import solve_count
from fastbus.inference.count_routes import partition_count, solve_counts
from fastbus.inference.ending import Ending, SoftEnding
from fastbus.inference.quadrature import solve_hard_count
from fastbus.inference.shift import solve_mean
from fastbus.oracle import enumerate_posterior
from tensors import close, leaf

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


# -- through infer -----------------------------------------------------------------------------


@pytest.fixture
def always_quadrature(monkeypatch):
    """Bags of every size are large; yields how many batches took that road."""
    taken = []

    def noted(*given):
        taken.append(given[0].shape)
        return solve_hard_count(*given)

    monkeypatch.setenv("FASTBUS_KERNELS", "0")
    monkeypatch.setattr(count_routes, "LARGE", 0)
    monkeypatch.setattr(count_routes, "solve_hard_count", noted)
    return taken


ONE_COUNT = [
    f"{kind}-{form}"
    for kind, forms in {
        "label_proportion": ("sigmoid1", "sigmoid2", "binary"),
        "label_proportion-fraction": ("sigmoid1", "sigmoid2", "binary"),
        "positive_unlabeled-count": ("sigmoid1", "softmax2"),
        "unlabeled_unlabeled-count": ("sigmoid1", "softmax2"),
    }.items()
    for form in forms
]


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("name", ONE_COUNT)
def test_small_bags_equal_enumeration(name, scale, always_quadrature):
    case = CASES[name]
    for seed in range(3):
        batch = random_batch(case, seed=seed, scale=scale)
        post = infer(case, batch)
        truth = enumerate_posterior(case.supervision, batch.logits, batch.weak, batch.mask, head=case.head)
        close(post.labels, torch.from_numpy(truth.labels), 1e-11)
        close(post.log_likelihood, torch.from_numpy(truth.log_likelihood), 1e-11)
    assert len(always_quadrature) == 3


@pytest.mark.parametrize("scale", [1.0, 12.0])
def test_gradcheck(scale, always_quadrature):
    lengths, odds = torch.tensor([6, 4, 6]), normal(3, 6, scale=scale)
    real = torch.arange(6) < lengths[:, None]
    # the third chain is told what its predictions say, and is nearly certain at the larger scale
    ending = Ending(hard(torch.tensor([2, 3, int((odds[2] > 0).sum())]), 7))

    def solve(x):
        log_posterior, likelihood = solve_counts(potentials(x), lengths, ending)
        return log_posterior[real], likelihood

    assert gradcheck(solve, leaf(odds))
    assert gradgradcheck(lambda x: solve(x)[1], leaf(odds))
    assert always_quadrature


def test_neighbours_and_padding_do_not_matter():
    """The nodes of a chain depend on its own variance, so a batch of unlike chains is the test."""
    scales = torch.tensor([0.01, 1.0, 5.0, 40.0, 300.0]).double()
    odds, sizes = normal(5, 120) * scales[:, None], torch.tensor([120, 80, 120, 33, 120])
    counts = torch.tensor([3, 40, 119, 16, 60])
    together = solve_hard_count(potentials(odds), sizes, hard(counts, 121))
    for row, K in enumerate(sizes.tolist()):
        alone = solve_hard_count(potentials(odds[[row], :K]), sizes[[row]], hard(counts[[row]], K + 1))
        close(together[0][row, :K].exp(), alone[0][0].exp())
        close(together[1][row], alone[1][0])
    order = torch.randperm(120, generator=torch.Generator().manual_seed(1))
    mixed = solve_hard_count(potentials(odds[:1, order]), sizes[:1], hard(counts[:1], 121))
    close(mixed[0][0].exp(), together[0][0, order].exp())


@pytest.mark.parametrize("count", [40, 200, 360])
def test_float32_logits(count):
    """Everything inside is float64, so the same numbers give the same answer, rounded once."""
    logits, weak = normal(1, 400, 1, scale=2.0).float(), torch.tensor([count])
    single, double = (fastbus.infer("label_proportion", x, weak, head="sigmoid") for x in (logits, logits.double()))
    assert single.labels.dtype == torch.float32
    close(single.labels, double.labels.float(), 1e-6)
    close(single.log_likelihood.double(), double.log_likelihood, 1e-6)


def test_function_transforms():
    """vmap over logits keeps the quadrature; over weak labels, whose values it hides, the recursion takes over."""
    logits, weak = normal(3, 2, 60, 1), torch.tensor([[20, 5], [30, 31], [0, 60]])

    def answers(x, w):
        post = fastbus.infer("label_proportion", x, w, head="sigmoid", validate=False)
        return post.labels, post.log_likelihood

    for out in (vmap(lambda x: answers(x, weak[1]))(logits), vmap(answers)(logits, weak[[1, 1, 1]])):
        for member, labels, likelihood in zip(logits, *out, strict=True):
            close((labels, likelihood), answers(member, weak[1]), 1e-10)
    slopes = vmap(grad(lambda x: answers(x, weak[0])[1].sum()))(logits)
    for member, slope in zip(logits, slopes, strict=True):
        close(slope, answers(member, weak[0])[0] - torch.sigmoid(member), 1e-10)


# -- the measured promises -----------------------------------------------------------------------


@pytest.mark.parametrize("w", [14, 30, 270])
def test_both_references_of_the_measurement_agree(w):
    logits = large_bags.logits_of(300, seed=2)
    plain, product = large_bags.by_recursion(logits, w), large_bags.by_fft(logits, w, checked=5)
    close(product.posterior, plain.posterior[:5], 1e-11)
    close(product.log_likelihood, plain.log_likelihood, 1e-11)


def test_measured_rows_hold_and_a_worse_one_does_not():
    found = list(large_bags.rows((100, 20_000), runs=1, seed=0))
    assert [row.reference for row in found] == ["recursion, all"] * 2 + ["FFT, 8 of them"] * 2
    assert all(row.holds for row in found)
    assert not found[0]._replace(posterior_error=1e-9).holds
    assert not found[0]._replace(single_error=1e-4).holds
    straight = [found[0]._replace(K=K, seconds=3e-6 * K) for K in (100, 10_000, 100_000)]
    assert large_bags.slope(straight) == pytest.approx(1.0)
