"""Draws: which instances of a labelled set go into bags, pairs and sets, for simulations and benchmarks.

Every draw returns a `Grouping`: rows of the caller's set, bag after bag. Instances are drawn without
replacement where the set is large enough; `replaced` says where it was not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, NoReturn

import numpy as np

from fastbus.data.weaken_inputs import Array, as_array, read_labels, read_rng
from fastbus.errors import InputError, choice

Seed = np.random.Generator | int


class Grouping(NamedTuple):
    """Instances drawn into bags, and the weak labels where the draw itself settles them."""

    rows: Array  # (M,) rows of the set, bag after bag
    sizes: Array  # (B,)
    weak: Array | None  # (B,) or (M,), as the supervision takes them
    replaced: bool  # whether an instance may stand in several bags

    @property
    def bags(self) -> Array:
        """The bag of each drawn instance, (M,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


def binary_labels(labels: object, positives: Sequence[int]) -> Array:
    """(N,) 0/1: whether the class is among `positives`."""
    return np.isin(as_array(labels, "labels"), list(positives)).astype(np.int64)


def draw_bags(num_instances: int, num_bags: int, mean: float, std: float, rng: Seed) -> Grouping:
    """Bags whose sizes are rounded draws of Normal(mean, std), at least 2.

    If the set holds fewer instances than all bags together, bags share instances (replaced=True), but
    none stands twice in one bag as long as the bag is no larger than the set.
    """
    random = _generator(rng, "draw_bags")
    _count(num_instances, "num_instances", "draw_bags")
    _count(num_bags, "num_bags", "draw_bags")
    if not (math.isfinite(mean) and mean > 0 and math.isfinite(std) and std >= 0):
        _complain("draw_bags", f"mean={mean}, std={std}", "mean > 0 and std >= 0", "Give finite numbers.")
    sizes = np.maximum(np.rint(random.normal(mean, std, size=num_bags)), 2).astype(np.int64)
    total = int(sizes.sum())
    if total <= num_instances:
        return Grouping(random.permutation(num_instances)[:total], sizes, None, False)
    bags = [random.choice(num_instances, size, replace=size > num_instances) for size in sizes.tolist()]
    return Grouping(np.concatenate(bags), sizes, None, True)


def draw_pairs(
    labels: object,
    num_pairs: int,
    rng: Seed,
    *,
    kind: Literal["comparison", "similarity"],
    prior: float | None = None,
) -> Grouping:
    """Pairs of two independent draws, with their weak labels (B,).

    prior: the share of positives pi among the draws, by default that of the set: pi^2 of the pairs are
    (+,+), (1-pi)^2 (-,-), the rest mixed, all rounded. "comparison" puts mixed pairs in order, the
    positive first, so that its weak label is always 1. "similarity" leaves them in random order; without
    a prior it takes any number of classes, and pairs are drawn as they come.
    """
    name = "draw_pairs"
    random = _generator(rng, name)
    choice(kind, ("comparison", "similarity"), f"{name}: kind", InputError)
    _count(num_pairs, "num_pairs", name)
    truth, num_classes = _single_labels(labels, name)
    if kind == "similarity" and prior is None:
        stream, replaced = _pairs_of(np.arange(len(truth)), num_pairs, random, name)
        same = truth[stream[:, 0]] == truth[stream[:, 1]]
        return _paired(stream, same.astype(np.int64), replaced)
    _binary(num_classes, name)
    share = float(truth.mean()) if prior is None else prior
    _prior(share, name)
    both = math.floor(share**2 * num_pairs + 0.5)
    neither = min(math.floor((1 - share) ** 2 * num_pairs + 0.5), num_pairs - both)
    mixed = num_pairs - both - neither
    positives, replaced_positives = _take(np.flatnonzero(truth == 1), 2 * both + mixed, random, name)
    negatives, replaced_negatives = _take(np.flatnonzero(truth == 0), 2 * neither + mixed, random, name)
    pairs = np.concatenate(
        [
            _distinct(positives[: 2 * both].reshape(-1, 2), np.flatnonzero(truth == 1), random, name),
            _distinct(negatives[: 2 * neither].reshape(-1, 2), np.flatnonzero(truth == 0), random, name),
            np.stack([positives[2 * both :], negatives[2 * neither :]], axis=1),
        ]
    )
    pairs = random.permutation(pairs)
    weak = np.ones(num_pairs, dtype=np.int64)
    if kind == "similarity":
        swapped = random.random(num_pairs) < 0.5
        pairs[swapped] = pairs[swapped, ::-1]
        weak = (truth[pairs[:, 0]] == truth[pairs[:, 1]]).astype(np.int64)
    return _paired(pairs, weak, replaced_positives or replaced_negatives)


def draw_positive_unlabeled(
    labels: object, num_labelled: int, num_unlabelled: int, prior: float, rng: Seed
) -> Grouping:
    """One set, case and control: labelled positives, then an unlabelled draw with that share of positives.

    The unlabelled part holds round(num_unlabelled * prior) positives, none of which is labelled as long
    as the set has enough of them. weak: (M,) 1 for labelled, -1 for unlabelled.
    """
    name = "draw_positive_unlabeled"
    random = _generator(rng, name)
    truth, num_classes = _single_labels(labels, name)
    _binary(num_classes, name)
    _prior(prior, name)
    _count(num_labelled, "num_labelled", name)
    _count(num_unlabelled, "num_unlabelled", name)
    hidden = math.floor(num_unlabelled * prior + 0.5)
    positives, replaced = _take(np.flatnonzero(truth == 1), num_labelled + hidden, random, name)
    negatives, more = _take(np.flatnonzero(truth == 0), num_unlabelled - hidden, random, name)
    unlabelled = random.permutation(np.concatenate([positives[num_labelled:], negatives]))
    index = np.concatenate([positives[:num_labelled], unlabelled])
    weak = np.where(np.arange(len(index)) < num_labelled, 1, -1)
    return Grouping(index, np.array([len(index)]), weak, replaced or more)


def draw_unlabeled_sets(labels: object, priors: Sequence[float], sizes: Sequence[int], rng: Seed) -> Grouping:
    """One set a prior, with round(size * prior) positives each. weak: (B,) the index of the set."""
    name = "draw_unlabeled_sets"
    random = _generator(rng, name)
    truth, num_classes = _single_labels(labels, name)
    _binary(num_classes, name)
    if len(priors) != len(sizes) or not len(priors):
        _complain(name, f"{len(priors)} priors, {len(sizes)} sizes", "one size a prior", "Give both.")
    for prior, size in zip(priors, sizes, strict=True):
        _prior(prior, name)
        _count(size, "size", name)
    counts = [math.floor(size * prior + 0.5) for prior, size in zip(priors, sizes, strict=True)]
    positives, replaced = _take(np.flatnonzero(truth == 1), sum(counts), random, name)
    negatives, more = _take(np.flatnonzero(truth == 0), sum(sizes) - sum(counts), random, name)
    index: list[Array] = []
    for count, size in zip(counts, sizes, strict=True):
        index.append(random.permutation(np.concatenate([positives[:count], negatives[: size - count]])))
        positives, negatives = positives[count:], negatives[size - count :]
    return Grouping(np.concatenate(index), np.array(sizes), np.arange(len(sizes)), replaced or more)


def draw_similar_dissimilar_unlabeled(
    labels: object, num_pairs: int, num_unlabelled: int, prior: float, rng: Seed
) -> tuple[Grouping, Grouping]:
    """Similar and dissimilar pairs beside one unlabelled set, both with that share of positives."""
    random = _generator(rng, "draw_similar_dissimilar_unlabeled")
    pairs = draw_pairs(labels, num_pairs, random, kind="similarity", prior=prior)
    return pairs, draw_unlabeled_sets(labels, [prior], [num_unlabelled], random)


class SemiSupervisedSplit(NamedTuple):
    """Rows with a gold label, and the unlabelled rows, which are all of them."""

    labelled: Array
    unlabelled: Array


def split_semi_supervised(labels: object, num_labelled: int, rng: Seed) -> SemiSupervisedSplit:
    """Equally many labels of every class; labelled instances are in the unlabelled set as well."""
    name = "split_semi_supervised"
    random = _generator(rng, name)
    truth, num_classes = _single_labels(labels, name)
    _count(num_labelled, "num_labelled", name)
    return SemiSupervisedSplit(equal_per_class(truth, num_labelled, random, num_classes), np.arange(len(truth)))


def equal_per_class(labels: Array, number: int, rng: np.random.Generator, num_classes: int) -> Array:
    """`number` rows, equally many of every class; what is left over goes to random classes, one each."""
    share, rest = divmod(number, num_classes)
    quota = np.full(num_classes, share)
    quota[rng.permutation(num_classes)[:rest]] += 1
    chosen = []
    for label, wanted in enumerate(quota.tolist()):
        rows = np.flatnonzero(labels == label)
        if wanted > len(rows):
            _complain(
                "labelled instances",
                f"{wanted} wanted of class {label}, which has {len(rows)}",
                "as many in every class",
                "Ask for fewer labels.",
            )
        chosen.append(rng.choice(rows, size=wanted, replace=False))
    return np.concatenate(chosen)


# -- drawing from a pool -----------------------------------------------------------------------------


def _take(pool: Array, number: int, rng: np.random.Generator, name: str) -> tuple[Array, bool]:
    """`number` members of the pool, each as often as any other where the pool is too small."""
    if number and not len(pool):
        _complain(name, "labels that lack one of the two classes", "both", "Check which class is positive.")
    rounds = -(-number // len(pool)) if number else 0
    drawn = [rng.permutation(pool) for _ in range(rounds)]
    return (np.concatenate(drawn)[:number] if drawn else pool[:0]), number > len(pool)


def _pairs_of(pool: Array, number: int, rng: np.random.Generator, name: str) -> tuple[Array, bool]:
    stream, replaced = _take(pool, 2 * number, rng, name)
    return _distinct(stream.reshape(-1, 2), pool, rng, name), replaced


def _distinct(pairs: Array, pool: Array, rng: np.random.Generator, name: str) -> Array:
    """Pairs of two different instances: where one met itself, it gets another partner."""
    met = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
    if len(met) and len(pool) < 2:
        _complain(name, "a class with a single instance", "two to make a pair", "Draw from a larger set.")
    for row in met:
        pairs[row, 1] = rng.choice(pool[pool != pairs[row, 0]])
    return pairs


def _paired(pairs: Array, weak: Array, replaced: bool) -> Grouping:
    return Grouping(pairs.reshape(-1), np.full(len(pairs), 2), weak, replaced)


# -- checks --------------------------------------------------------------------------------------


def _complain(name: str, got: str, expected: str, cure: str) -> NoReturn:
    raise InputError(f"{name}: {got}; expected {expected}. {cure}")


def _generator(rng: object, name: str) -> np.random.Generator:
    random = read_rng(rng, name)
    if random is None:
        _complain(name, "no rng", "a NumPy Generator or a seed", "Pass rng=numpy.random.default_rng(0).")
    return random


def _single_labels(labels: object, name: str) -> tuple[Array, int]:
    truth, num_classes = read_labels(labels, None, name)
    if truth.ndim != 1:
        _complain(name, f"labels of shape {truth.shape}", "class indices (N,)", "Give one class a row.")
    return truth, num_classes


def _binary(num_classes: int, name: str) -> None:
    if num_classes != 2:
        _complain(name, f"labels of {num_classes} classes", "0/1", "Use binary_labels(labels, positives).")


def _count(value: object, what: str, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        _complain(name, f"{what}={value!r}", "a whole number from 1", "Give a number of instances or bags.")


def _prior(value: object, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value < 1:
        _complain(name, f"prior={value!r}", "the share of positives, in (0, 1)", "Give a share.")
