"""Steps of one fixed shape: batches hold whole bags, posteriors equal `infer`, and a step moves all weights."""

import importlib.util
import os
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

import fastbus
from fastbus.errors import InputError
from fastbus.inference.fixed import Instances, Lattice, OneVsRest, Pairs, Step
from fastbus.models.build import build_backbone
from fastbus.training.graphed import GraphedTraining
from fastbus.training.packing import pack_bags, pack_pools
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import PosteriorRisk
from fastbus.training.views import image_views

KERNELS = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"


def test_every_bag_stands_whole_in_one_step_of_an_epoch() -> None:
    sizes = np.random.default_rng(0).integers(1, 9, 50)
    packed = pack_bags(sizes, 24, 5, np.random.default_rng(1))
    first = np.cumsum(sizes) - sizes
    seen = []
    for step in range(len(packed.rows)):
        for bag, start, size in zip(packed.bags[step], packed.starts[step], packed.sizes[step], strict=True):
            if size:
                seen.append(int(bag))
                assert packed.rows[step, start : start + size].tolist() == list(range(first[bag], first[bag] + size))
                assert packed.real[step, start : start + size].all()
        assert packed.real[step].sum() == packed.sizes[step].sum()
    assert sorted(seen) == list(range(50))
    with pytest.raises(InputError, match="fit"):
        pack_bags(np.array([30]), 24, 5, np.random.default_rng(1))


def test_pools_are_drawn_in_equal_shares() -> None:
    rows = pack_pools([np.arange(10), np.arange(10, 13)], (4, 2), 15, np.random.default_rng(0))
    assert rows.shape == (15, 6)
    assert (rows[:, :4] < 10).all() and (rows[:, 4:] >= 10).all()
    assert np.bincount(rows[:, :4].ravel(), minlength=10).tolist() == [6] * 10


def logits_of(rows: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)) * 2


def step_of(pairs: int) -> Step:
    every = torch.arange(pairs)
    return Step(torch.arange(2 * pairs), every, 2 * every, torch.full((pairs,), 2))


def test_pairs_equal_infer() -> None:
    logits, sizes = logits_of(12, 2), torch.full((6,), 2)
    hard = torch.tensor([1, 0, 1, 1, 0, 0])
    soft = torch.tensor([0.9, 0.1, 0.5, 0.3, 1.0, 0.0])
    signed = torch.tensor([0.8, -0.6, 0.0, 0.3, -0.99, 0.5])
    same = torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 1]], dtype=torch.float64)
    ordered = torch.tensor([[0.5, 1, 0, 0.5], [0.5, 0, 1, 0.5]], dtype=torch.float64)
    cases = {
        "pair_similarity": (hard, Pairs(weights=same[hard])),
        "pair_comparison": (hard, Pairs(weights=ordered[hard])),
        "similarity_confidence": (soft, Pairs(target=soft)),
        "confidence_difference": (signed, Pairs(difference=signed)),
    }
    for name, (weak, posterior) in cases.items():
        expected = fastbus.infer(name, logits, weak, bag_sizes=sizes).labels
        assert torch.allclose(posterior(logits, step_of(6)), expected, atol=1e-6), name


def test_instances_equal_infer() -> None:
    logits = logits_of(7, 4)
    candidates = torch.tensor([[1, 1, 0, 0]] * 6 + [[0, 0, 1, 1]])
    evidence = torch.where(candidates == 1, 0.0, -torch.inf).double()
    every = torch.arange(7)
    found = Instances(evidence)(logits, Step(every, every, every, torch.ones(7, dtype=torch.long)))
    expected = fastbus.infer("partial_label", logits, candidates, bag_sizes=torch.ones(7, dtype=torch.long)).labels
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.skipif(
    not (KERNELS and importlib.util.find_spec("triton")), reason="needs Triton and a GPU, or TRITON_INTERPRET=1"
)
@pytest.mark.parametrize("kind", ["label_proportion", "multi_instance"])
@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("coupling", ["joint", "independent"])
def test_kernels_of_bags_equal_infer(kind: str, classes: int, coupling: Literal["joint", "independent"]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = torch.tensor([4, 7, 1, 9, 6])
    bag = torch.arange(5).repeat_interleave(sizes)
    labels = torch.randint(classes, (len(bag),), generator=torch.Generator().manual_seed(classes))
    counts = torch.zeros(5, classes, dtype=torch.long).index_put_((bag, labels), torch.tensor(1), accumulate=True)
    weak = counts if kind == "label_proportion" else (counts > 0).long()
    logits = logits_of(len(bag), classes) * 3
    expected = fastbus.infer(kind, logits, weak, bag_sizes=sizes, coupling=coupling, budget=10**6).labels
    way = Lattice if coupling == "joint" else OneVsRest
    posterior = way(weak.to(device), sizes, seen=kind == "multi_instance")
    step = Step(torch.arange(len(bag)), torch.arange(5), sizes.cumsum(0) - sizes, sizes)
    found = posterior(logits.to(device), Step(*(x.to(device) for x in step))).cpu()
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_step_moves_the_weights_and_their_average() -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (12, 1, 28, 28), dtype=np.uint8))
    weak = torch.tensor([1, 0, 1, 1, 0, 1])
    same = torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 1]], dtype=torch.float64)
    network = build_backbone("lenet5", (1, 28, 28), 2, seed=0)
    recipe = Recipe(warmup=1)
    before = [p.detach().clone() for p in network.parameters()]
    training = GraphedTraining(
        network,
        images,
        PosteriorRisk(Pairs(weights=same[weak]), recipe),
        image_views((1, 28, 28), flip=False),
        recipe,
        steps=6,
        seed=0,
    )
    for epoch in range(3):
        training.run(training.load(pack_bags(np.full(6, 2), 6, 3, np.random.default_rng(epoch))))
    assert int(training.count) == 6
    assert all(not torch.equal(a, b) for a, b in zip(before, training.parameters, strict=True))
    assert all(not torch.equal(a, b) for a, b in zip(training.averaged, training.parameters, strict=True))
    assert bool(torch.isfinite(training.loss))
