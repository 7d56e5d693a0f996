"""from_function: the smallest chain of any function of the labels, and the right answers from it."""

import itertools
import random
import time
from collections.abc import Callable, Hashable

import numpy as np
import pytest
import torch

import fastbus
from fastbus import LabelProportion, MultiInstance, PairSimilarity, Supervision
from fastbus.bench.own_rules import AtLeast, LastPositive, SumModulo, first_equals_last, majority, parity
from fastbus.oracle import enumerate_posterior

Function = Callable[[tuple[int, ...]], Hashable]


def at_least_two(labels: tuple[int, ...]) -> bool:
    return sum(labels) >= 2


def weighted_sum(m: int) -> Function:
    """Positions count: the k-th label weighs k."""
    return lambda labels: sum(k * label for k, label in enumerate(labels, 1)) % m


def distinct(labels: tuple[int, ...]) -> int:
    return len(set(labels))


def last_positive(labels: tuple[int, ...]) -> int:
    return max((k for k, label in enumerate(labels, 1) if label), default=0)


def random_function(seed: int, values: int) -> Function:
    """Values drawn for every labelling, with nothing behind them."""

    def draw(labels: tuple[int, ...]) -> int:
        return random.Random(repr((seed, labels))).randrange(values)

    return draw


# name, function, bag size, labels
FUNCTIONS: dict[str, tuple[Function, int, int]] = {
    "majority": (majority, 7, 2),
    "majority-even": (majority, 6, 2),
    "majority-of-three": (majority, 4, 3),
    "parity": (parity, 8, 2),
    "parity-of-three": (parity, 5, 3),
    "threshold": (at_least_two, 6, 2),
    "first-equals-last": (first_equals_last, 6, 2),
    "first-equals-last-of-three": (first_equals_last, 4, 3),
    "weighted-sum-3": (weighted_sum(3), 7, 2),
    "weighted-sum-5": (weighted_sum(5), 5, 3),
    "distinct": (distinct, 5, 3),
    "last-positive": (last_positive, 5, 2),
    "constant": (lambda labels: "yes", 4, 2),
    "all-labels": (lambda labels: labels, 3, 2),
    "one-instance": (lambda labels: labels[0], 1, 4),
    **{f"random-{seed}": (random_function(seed, 2 + seed % 2), 4, 2 + seed % 2) for seed in range(8)},
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def residuals(function: Function, bag_size: int, num_labels: int) -> tuple[int, ...]:
    """After each number of labels: how many functions of the remaining ones the prefixes leave."""
    sizes = []
    for read in range(bag_size + 1):
        left = {
            tuple(function(prefix + rest) for rest in itertools.product(range(num_labels), repeat=bag_size - read))
            for prefix in itertools.product(range(num_labels), repeat=read)
        }
        sizes.append(len(left))
    return tuple(sizes)


@every_function
def test_smallest_chain(name: str) -> None:
    """Two prefixes with different residual functions need two states (Myhill and Nerode), so no
    layered chain can be smaller than the residuals are many."""
    rule = Supervision.from_function(*FUNCTIONS[name])
    assert rule.layer_sizes == residuals(*FUNCTIONS[name])
    assert rule.num_states(rule.bag_size) == max(rule.layer_sizes)


def test_sizes_known_by_hand() -> None:
    """Parity remembers a bit, a threshold of two a clamped count, the ends the first label."""
    assert Supervision.from_function(parity, 6).layer_sizes == (1, 2, 2, 2, 2, 2, 2)
    assert Supervision.from_function(at_least_two, 5).layer_sizes == (1, 2, 3, 3, 3, 2)
    assert Supervision.from_function(first_equals_last, 5).layer_sizes == (1, 2, 2, 2, 2, 2)
    assert Supervision.from_function(distinct, 4, 3).layer_sizes == (1, 3, 6, 7, 3)
    assert Supervision.from_function(lambda labels: 0, 3).layer_sizes == (1, 1, 1, 1)


@every_function
def test_folding_gives_the_function(name: str) -> None:
    function, bag_size, num_labels = FUNCTIONS[name]
    rule = Supervision.from_function(function, bag_size, num_labels)
    labellings = list(itertools.product(range(num_labels), repeat=bag_size))
    table = torch.tensor(labellings)
    state = torch.zeros(len(table), dtype=torch.long)
    for position in range(bag_size):
        state = rule.step(state, table[:, position], position=position)
        assert bool((state >= 0).all()) and int(state.max()) < rule.layer_sizes[position + 1]
    assert [rule.values[last] for last in state.tolist()] == [function(labels) for labels in labellings]


def test_twelve_binary_labels_take_no_time() -> None:
    calls = []

    def function(labels: tuple[int, ...]) -> bool:
        calls.append(labels)
        return majority(labels)

    start = time.perf_counter()
    rule = Supervision.from_function(function, bag_size=12)
    assert time.perf_counter() - start < 2
    # the function is called once for each labelling, and never again
    assert sorted(calls) == list(itertools.product(range(2), repeat=12))
    fastbus.infer(rule, torch.zeros(1, 12, 1), torch.tensor([1]), head="sigmoid")
    assert len(calls) == 2**12
    # needs at most the count of positives, and less where the outcome is settled
    assert max(rule.layer_sizes) <= 13


# -- inference with it -------------------------------------------------------------------------


def expected_posterior(function: Function, logits: np.ndarray, weak: list[Hashable]) -> tuple[np.ndarray, np.ndarray]:
    """By the definition: condition the product of the predictions on the function's value."""
    prior = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))  # (B, K, Y)
    B, K, Y = prior.shape
    posterior, likelihood = np.zeros_like(prior), np.zeros(B)
    for bag in range(B):
        for labels in itertools.product(range(Y), repeat=K):
            if function(labels) == weak[bag]:
                weight = np.prod([prior[bag, k, label] for k, label in enumerate(labels)])
                likelihood[bag] += weight
                for k, label in enumerate(labels):
                    posterior[bag, k, label] += weight
    return posterior / likelihood[:, None, None], np.log(likelihood)


@every_function
def test_answers_are_those_of_the_function(name: str) -> None:
    function, bag_size, num_labels = FUNCTIONS[name]
    rule = Supervision.from_function(function, bag_size, num_labels)
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((len(rule.values), bag_size, num_labels))
    # binary rules read one class: a weak label (B,) speaks about the second of two
    weak = torch.tensor(rule.weak_labels(bag_size))
    post = fastbus.infer(rule, torch.from_numpy(logits), weak)
    posterior, log_likelihood = expected_posterior(function, logits, list(rule.values))
    np.testing.assert_allclose(post.labels.numpy(), posterior, rtol=0, atol=1e-12)
    np.testing.assert_allclose(post.log_likelihood.numpy(), log_likelihood, rtol=0, atol=1e-12)
    if num_labels == 2:
        margin = logits[..., 1:] - logits[..., :1]
        alone = fastbus.infer(rule, torch.from_numpy(margin), weak, head="sigmoid")
        np.testing.assert_allclose(alone.labels.numpy(), posterior[..., 1:], rtol=0, atol=1e-12)


SAME_RULES = {
    "at-least": (at_least_two, 5, 2, AtLeast(2)),
    "any": (any, 4, 2, MultiInstance()),
    "count": (sum, 5, 2, LabelProportion()),
    "sum-modulo": (lambda labels: sum(labels) % 4, 4, 3, SumModulo(4)),
    "last-positive": (last_positive, 5, 2, LastPositive()),
    "similar": (first_equals_last, 2, 3, PairSimilarity()),
}


@pytest.mark.parametrize("name", SAME_RULES)
def test_equal_to_the_rule_written_by_hand(name: str) -> None:
    function, bag_size, num_labels, by_hand = SAME_RULES[name]
    rule = Supervision.from_function(function, bag_size, num_labels)
    rng = np.random.default_rng(1)
    truth = rng.integers(0, num_labels, (6, bag_size))
    weak = torch.tensor([int(function(tuple(labels))) for labels in truth.tolist()])
    logits = torch.from_numpy(2 * rng.standard_normal((6, bag_size, num_labels)))
    ours, theirs = (fastbus.infer(which, logits, weak) for which in (rule, by_hand))
    torch.testing.assert_close(ours.labels, theirs.labels, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.log_likelihood, theirs.log_likelihood, rtol=0, atol=1e-12)
    enumerated = enumerate_posterior(by_hand, logits, weak)
    np.testing.assert_allclose(ours.labels.numpy(), enumerated.labels, rtol=0, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3])
def test_one_binary_function_for_every_class(classes: int) -> None:
    """A function of binary labels serves each class of a head, coupled where they exclude each other."""
    rule = Supervision.from_function(at_least_two, 4)
    rng = np.random.default_rng(2)
    truth = rng.integers(0, classes, (5, 4))
    weak = torch.tensor([[int((row == c).sum() >= 2) for c in range(classes)] for row in truth])
    logits = torch.from_numpy(rng.standard_normal((5, 4, classes)))
    for head in ("sigmoid", "softmax"):
        ours, theirs = (fastbus.infer(which, logits, weak, head=head) for which in (rule, AtLeast(2)))
        assert ours.exact
        torch.testing.assert_close(ours.labels, theirs.labels, rtol=0, atol=1e-12)
        torch.testing.assert_close(ours.log_likelihood, theirs.log_likelihood, rtol=0, atol=1e-12)


# -- weak labels of any type -------------------------------------------------------------------


def winner(labels: tuple[int, ...]) -> str:
    ones = sum(labels)
    return "tie" if 2 * ones == len(labels) else ("one" if 2 * ones > len(labels) else "zero")


@pytest.mark.parametrize("function", [winner, lambda labels: (labels[0], labels[-1])])
def test_other_weak_labels_by_their_place_in_values(function: Function) -> None:
    rule = Supervision.from_function(function, 4)
    every = set(map(function, itertools.product(range(2), repeat=4)))
    assert set(rule.values) == every and len(rule.values) == len(every)
    assert list(rule.weak_labels(4)) == list(range(len(every)))
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((len(every), 4, 2))
    posterior, _ = expected_posterior(function, logits, list(rule.values))
    post = fastbus.infer(rule, torch.from_numpy(logits), torch.arange(len(every)))
    np.testing.assert_allclose(post.labels.numpy(), posterior, rtol=0, atol=1e-12)


def test_numbers_stand_for_themselves() -> None:
    """Whole numbers keep their value even where they have gaps; so do halves, and truth values."""
    doubled = Supervision.from_function(lambda labels: 10 * sum(labels), 3)
    assert sorted(doubled.weak_labels(3)) == [0, 10, 20, 30]
    halves = Supervision.from_function(lambda labels: sum(labels) / 2, 3)
    assert sorted(halves.weak_labels(3)) == [0.0, 0.5, 1.0, 1.5]
    assert sorted(Supervision.from_function(majority, 3).weak_labels(3)) == [0, 1]
    logits = torch.zeros(1, 3, 1, dtype=torch.float64)
    for rule, weak in ((doubled, torch.tensor([20])), (halves, torch.tensor([1.0]))):
        post = fastbus.infer(rule, logits, weak, head="sigmoid")
        torch.testing.assert_close(post.labels, torch.full_like(logits, 2 / 3))
        assert post.log_likelihood.item() == pytest.approx(np.log(3 / 8))


@pytest.mark.parametrize("missing", [-1, -1.0, float("nan")])
def test_signs_of_missing_labels_are_no_weak_labels(missing: float) -> None:
    """Evidence would be dropped without a word: -1 and NaN mark missing weak labels."""
    with pytest.raises(fastbus.SupervisionError, match="-1 or NaN"):
        Supervision.from_function(lambda labels: 1 if majority(labels) else missing, 3)


@pytest.mark.parametrize("scalar", [np.int64, np.float64, torch.tensor], ids=["int64", "float64", "tensor"])
def test_numbers_of_numpy_and_torch_stand_for_themselves(scalar: Callable[[int], object]) -> None:
    """The tree meets 30 first, so codes by order of appearance would turn the weak label round."""
    rule = Supervision.from_function(lambda labels: scalar(30 - 10 * sum(labels)), 3)
    assert sorted(rule.weak_labels(3)) == [0, 10, 20, 30]
    post = fastbus.infer(rule, torch.zeros(1, 3, 1), torch.tensor([30]), head="sigmoid")
    assert post.map().flatten().tolist() == [0, 0, 0]


def test_truth_values_of_numpy_are_truth_values() -> None:
    rule = Supervision.from_function(lambda labels: np.mean(labels) < 0.5, 3)
    post = fastbus.infer(rule, torch.full((1, 3, 1), 5.0), torch.tensor([True]), head="sigmoid")
    assert post.map().sum() == 1


def test_whole_tensors_are_no_weak_labels() -> None:
    with pytest.raises(fastbus.SupervisionError, match="hashable"):
        Supervision.from_function(lambda labels: torch.tensor(labels), 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_fractions_are_known_in_every_precision(dtype: torch.dtype) -> None:
    """One fifth has no exact binary form, and another one in each type."""
    rule = Supervision.from_function(lambda labels: sum(labels) / 5, 5)
    fastbus.testing.check_supervision(rule)
    weak = torch.tensor([0.2, 0.6], dtype=dtype)
    post = fastbus.infer(rule, torch.zeros(2, 5, 1), weak, head="sigmoid")
    torch.testing.assert_close(post.labels.sum((1, 2)), torch.tensor([1.0, 3.0]))
