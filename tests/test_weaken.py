"""Weak labels made from true ones: taken by the engine, satisfied by the truth, at the stated rates."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import fastbus
from fastbus import oracle
from fastbus.data import draws
from fastbus.supervision import Supervision

C = 3
T = np.array([[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]])


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Labels of scikit-learn's digits and class probabilities from a model of the other half."""
    X, y = load_digits(return_X_y=True)
    half = np.arange(len(y)) % 2 == 0
    probs = np.empty((len(y), 10))
    for part in (half, ~half):
        model = LogisticRegression(C=0.01, max_iter=300).fit(X[part] / 16, y[part])
        probs[~part] = model.predict_proba(X[~part] / 16)
    return y.astype(np.int64), probs


def small(classes: int, sizes: list[int], multi: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A few real labels, folded to so many classes, and probabilities that go with them."""
    y, probs = digits()
    n = sum(sizes)
    if multi:
        y = np.stack([y[:n] % 2 == 0, y[:n] > 4, y[:n] % 3 == 0], axis=1).astype(np.int64)
        return y, np.full((n, 3), 0.4)
    folded = np.stack([probs[:n, c::classes].sum(1) for c in range(classes)], axis=1)
    return y[:n] % classes, folded


class AtLeast(fastbus.Supervision):
    def __init__(self, m: int) -> None:
        self.m = m

    def num_states(self, bag_size: int) -> int:
        return self.m + 1

    def step(self, state: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return (state + label).clamp(max=self.m)

    def evidence(self, state: torch.Tensor, weak: torch.Tensor) -> torch.Tensor:
        return (state == self.m) == weak


MAJORITY = Supervision.from_function(lambda y: sum(y) * 2 > len(y), bag_size=3, num_labels=2)
SUM = Supervision.from_function(lambda y: sum(y), bag_size=2, num_labels=3)
BAGS, PAIRS, ONES = [4, 2, 3, 5], [2, 2, 2, 2, 2, 2], [1] * 9

# name: supervision, classes (0: multi-label), bag sizes, options
CASES: dict[str, tuple[Any, int, list[int], dict[str, Any]]] = {
    "mil": (fastbus.MultiInstance(), C, BAGS, {}),
    "mil binary": (fastbus.MultiInstance(), 2, BAGS, {}),
    "mil multi-label": (fastbus.MultiInstance(), 0, BAGS, {}),
    "mil noisy": (fastbus.MultiInstance(noise=(0.2, 0.3)), C, BAGS, {}),
    "counts": (fastbus.LabelProportion(), C, BAGS, {}),
    "counts binary": (fastbus.LabelProportion(), 2, BAGS, {}),
    "counts multi-label": (fastbus.LabelProportion(), 0, BAGS, {}),
    "counts noisy": (fastbus.LabelProportion(noise={-1: 0.2, 0: 0.5, 1: 0.3}), C, BAGS, {}),
    "fractions": (fastbus.LabelProportion(unit="fraction"), C, BAGS, {}),
    "fractions noisy": (fastbus.LabelProportion(unit="fraction", noise={0: 0.5, 1: 0.5}), 2, BAGS, {}),
    "interval": (fastbus.LabelProportion("interval"), C, BAGS, {"width": (1, 2), "open_ends": 0.3}),
    "interval fraction": (fastbus.LabelProportion("interval", unit="fraction"), C, BAGS, {"open_ends": 0.2}),
    "interval multi-label": (fastbus.LabelProportion("interval"), 0, BAGS, {"width": 2}),
    "soft": (fastbus.LabelProportion("soft"), C, BAGS, {}),
    "soft binary": (fastbus.LabelProportion("soft"), 2, BAGS, {"spread": 0.5}),
    "soft multi-label": (fastbus.LabelProportion("soft"), 0, BAGS, {}),
    "soft virtual": (fastbus.LabelProportion("soft", soft="virtual"), C, BAGS, {}),
    "soft scored": (fastbus.LabelProportion("soft", soft="virtual"), C, BAGS, {"probabilities": True}),
    "comparison": (fastbus.PairComparison(), 2, PAIRS, {}),
    "comparison labelled": (fastbus.PairComparison(pairs="labelled"), 2, PAIRS, {}),
    "comparison noisy": (fastbus.PairComparison(noise=(0.1, 0.2)), 2, PAIRS, {}),
    "similarity": (fastbus.PairSimilarity(), C, PAIRS, {}),
    "similarity noisy": (fastbus.PairSimilarity(noise=(0.2, 0.1)), 2, PAIRS, {}),
    "similarity confidence": (fastbus.SimilarityConfidence(), C, PAIRS, {"probabilities": True}),
    "similarity virtual": (fastbus.SimilarityConfidence(soft="virtual"), 2, PAIRS, {"probabilities": True}),
    "confidence difference": (fastbus.ConfidenceDifference(), 2, PAIRS, {"probabilities": True}),
    "positive confidence": (fastbus.PositiveConfidence(), 2, ONES, {"probabilities": True}),
    "partial": (fastbus.PartialLabel(), C, ONES, {"ratio": 0.4}),
    "partial in bags": (fastbus.PartialLabel(), C, BAGS, {"ratio": 0.4}),
    "complementary": (fastbus.ComplementaryLabel(), C, ONES, {}),
    "complementary sets": (fastbus.ComplementaryLabel(), C, BAGS, {"excluded": 2}),
    "noisy rate": (fastbus.NoisyLabel(rate=0.4), C, ONES, {}),
    "noisy matrix": (fastbus.NoisyLabel(T), C, BAGS, {}),
    "crowd": (fastbus.CrowdLabel(np.stack([T, T.T / T.T.sum(1, keepdims=True)])), C, ONES, {}),
    "crowd rate": (fastbus.CrowdLabel(rate=0.2), C, BAGS, {"annotators": 4, "answers": 2}),
    "semi": (fastbus.SemiSupervised(), C, ONES, {"labelled": 6}),
    "semi multi-label": (fastbus.SemiSupervised(), 0, BAGS, {"labelled": 0.5}),
    "positive-unlabelled": (fastbus.PositiveUnlabeled(0.2), 2, [11], {}),
    "positive-unlabelled sets": (fastbus.PositiveUnlabeled(0.3, constraint="jeffrey"), 2, [8, 9], {}),
    "unlabelled-unlabelled": (fastbus.UnlabeledUnlabeled((0.3, 0.8), constraint="jeffrey"), 2, BAGS, {}),
    "own": (AtLeast(2), C, BAGS, {}),
    "own binary": (AtLeast(2), 2, BAGS, {}),
    "function": (MAJORITY, C, [3, 3, 3], {}),
    "function categorical": (SUM, C, PAIRS, {}),
    "combination": (
        fastbus.LabelProportion() & fastbus.SemiSupervised() & fastbus.PartialLabel(),
        *(C, BAGS, {"labelled": 4, "ratio": 0.3}),
    ),
    "soft counts and gold": (
        fastbus.LabelProportion("soft") & fastbus.SemiSupervised(),
        *(C, BAGS, {"labelled": 9}),
    ),
    "soft counts and candidates": (
        fastbus.LabelProportion("soft") & fastbus.PartialLabel() & fastbus.ComplementaryLabel(),
        *(2, BAGS, {"ratio": 0.3}),
    ),
    "soft counts and multi-label gold": (
        fastbus.LabelProportion("soft") & fastbus.SemiSupervised(),
        *(0, BAGS, {"labelled": 9}),
    ),
    "confidence and gold": (
        fastbus.SimilarityConfidence() & fastbus.SemiSupervised(),
        *(C, PAIRS, {"labelled": 6, "probabilities": True}),
    ),
    "difference and gold": (
        fastbus.ConfidenceDifference() & fastbus.SemiSupervised(),
        *(2, PAIRS, {"labelled": 4, "probabilities": True}),
    ),
    "combination of options": (
        fastbus.MultiInstance() & fastbus.NoisyLabel() & fastbus.NoisyLabel(rate=0.1),
        *(C, BAGS, {"parts": [{"missing": 0.5}, {"rate": 0.2}, {}]}),
    ),
}
# -1 is unlabelled there, not missing
NEVER_MISSING = {"positive-unlabelled", "positive-unlabelled sets"}
# what the rule to be learned needs is an option of weaken, not of the rule
LEARNED = {"combination of options"}


def made(name: str, seed: int, **more: Any) -> tuple[Any, np.ndarray, Any]:
    rule, classes, sizes, options = CASES[name]
    labels, probabilities = small(classes or 3, sizes, multi=classes == 0)
    if "probabilities" in options:
        options = options | {"probabilities": probabilities}
    if name in NEVER_MISSING:
        more = {}
    weak = fastbus.weaken(rule, labels, None if sizes == ONES else sizes, seed, **options, **more)
    if name in LEARNED:
        rule = fastbus.MultiInstance() & fastbus.NoisyLabel(rate=0.2) & fastbus.NoisyLabel(rate=0.1)
    return rule, labels, weak


def flat(weak: Any) -> list[np.ndarray]:
    return [np.asarray(part) for part in weak] if isinstance(weak, tuple) else [np.asarray(weak)]


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
def test_the_engine_takes_them_and_the_truth_satisfies_them(name: str, missing: float) -> None:
    _, classes, sizes, _ = CASES[name]
    heads = [("softmax", classes)] if classes > 2 else [("softmax", 2), ("sigmoid", 1)]
    heads = heads if classes else [("sigmoid", 3)]
    for seed in range(3):
        rule, labels, weak = made(name, seed, missing=missing)
        for head, width in heads:
            logits = np.random.default_rng(seed).normal(size=(len(labels), width))
            fastbus.infer(rule, torch.from_numpy(logits), weak, bag_sizes=sizes, head=head)
            post = oracle.enumerate_posterior(rule, logits, weak, bag_sizes=sizes, head=head)
            truth = labels if head == "softmax" or classes == 0 else labels[:, None]
            assert np.isfinite(post.log_posterior_of(truth)).all(), (head, weak)


@pytest.mark.parametrize("name", CASES)
def test_seeds_repeat_and_generators_go_on(name: str) -> None:
    first, second = made(name, 5)[2], made(name, 5)[2]
    for a, b in zip(flat(first), flat(second), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_a_generator_is_used_up_and_global_chance_is_left_alone() -> None:
    y, _ = digits()
    rng = np.random.default_rng(0)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = fastbus.weaken(fastbus.NoisyLabel(rate=0.5), y, rng=rng)
    second = fastbus.weaken(fastbus.NoisyLabel(rate=0.5), y, rng=rng)
    assert (first != second).any()
    np.testing.assert_array_equal(first, fastbus.weaken(fastbus.NoisyLabel(rate=0.5), y, rng=0))
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002


@pytest.mark.parametrize("name", CASES)
def test_inputs_are_left_untouched(name: str) -> None:
    rule, classes, sizes, options = CASES[name]
    labels, probabilities = small(classes or 3, sizes, multi=classes == 0)
    if "probabilities" in options:
        options = options | {"probabilities": probabilities}
    before = labels.copy(), probabilities.copy()
    labels.flags.writeable = False
    probabilities.flags.writeable = False
    bags = np.repeat(np.arange(len(sizes)), sizes)
    weak = fastbus.weaken(rule, labels, None if sizes == ONES else bags, 1, **options)
    np.testing.assert_array_equal(labels, before[0])
    np.testing.assert_array_equal(probabilities, before[1])
    for part in flat(weak):
        assert not np.shares_memory(part, labels)
        part[...] = part  # the result is the caller's own


@pytest.mark.parametrize("name", ["partial in bags", "complementary sets", "noisy matrix", "crowd rate"])
def test_padded_results_fit_padded_predictions(name: str) -> None:
    rule, labels, rows = made(name, 2)
    _, _, padded = made(name, 2, padded=True)
    sizes = CASES[name][2]
    mask = np.arange(max(sizes)) < np.array(sizes)[:, None]
    np.testing.assert_array_equal(padded[mask], rows)
    logits = torch.zeros(*mask.shape, C)
    fastbus.infer(rule, logits, padded, torch.from_numpy(mask))
    assert len(labels) == mask.sum()


def test_sums_over_other_bags_take_tuples() -> None:
    y = draws.binary_labels(digits()[0], [0, 1, 8, 9])
    pairs, pool = draws.draw_similar_dissimilar_unlabeled(y, 30, 8, 0.25, 0)
    rule = fastbus.SimilarDissimilarUnlabeled(0.25)
    labels = (y[pairs.rows], y[pool.rows])
    weak = fastbus.weaken(rule, labels, (pairs.sizes, pool.sizes), 0)
    np.testing.assert_array_equal(weak[0], pairs.weak)
    logits = tuple(np.zeros((len(part), 2)) for part in labels)
    sizes = (pairs.sizes, pool.sizes)
    fastbus.infer(rule, tuple(map(torch.from_numpy, logits)), weak, bag_sizes=sizes)
    posts = oracle.enumerate_posterior(rule, logits, weak, bag_sizes=sizes)
    for post, truth in zip(posts, labels, strict=True):
        assert np.isfinite(post.log_posterior_of(truth)).all()


# -- bags --------------------------------------------------------------------------------------------


def test_rows_follow_integer_ids_and_else_the_first_appearance() -> None:
    labels = [1, 1, 0, 0, 1]
    counts = fastbus.LabelProportion()
    np.testing.assert_array_equal(fastbus.weaken(counts, labels, [1, 1, 0, 0, 1]), [0, 3])
    np.testing.assert_array_equal(fastbus.weaken(counts, labels, ["b", "b", "a", "a", "b"]), [3, 0])
    np.testing.assert_array_equal(fastbus.weaken(counts, labels, [7, 7, 3, 3, 7]), [3, 0])
    np.testing.assert_array_equal(fastbus.weaken(counts, labels, [2, 3]), [2, 1])
    bags = fastbus.Bags.from_ids(np.zeros((5, 1)), [1, 1, 0, 0, 2])
    weak = fastbus.weaken(counts, labels, bags)
    np.testing.assert_array_equal(bags.align(weak), [2, 0, 1])


# -- rates: within four standard deviations ------------------------------------------------------------


def close(hits: np.ndarray, rate: float) -> None:
    n = hits.size
    assert abs(float(hits.sum()) - n * rate) <= 4 * math.sqrt(n * rate * (1 - rate)) + 1e-9, hits.mean()


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_symmetric_noise_replaces_by_wrong_classes_only(rate: float) -> None:
    y, _ = digits()
    y = np.tile(y, 10)
    weak = fastbus.weaken(fastbus.NoisyLabel(), y, rng=1, rate=rate)
    close(weak != y, rate)
    shift = (weak - y)[weak != y] % 10
    for step in range(1, 10):
        close(shift == step, 1 / 9)


def test_any_transition_is_drawn_row_by_row() -> None:
    y = np.tile(digits()[0] % 3, 10)
    weak = fastbus.weaken(fastbus.NoisyLabel(T), y, rng=2)
    for true in range(3):
        for told in range(3):
            close(weak[y == true] == told, T[true, told])


def test_partial_and_complementary_rates() -> None:
    y, _ = digits()
    sets = fastbus.weaken(fastbus.PartialLabel(), y, rng=3, ratio=0.3)
    assert (sets[np.arange(len(y)), y] == 1).all()
    wrong = np.arange(10) != y[:, None]
    close(sets[wrong], 0.3)
    other = fastbus.weaken(fastbus.ComplementaryLabel(), y, rng=3)
    for step in range(1, 10):
        close((other - y) % 10 == step, 1 / 9)
    excluded = fastbus.weaken(fastbus.ComplementaryLabel(), y, rng=3, excluded=4)
    assert (excluded.sum(1) == 4).all() and not excluded[~wrong].any()
    close(excluded[wrong], 4 / 9)


def test_crowds_answer_through_their_confusions() -> None:
    y = np.tile(digits()[0] % 3, 5)
    matrices = np.stack([T, np.eye(3)])
    weak = fastbus.weaken(fastbus.CrowdLabel(matrices), y, rng=4, missing=0.25)
    close(weak == -1, 0.25)
    told = weak[:, 1] != -1
    np.testing.assert_array_equal(weak[told, 1], y[told])
    for true in range(3):
        seen = weak[(y == true) & (weak[:, 0] != -1), 0]
        for answer in range(3):
            close(seen == answer, T[true, answer])
    few = fastbus.weaken(fastbus.CrowdLabel(rate=0.1), y, rng=4, annotators=6, answers=2)
    assert ((few != -1).sum(1) == 2).all()
    close((few != -1)[:, 0], 1 / 3)


def test_bag_noise_has_its_rates() -> None:
    y = np.tile(digits()[0], 4)[:7180]
    bags = np.full(1436, 5)
    true = fastbus.weaken(fastbus.MultiInstance(), y, bags)
    told = fastbus.weaken(fastbus.MultiInstance(noise=(0.1, 0.4)), y, bags, 5)
    close(told[true == 0], 0.1)
    close(1 - told[true == 1], 0.4)
    counts = fastbus.weaken(fastbus.LabelProportion(), y, bags)
    noisy = fastbus.weaken(fastbus.LabelProportion(noise={-1: 0.3, 0: 0.5, 1: 0.2}), y, bags, 5)
    assert (counts.sum(1) == 5).all() and noisy.min() >= 0
    close((noisy - counts)[counts == 0] == 1, 0.2 / 0.7)  # renormalised within 0..K
    for error, chance in ((-1, 0.3), (0, 0.5), (1, 0.2)):
        close((noisy - counts)[(counts > 0) & (counts < 5)] == error, chance)


def test_missing_is_a_share_of_the_entries() -> None:
    y = np.tile(digits()[0], 4)[:7180]
    bags = np.full(1436, 5)
    close(fastbus.weaken(fastbus.LabelProportion(), y, bags, 6, missing=0.2) == -1, 0.2)
    fractions = fastbus.weaken(fastbus.LabelProportion(unit="fraction"), y, bags, 6, missing=0.2)
    close(np.isnan(fractions), 0.2)
    sets = fastbus.weaken(fastbus.PartialLabel(), y, rng=6, ratio=0.5, missing=0.2)
    close((sets == -1).all(1), 0.2)
    assert ((sets == -1).all(1) == (sets == -1).any(1)).all()


def test_soft_counts_are_calibrated() -> None:
    """Where every count is as frequent as any other, beliefs come true as often as they say."""
    counts = np.repeat(np.arange(6), 2000)
    labels = (np.arange(5) < counts[:, None]).astype(np.int64).ravel()
    beliefs = fastbus.weaken(fastbus.LabelProportion("soft"), labels, np.full(len(counts), 5), 7)
    np.testing.assert_allclose(beliefs.sum(-1), 1)
    came_true = counts[:, None] == np.arange(6)
    for belief in np.unique(beliefs.round(9)):
        hits = came_true[np.isclose(beliefs, belief)]
        assert abs(hits.sum() - hits.size * belief) <= 4 * math.sqrt(hits.size * belief * (1 - belief)) + 1


def test_soft_counts_of_a_scorer_are_sums_of_coins() -> None:
    y, _ = small(2, [3, 2])
    p = np.array([0.5, 0.5, 0.5, 0.2, 0.9])
    soft = fastbus.weaken(fastbus.LabelProportion("soft"), y, [3, 2], probabilities=p, num_classes=2)
    np.testing.assert_allclose(soft, [[0.125, 0.375, 0.375, 0.125], [0.08, 0.74, 0.18, 0]], atol=1e-12)


def test_confidences_keep_their_sign_and_their_meaning() -> None:
    y, p = small(2, [2] * 200)
    first, second = p[0::2, 1], p[1::2, 1]
    difference = fastbus.weaken(fastbus.ConfidenceDifference(), y, [2] * 200, probabilities=p[:, 1])
    np.testing.assert_allclose(difference, second - first, atol=1e-9)
    assert (difference < 0).any() and (difference > 0).any()
    same = fastbus.weaken(fastbus.SimilarityConfidence(), y, [2] * 200, probabilities=p)
    np.testing.assert_allclose(same, first * second + (1 - first) * (1 - second), atol=1e-9)
    positive = fastbus.weaken(fastbus.PositiveConfidence(), y, probabilities=p)
    np.testing.assert_allclose(positive[y == 1], p[y == 1, 1])
    assert np.isnan(positive[y == 0]).all()


def test_sorted_ties_are_coins() -> None:
    y = draws.binary_labels(digits()[0], [0, 1, 8, 9])[:1796]
    weak = fastbus.weaken(fastbus.PairComparison(), y, [2] * 898, 8)
    first, second = y[0::2], y[1::2]
    close(weak[first == second], 0.5)
    np.testing.assert_array_equal(weak[first != second], (first > second)[first != second])


def test_semi_supervised_labels_are_equal_per_class() -> None:
    y, _ = digits()
    weak = fastbus.weaken(fastbus.SemiSupervised(), y, rng=9, labelled=250)
    assert (np.bincount(weak[weak >= 0], minlength=10) == 25).all()
    np.testing.assert_array_equal(weak[weak >= 0], y[weak >= 0])
    uneven = fastbus.weaken(fastbus.SemiSupervised(), y, rng=9, labelled=253)
    assert sorted(np.bincount(uneven[uneven >= 0])) == [25] * 7 + [26] * 3


def test_what_stays_unlabelled_has_the_stated_prior() -> None:
    y = draws.binary_labels(digits()[0], [0, 1, 8, 9])
    weak = fastbus.weaken(fastbus.PositiveUnlabeled(0.25), y, rng=0)
    assert (y[weak == 1] == 1).all() and (weak == 1).sum() > 100
    rest = y[weak == -1]
    assert rest.sum() == math.floor(len(rest) * 0.25 + 0.5)
    with pytest.raises(fastbus.InputError, match=r"positives among .* expected 60.0%"):
        fastbus.weaken(fastbus.PositiveUnlabeled(0.6), y, rng=0)
    with pytest.raises(fastbus.InputError, match="draw_positive_unlabeled"):
        fastbus.weaken(fastbus.PositiveUnlabeled(0.4), y, rng=0, labelled=500)
    few = fastbus.weaken(fastbus.PositiveUnlabeled(0.4), y, rng=0, labelled=20)
    assert (few == 1).sum() == 20
