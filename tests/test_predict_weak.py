"""Predicted counts: the most probable ones by enumeration, filling the bag where classes exclude each other."""

import itertools
import math
import time
from collections import defaultdict

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import fastbus
from fastbus.inference import exclusive_counts as lattice
from fastbus.inference.exclusive_counts import exclusive_counts, rounded_counts
from fastbus.inference.predict_weak import expected_weak


def iris_probs() -> torch.Tensor:
    """Probabilities (150, 3) of a classifier that has seen the widths of the sepals alone, hence is unsure."""
    X, y = load_iris(return_X_y=True)
    rows = np.random.default_rng(0).permutation(150)
    width = X[rows, 1:2]
    return torch.from_numpy(LogisticRegression().fit(width, y[rows]).predict_proba(width))


def enumerated(probs: torch.Tensor) -> dict[tuple[int, ...], float]:
    """P(counts) of a bag (K, C) by adding up every labelling."""
    K, C = probs.shape
    found: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for labels in itertools.product(range(C), repeat=K):
        counts = tuple(labels.count(c) for c in range(C))
        found[counts].append(math.prod(float(probs[k, y]) for k, y in enumerate(labels)))
    return {counts: math.fsum(masses) for counts, masses in found.items()}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_counts_are_the_mode_by_enumeration(size: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(10 * size + classes)
    logits = 2 * torch.randn(20, size, classes, generator=generator, dtype=torch.float64)
    probs = logits.softmax(-1)
    found = exclusive_counts(probs)
    assert found.sum(1).tolist() == [size] * 20
    for bag, counts in zip(probs, found.tolist(), strict=True):
        masses = enumerated(bag)
        assert masses[tuple(counts)] >= max(masses.values()) * (1 - 1e-8)


def test_bags_of_unequal_sizes_of_real_flowers_are_filled() -> None:
    probs = iris_probs()
    sizes = torch.tensor([5, 1, 3, 5, 2, 1, 6] * 6 + [12])
    assert int(sizes.sum()) == 150
    found = expected_weak(fastbus.LabelProportion(), probs, sizes, True, exclusive=True)
    assert torch.equal(found.sum(1), sizes)
    starts = (sizes.cumsum(0) - sizes).tolist()
    for start, size, counts in zip(starts, sizes.tolist(), found.tolist(), strict=True):
        if size < 7:
            masses = enumerated(probs[start : start + size])
            assert masses[tuple(counts)] >= max(masses.values()) * (1 - 1e-8)
    apart = expected_weak(fastbus.LabelProportion(), probs, sizes, True, exclusive=False)
    assert not torch.equal(apart.sum(1), sizes), "each class by itself does not fill the bags"
    shares = expected_weak(fastbus.LabelProportion(unit="fraction"), probs, sizes, True, exclusive=True)
    torch.testing.assert_close(shares.double(), found / sizes[:, None].double(), atol=1e-6, rtol=0)


def test_two_exclusive_classes_agree_with_the_count_of_one() -> None:
    probs = iris_probs()[:, :2]
    probs = probs / probs.sum(1, keepdim=True)
    sizes = torch.tensor([7] * 20 + [10])
    both = expected_weak(fastbus.LabelProportion(), probs, sizes, True, exclusive=True)
    second = expected_weak(fastbus.LabelProportion(), probs, sizes, False, exclusive=True)
    assert torch.equal(both[:, 1], second) and torch.equal(both.sum(1), sizes)


def test_a_bag_of_one_is_the_most_probable_class() -> None:
    probs = iris_probs()
    one_hot = torch.nn.functional.one_hot(probs.argmax(1), 3)
    assert torch.equal(exclusive_counts(probs[:, None, :]), one_hot)


def test_ties_go_to_earlier_classes() -> None:
    even = torch.full((1, 1, 3), 1 / 3, dtype=torch.float64)
    assert exclusive_counts(even).tolist() == [[1, 0, 0]] == rounded_counts(even).tolist()
    # two instances, three even classes: two of different classes are twice as probable as two of the same
    assert (
        exclusive_counts(even.expand(1, 2, 3)).tolist() == [[1, 1, 0]] == rounded_counts(even.expand(1, 2, 3)).tolist()
    )
    assert exclusive_counts(torch.full((1, 3, 2), 0.5)).tolist() == [[2, 1]]
    certain = torch.eye(3, dtype=torch.float64)[[2, 2, 0, 2]][None]
    assert exclusive_counts(certain).tolist() == [[1, 0, 3]] == rounded_counts(certain).tolist()


def test_lattices_too_large_are_rounded_and_still_fill_the_bag(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(8, 40, 12, generator=generator).softmax(-1)
    found = exclusive_counts(probs)
    assert found.sum(1).tolist() == [40] * 8
    expected = probs.double().sum(1)
    assert (found - expected).abs().max() < 1
    # no count that gained an instance had a smaller remainder than one that did not
    up = found > expected.floor()
    remainder = expected - expected.floor()
    assert all(bag[gain].min() >= bag[~gain].max() for bag, gain in zip(remainder, up, strict=True))
    small = torch.randn(200, 5, 3, generator=generator).softmax(-1)
    exact = exclusive_counts(small)
    monkeypatch.setattr(lattice, "MOVES", 0)
    assert 0.7 < (exclusive_counts(small) == exact).all(1).double().mean() < 1


def test_sigmoid_heads_and_noisy_counts_are_judged_class_by_class() -> None:
    probs = iris_probs()[:10]
    sizes = torch.tensor([5, 5])
    free = expected_weak(fastbus.LabelProportion(), probs, sizes, True, exclusive=False)
    noisy = fastbus.LabelProportion(noise={-1: 0.01, 0: 0.98, 1: 0.01})
    reported = expected_weak(noisy, probs, sizes, True, exclusive=True)
    for bag in range(2):
        for c in range(3):
            p = probs[5 * bag : 5 * bag + 5, c]
            masses = enumerated(torch.stack([1 - p, p], 1))
            best = max(masses, key=lambda counts: masses[counts])
            assert int(free[bag, c]) == best[1] == int(reported[bag, c])


def test_very_large_bags_of_two_classes_are_rounded() -> None:
    probs = torch.full((1, 50_000, 2), 0.5, dtype=torch.float64)
    probs[0, :, 0] = 0.3
    probs[0, :, 1] = 0.7
    start = time.perf_counter()
    assert exclusive_counts(probs).tolist() == [[15_000, 35_000]]
    assert time.perf_counter() - start < 2
