"""Exact means exact: every case against enumeration, every fast path against the generic chain."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fastbus.bench.problems import CASES, Case, RandomProblem
from fastbus.bench.pu_bias import World, optimum
from fastbus.bench.verify_couplings import compare_couplings
from fastbus.bench.verify_exact import SCALES, bound, check_case, solved
from fastbus.inference.chain import Chain, solve_chain
from fastbus.inference.closed_form import solve_any, solve_similar
from fastbus.inference.count import solve_count
from fastbus.inference.ending import Ending, SoftEnding
from fastbus.inference.infer import infer
from fastbus.inference.product_blocks import product_chains
from fastbus.numerics import NEG_INF
from fastbus.supervision import LabelProportion, MultiInstance, PairSimilarity, Supervision
from fastbus.supervision.automaton import transition_table

BAGS = 40  # in each precision: one batch of every scale
EXACT = 1e-12
SOFT = ("none", "jeffrey", "mean")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_posterior_and_likelihood_are_enumerated(case: Case) -> None:
    row = check_case(case, BAGS, seed=1)
    assert row.bags >= 2 * BAGS
    assert max(row.float64) <= bound(torch.float64, row.largest_bag)
    assert max(row.float32) <= bound(torch.float32, row.largest_bag)
    assert row.truths_possible


def test_the_table_covers_the_catalogue() -> None:
    from fastbus.supervision.base import REGISTRY

    spoken = " ".join(CASES)
    assert [name for name in REGISTRY if name not in spoken] == []


# -- two heads, one answer ------------------------------------------------------------------------


def _as_softmax(problem: RandomProblem) -> RandomProblem:
    """The same binary problem with two classes, the negative one at logit 0."""
    x = problem.logits
    return problem._replace(logits=torch.cat([torch.zeros_like(x), x], -1), head="softmax")


@pytest.mark.parametrize(
    "case",
    [case for name, case in CASES.items() if "[sigmoid, C=1]" in name and "dissimilar" not in name],
    ids=lambda case: case.name,
)
def test_one_sigmoid_equals_two_classes(case: Case) -> None:
    problem = case.make(np.random.default_rng(3), scale=3.0)  # logits, at this scale
    (one,), (two,) = solved(problem), solved(_as_softmax(problem))
    assert torch.allclose(one.labels[..., 0], two.labels[..., 1], rtol=0, atol=EXACT)
    assert torch.allclose(one.log_likelihood, two.log_likelihood, rtol=EXACT, atol=EXACT)


# -- fast paths equal the generic chain -----------------------------------------------------------


def _potentials(generator: torch.Generator, N: int, K: int, Y: int, scale: float) -> Tensor:
    """Unnormalised log potentials, now and then a certain label."""
    u = scale * torch.randn(N, K, Y, generator=generator, dtype=torch.float64)
    sure = torch.rand(N, K, 1, generator=generator) < 0.1
    return u.masked_fill(sure & (torch.arange(Y) == 0), NEG_INF)


def _ending(generator: torch.Generator, N: int, Z: int, soft: str, open_states: Tensor) -> Ending:
    """Random evidence that leaves all of `open_states` (Z,) possible, and a soft statement on it."""
    log_evidence = torch.rand(N, Z, generator=generator, dtype=torch.float64).log()
    if soft == "none":
        shut = torch.rand(N, Z, generator=generator) < 0.3
        return Ending(log_evidence.masked_fill(shut & ~open_states, NEG_INF))
    active = torch.rand(N, generator=generator) < 0.8
    group, value = torch.arange(Z)[None], torch.arange(Z, dtype=torch.float64)
    if soft == "mean":
        highest = value[open_states].max() - value[open_states].min()
        part = torch.rand(N, generator=generator, dtype=torch.float64)
        target = value[open_states].min() + highest * part
        return Ending(log_evidence, SoftEnding("mean", target, active, group, value))
    target = torch.rand(N, Z, generator=generator, dtype=torch.float64) * open_states
    target = target / target.sum(-1, keepdim=True)
    return Ending(log_evidence, SoftEnding("jeffrey", target, active, group, value))


def _agree(fast: tuple[Tensor, Tensor], plain: tuple[Tensor, Tensor], lengths: Tensor, K: int) -> None:
    possible = plain[1] > NEG_INF
    assert possible.any()
    assert torch.equal(possible, fast[1] > NEG_INF)
    real = (torch.arange(K) < lengths[:, None]) & possible[:, None]
    assert torch.allclose(fast[0].exp()[real], plain[0].exp()[real], rtol=0, atol=EXACT)
    assert torch.allclose(fast[1][possible], plain[1][possible], rtol=EXACT, atol=EXACT)


def _chain(supervision: Supervision, K: int, Z: int, Y: int, lengths: Tensor, end: Ending) -> Chain:
    return Chain(transition_table(supervision, K, Z, Y)[None], lengths, end)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("soft", SOFT)
@pytest.mark.parametrize("K", [1, 2, 7, 40])
def test_counts_equal_the_chain(K: int, soft: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(K)
    N, Z = 20, K + 1
    u = _potentials(generator, N, K, 2, scale)
    lengths = torch.randint(1, K + 1, (N,), generator=generator)
    if soft != "none":  # every count must be possible to be given a weight
        u, lengths = u.clamp(min=-50.0), torch.full((N,), K)
    end = _ending(generator, N, Z, soft, torch.ones(Z, dtype=torch.bool))
    plain = solve_chain(u, _chain(LabelProportion(), K, Z, 2, lengths, end))
    _agree(solve_count(u, lengths, end), plain, lengths, K)


def test_counts_may_end_below_the_bag_size() -> None:
    generator = torch.Generator().manual_seed(0)
    u = _potentials(generator, 6, 12, 2, 1.0).clamp(min=-50.0)
    lengths = torch.full((6,), 12)
    short = Ending(torch.zeros(6, 4, dtype=torch.float64).masked_fill(torch.arange(4) != 3, NEG_INF))
    wide = Ending(torch.zeros(6, 13, dtype=torch.float64).masked_fill(torch.arange(13) != 3, NEG_INF))
    plain = solve_chain(u, _chain(LabelProportion(), 12, 13, 2, lengths, wide))
    _agree(solve_count(u, lengths, short), plain, lengths, 12)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("soft", SOFT)
@pytest.mark.parametrize("K", [1, 3, 30])
def test_any_positive_equals_the_chain(K: int, soft: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(K)
    N = 30
    u = _potentials(generator, N, K, 2, scale)
    u = u if soft == "none" else u.clamp(min=-50.0)
    lengths = torch.randint(1, K + 1, (N,), generator=generator)
    end = _ending(generator, N, 2, soft, torch.ones(2, dtype=torch.bool))
    plain = solve_chain(u, _chain(MultiInstance(), K, 2, 2, lengths, end))
    _agree(solve_any(u, lengths, end), plain, lengths, K)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("soft", SOFT)
@pytest.mark.parametrize("C", [2, 3, 10])
def test_similar_pairs_equal_the_chain(C: int, soft: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(C)
    N, Z = 40, 3 + C
    u = _potentials(generator, N, 2, C, scale)
    u = u if soft == "none" else u.clamp(min=-50.0)
    lengths = torch.full((N,), 2)
    ends = (torch.arange(Z) == 1) | (torch.arange(Z) == 2)
    end = _ending(generator, N, Z, soft, ends)
    plain = solve_chain(u, _chain(PairSimilarity(), 2, Z, C, lengths, end))
    _agree(solve_similar(u, lengths, end), plain, lengths, 2)


LATTICES = [
    name
    for name in CASES
    if name.startswith(("label_proportion", "multi_instance")) and "&" not in name and "softmax, C=2..4" in name
]


@pytest.mark.parametrize("scale", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("name", LATTICES)
def test_the_lattice_equals_the_product_of_rules(name: str, scale: float) -> None:
    problem = CASES[name].make(np.random.default_rng(5), scale=scale, sizes=(1, 6))
    (post,) = solved(problem, coupling="joint")
    inside = post._problem
    labels = torch.zeros(*inside.log_potential.shape, dtype=torch.float64)
    likelihood = torch.zeros(len(inside.sizes), dtype=torch.float64)
    for bags, chain in product_chains(inside):
        assert chain is not None
        log_posterior, likelihood[bags] = solve_chain(inside.log_potential[bags], chain)
        labels[bags] = log_posterior.exp()
    restored = inside.layout.restore(labels, 0.0)
    assert torch.allclose(post.labels, restored, rtol=0, atol=EXACT)
    assert torch.allclose(post.log_likelihood, likelihood, rtol=EXACT, atol=EXACT)


# -- what is not exact says so ---------------------------------------------------------------------


@pytest.mark.parametrize("supervision", [LabelProportion(), MultiInstance()], ids=lambda s: s.name)
def test_fallbacks_are_close_and_say_that_they_are_not_exact(supervision: Supervision) -> None:
    row = compare_couplings(supervision, K=5, C=3, scale=1.0, bags=20, seed=2)
    assert row.passed
    assert 1e-6 < row.fallback < 0.02
    counts = torch.tensor([[2, 2, 1]])
    weak = counts if isinstance(supervision, LabelProportion) else counts.clamp(max=1)
    post = infer(supervision, torch.randn(1, 5, 3), weak, budget=1)
    assert not post.exact
    assert post.likelihood != "exact"


@pytest.mark.parametrize(("n", "expected"), [(8, 0.80), (128, 0.92)])
def test_the_bias_of_small_unlabelled_sets(n: int, expected: float) -> None:
    row = optimum(World(), "jeffrey", n)
    assert row.passed
    assert row.high == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [10, 100, 1000])
def test_bounds_in_fractions_are_those_in_counts(size, dtype):
    """Three tenths of 100 are 30 instances, though float32 stores a little more than three tenths."""
    tenths = torch.tensor([[3, 7]], dtype=dtype) / 10
    logits = torch.zeros(1, size, 1, dtype=torch.float64)
    shares = infer(LabelProportion("interval", unit="fraction"), logits, tenths, head="sigmoid")
    bounds = torch.tensor([[3 * size // 10, 7 * size // 10]])
    counts = infer(LabelProportion("interval"), logits, bounds, head="sigmoid")
    assert torch.equal(shares.log_likelihood, counts.log_likelihood)
