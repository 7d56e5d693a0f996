"""Draws of bags, pairs and sets: the rates they promise, without replacement where that is possible."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fastbus
from fastbus.data import draws

DIGITS = load_digits().target
BINARY = draws.binary_labels(DIGITS, [0, 1, 8, 9])  # about 40 % positives


def unique(rows: np.ndarray) -> bool:
    return len(np.unique(rows)) == len(rows)


def test_bag_sizes_are_rounded_normals_of_two_at_least() -> None:
    bags = draws.draw_bags(50_000, 4000, 10.4, 2.0, 0)
    assert not bags.replaced and unique(bags.rows) and len(bags.rows) == bags.sizes.sum()
    # cutting off instead of rounding would lose half an instance
    assert abs(bags.sizes.mean() - 10.4) < 4 * 2 / math.sqrt(4000)
    assert abs(bags.sizes.std() - math.sqrt(4 + 1 / 12)) < 0.1
    assert draws.draw_bags(1000, 300, 1.0, 1.0, 0).sizes.min() == 2
    np.testing.assert_array_equal(np.bincount(bags.bags), bags.sizes)


def test_bags_share_instances_only_where_the_set_is_too_small() -> None:
    bags = draws.draw_bags(len(DIGITS), 800, 8, 1, 1)
    assert bags.replaced
    assert all(unique(bag) for bag in np.split(bags.rows, np.cumsum(bags.sizes)[:-1]))
    tiny = draws.draw_bags(3, 4, 9, 0, 1)
    assert tiny.replaced and tiny.rows.max() <= 2


@pytest.mark.parametrize("prior", [0.4, 0.65])
def test_comparison_pairs(prior: float) -> None:
    pairs = draws.draw_pairs(BINARY, 500, 2, kind="comparison", prior=prior)
    seen = Counter(map(tuple, BINARY[pairs.rows].reshape(-1, 2).tolist()))
    assert seen[1, 1] == math.floor(prior**2 * 500 + 0.5)
    assert seen[0, 0] == math.floor((1 - prior) ** 2 * 500 + 0.5)
    assert seen[0, 1] == 0 and sum(seen.values()) == 500
    assert pairs.weak is not None and (pairs.weak == 1).all() and not pairs.replaced
    assert unique(pairs.rows)


def test_similarity_pairs_keep_every_similar_pair() -> None:
    pairs = draws.draw_pairs(BINARY, 500, 3, kind="similarity", prior=0.4)
    first, second = BINARY[pairs.rows].reshape(-1, 2).T
    assert pairs.weak is not None
    np.testing.assert_array_equal(pairs.weak, first == second)
    assert pairs.weak.mean() == 0.52
    ordered = first[first != second]
    assert abs(ordered.mean() - 0.5) < 4 * 0.5 / math.sqrt(len(ordered))
    weak = fastbus.weaken(fastbus.PairSimilarity(), BINARY[pairs.rows], pairs.sizes)
    np.testing.assert_array_equal(weak, pairs.weak)


def test_similarity_of_any_number_of_classes() -> None:
    pairs = draws.draw_pairs(DIGITS, 5000, 4, kind="similarity")
    first, second = pairs.rows.reshape(-1, 2).T
    assert pairs.replaced and (first != second).all()
    assert pairs.weak is not None
    assert abs(pairs.weak.mean() - 0.1) < 4 * math.sqrt(0.09 / 5000)


def test_small_pools_are_used_evenly() -> None:
    pairs = draws.draw_pairs(BINARY[:40], 200, 5, kind="comparison", prior=0.5)
    assert pairs.replaced
    times = np.bincount(pairs.rows, minlength=40)
    for label in (0, 1):
        assert np.ptp(times[BINARY[:40] == label]) <= 3
    first, second = pairs.rows.reshape(-1, 2).T
    assert (first != second).all()


@pytest.mark.parametrize(("labelled", "unlabelled", "prior"), [(250, 1000, 0.4), (50, 900, 0.2), (100, 500, 0.9)])
def test_case_control_sets_have_the_stated_prior(labelled: int, unlabelled: int, prior: float) -> None:
    drawn = draws.draw_positive_unlabeled(BINARY, labelled, unlabelled, prior, 6)
    assert drawn.weak is not None
    y = BINARY[drawn.rows]
    assert (drawn.weak == 1).sum() == labelled and (y[drawn.weak == 1] == 1).all()
    assert y[drawn.weak == -1].sum() == math.floor(unlabelled * prior + 0.5)
    assert (drawn.weak == -1).sum() == unlabelled
    assert drawn.replaced or unique(drawn.rows)


def test_unlabelled_sets_have_their_priors() -> None:
    drawn = draws.draw_unlabeled_sets(BINARY, (0.2, 0.7), (600, 500), 7)
    shares = [part.mean() for part in np.split(BINARY[drawn.rows], np.cumsum(drawn.sizes)[:-1])]
    assert shares == [0.2, 0.7] and not drawn.replaced and unique(drawn.rows)
    rule = fastbus.UnlabeledUnlabeled((0.2, 0.7))
    weak = fastbus.weaken(rule, BINARY[drawn.rows], drawn.sizes, sets=drawn.weak)
    np.testing.assert_array_equal(weak, [0, 1])
    # without being told, large sets are recognised by their make-up
    np.testing.assert_array_equal(fastbus.weaken(rule, BINARY[drawn.rows], drawn.sizes, 0), [0, 1])


def test_semi_supervised_split() -> None:
    split = draws.split_semi_supervised(DIGITS, 40, 8)
    assert (np.bincount(DIGITS[split.labelled]) == 4).all()
    np.testing.assert_array_equal(split.unlabelled, np.arange(len(DIGITS)))


def test_seeds_repeat() -> None:
    for make in (
        lambda seed: draws.draw_bags(100, 9, 5, 1, seed),
        lambda seed: draws.draw_pairs(BINARY, 50, seed, kind="similarity", prior=0.3),
        lambda seed: draws.draw_positive_unlabeled(BINARY, 10, 50, 0.3, seed),
        lambda seed: draws.draw_unlabeled_sets(BINARY, [0.5], [60], seed),
    ):
        np.testing.assert_array_equal(make(1).rows, make(1).rows)
        np.testing.assert_array_equal(make(1).rows, make(np.random.default_rng(1)).rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draws.draw_bags(10, 0, 3, 1, 0), "num_bags=0"),
        (lambda: draws.draw_bags(10, 2, float("nan"), 1, 0), "mean=nan"),
        (lambda: draws.draw_bags(10, 2, 3, 1, None), "no rng"),  # type: ignore[arg-type]
        (lambda: draws.draw_pairs(DIGITS, 5, 0, kind="comparison"), "binary_labels"),
        (lambda: draws.draw_pairs(BINARY, 5, 0, kind="nearness"), "kind='nearness'"),  # type: ignore[arg-type]
        (lambda: draws.draw_pairs(BINARY, 5, 0, kind="comparison", prior=40), "prior=40"),
        (lambda: draws.draw_pairs([1, 1, 1], 5, 0, kind="comparison", prior=0.5), "lack one of the two"),
        (lambda: draws.draw_positive_unlabeled([0, 0, 0], 1, 2, 0.5, 0), "lack one of the two"),
        (lambda: draws.draw_unlabeled_sets(BINARY, [0.5], [1, 2], 0), "one size a prior"),
        (lambda: draws.split_semi_supervised(DIGITS, 1790, 0), "Ask for fewer"),
    ],
)
def test_complaints(call: Any, message: str) -> None:
    with pytest.raises(fastbus.InputError, match=message):
        call()
