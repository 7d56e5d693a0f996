"""Whole labellings: the most probable one and samples satisfy the weak label, and follow enumeration."""

import numpy as np
import pytest
import torch

from fastbus.bench.problems import CASES, Case
from fastbus.bench.verify_decode import (
    ASSIGNED,
    LEAST_P,
    MAP_BOUND,
    check_map,
    check_samples,
)
from fastbus.bench.verify_exact import solved
from fastbus.errors import CouplingError
from fastbus.inference.infer import infer
from fastbus.supervision import LabelProportion, MultiInstance


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_labelling_is_more_probable_than_the_map(case: Case) -> None:
    row = check_map(case, seed=1)
    assert row.shortfall <= MAP_BOUND


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_samples_follow_the_posterior(case: Case) -> None:
    row = check_samples(case, seed=1, draws=500, turns=2)
    assert row.impossible == 0
    assert row.p_value >= LEAST_P


@pytest.mark.parametrize("name", ASSIGNED)
def test_the_map_of_a_bag_beyond_the_budget_is_an_assignment(name: str) -> None:
    row = check_map(CASES[name], seed=2, budget=1, turns=15)
    assert row.how == "assignment"
    assert row.shortfall <= MAP_BOUND


def test_the_map_of_a_large_bag_keeps_its_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 60, 10, generator=generator)
    counts = torch.tensor([[6] * 10, [15, 15, 15, 15, *[0] * 6]])
    labels = infer(LabelProportion(), logits, counts).map()
    found = torch.nn.functional.one_hot(labels, 10).sum(1)
    assert torch.equal(found, counts)
    seen = (counts > 0).long()
    labels = infer(MultiInstance(), logits, seen, budget=1).map()
    found = torch.nn.functional.one_hot(labels, 10).sum(1)
    assert torch.equal((found > 0).long(), seen)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
@pytest.mark.parametrize("flat", [False, True])
def test_labellings_lie_as_the_predictions_do(head: str, flat: bool) -> None:
    name = f"label_proportion [{head}, C=2..4]"
    rng = np.random.default_rng(0)
    problem = CASES[name].make(rng)
    while (problem.mask is None) != flat:
        problem = CASES[name].make(rng)
    (post,) = solved(problem)
    shape = problem.logits.shape if head == "sigmoid" else problem.logits.shape[:-1]
    labels, samples = post.map(), post.sample(5)
    assert labels.shape == shape and samples.shape == (5, *shape)
    assert labels.dtype == samples.dtype == torch.long
    if not flat:
        assert (labels[~problem.mask] == -1).all() and (samples[:, ~problem.mask] == -1).all()
        assert (labels[problem.mask] >= 0).all() and (samples[:, problem.mask] >= 0).all()


def test_samples_obey_their_generator_and_leave_the_global_one_alone() -> None:
    post = infer("multi_instance", torch.zeros(1, 6, 1), torch.tensor([1]), head="sigmoid")
    before = torch.get_rng_state()
    first, second = (post.sample(20, torch.Generator().manual_seed(seed)) for seed in (4, 4))
    other = post.sample(20, torch.Generator().manual_seed(5))
    post.sample(20)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_beyond_the_budget_there_are_no_samples() -> None:
    post = infer("label_proportion", torch.zeros(1, 6, 3), torch.tensor([[2, 2, 2]]), budget=1)
    with pytest.raises(CouplingError, match="Raise budget="):
        post.sample(1)


def test_beyond_the_budget_noisy_counts_have_no_map() -> None:
    supervision = LabelProportion(noise={-1: 0.2, 0: 0.6, 1: 0.2})
    post = infer(supervision, torch.zeros(1, 6, 3), torch.tensor([[2, 2, 2]]), budget=1)
    with pytest.raises(CouplingError, match="Raise budget="):
        post.map()
