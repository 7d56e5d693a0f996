"""What every kind of weak label means, stated on whole labellings: the oracle's dictionary.

A definition sees all M labellings of one bag at once, `bag.labels` (M, K), and yields factors: what
the weak label says about each of them. It is written from the catalogue alone and shares no code
with the engine, so that the two can check each other. Weak labels are taken to be well formed.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastbus.errors import InputError, SupervisionError

Array: TypeAlias = npt.NDArray[Any]


class Likelihood(NamedTuple):
    """Hard, noisy or virtual evidence: P(w | labelling), (M,), or booleans."""

    chance: Array


class Jeffrey(NamedTuple):
    """The state of a labelling (M,), and the distribution it is set to (S,)."""

    state: Array
    target: Array


class Mean(NamedTuple):
    """The state of a labelling (M,), and the mean it is set to at the least KL."""

    state: Array
    target: float


Factor: TypeAlias = Likelihood | Jeffrey | Mean
Factors: TypeAlias = Iterator[Factor]


@dataclass(frozen=True)
class Bag:
    """One enumeration problem: a bag under a softmax head, one class of it under a sigmoid head."""

    labels: Array  # (M, K): every labelling; class indices, or 0/1 under a sigmoid head
    num_classes: int  # C
    channel: int | None  # the class this problem is about under a sigmoid head, else None
    index: int  # which bag
    slots: Array  # (K,): where its instances sit along the K of (B, K) weak labels
    rows: Array  # (K,): where they sit among all N real instances
    num_instances: int  # N

    @property
    def num_labels(self) -> int:
        return self.num_classes if self.channel is None else 2

    @property
    def positive(self) -> Array:
        """(M, K) 0/1 labels of a binary problem, whichever of the two heads states it."""
        if self.num_labels != 2 or (self.channel is not None and self.num_classes != 1):
            raise InputError(
                f"{self.num_classes} classes for a binary weak label; expected a sigmoid head with "
                f"1 class or a softmax head with 2; bag {self.index}. Change the head."
            )
        return self.labels

    @property
    def categorical(self) -> Array:
        """(M, K) class indices."""
        if self.channel is not None and self.num_classes != 1:
            raise InputError(
                f"a sigmoid head with {self.num_classes} classes for a single-label rule; expected "
                f"a softmax head, or 1 class; bag {self.index}. Change the head."
            )
        return self.labels

    def per_class(self, weak: Array, dims: int = 0) -> Iterator[tuple[Array, Array]]:
        """Each class's 0/1 labels (M, K) with its own weak label, which has `dims` axes."""
        row = weak[self.index]
        if weak.ndim == 1 + dims:
            yield self.positive, row
        elif self.channel is None:
            for c in range(self.num_classes):
                yield (self.labels == c).astype(int), row[c]
        else:
            yield self.labels, row[self.channel]

    def instance_rows(self, weak: Array, dims: int = 0) -> Array:
        """The weak labels of the instances, (K, ...), each of which has `dims` axes."""
        if weak.ndim == 2 + dims:
            rows = weak[self.index][self.slots]
        elif len(weak) == self.num_instances:  # flat, or every bag has one instance
            rows = weak[self.rows]
        else:  # bags of one, some of them empty
            rows = weak[[self.index] * len(self.slots)]
        return np.asarray(rows)


def as_array(values: Any) -> Array:
    """Tensors, arrays and lists as numpy, floats in double precision at least."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    array: Array = np.asarray(values)
    return array.astype(float) if array.dtype in (np.float16, np.float32) else array


def missing(value: Array) -> bool:
    """NaN in floats, -1 in integers; a vector-valued label is missing as a whole."""
    kind = np.asarray(value).dtype.kind
    if kind == "f":
        return bool(np.isnan(value).any())
    return kind == "i" and bool((value == -1).any())


def observe(truth: Array, observed: Array, noise: tuple[float, float] | None) -> Likelihood:
    """P(observed) where `truth` is the chance of a true 1, seen through (false +, false -)."""
    false_positive, false_negative = noise or (0.0, 0.0)
    one = np.asarray(truth, np.longdouble)
    one = one * (1 - np.longdouble(false_negative)) + (1 - one) * np.longdouble(false_positive)
    return Likelihood(one if observed else 1 - one)


def chances(probability: float) -> Array:
    """The distribution (1 - p, p) of a binary state."""
    p = np.longdouble(probability)
    return np.array([1 - p, p])


def pair(labels: Array) -> Array:
    """The labels of the two instances, (2, M)."""
    if labels.shape[1] != 2:
        raise InputError(f"a bag of {labels.shape[1]} instances; expected pairs. Regroup the bags.")
    return labels.T


def each_instance(labels: Array, rows: Array, chance: Callable[[Array], Array]) -> Likelihood:
    """Instance evidence: `chance` turns a row into P(row | y) for every label y."""
    product = np.ones(len(labels), np.longdouble)
    for row, label in zip(rows, labels.T, strict=True):
        if not missing(row):
            product *= np.asarray(chance(row))[label]
    return Likelihood(product)


def multi_instance(rule: Any, bag: Bag, weak: Array) -> Factors:
    for positive, seen in bag.per_class(weak):
        if not missing(seen):
            yield observe(positive.sum(axis=1) > 0, seen, rule.noise)


def label_proportion(rule: Any, bag: Bag, weak: Array) -> Factors:
    size = bag.labels.shape[1]
    unit = size if rule.unit == "fraction" else 1
    slack = max(1e-3, min(0.05, size * 5e-5), rule.tolerance or 0) if rule.unit == "fraction" else 0
    for positive, value in bag.per_class(weak, dims=0 if rule.kind == "exact" else 1):
        count = positive.sum(axis=1)
        if rule.kind == "interval":  # either bound may be missing
            low, high = value
            above = True if missing(low) else count >= unit * low - slack
            below = True if missing(high) else count <= unit * high + slack
            yield Likelihood(np.ones(len(count), bool) & above & below)
        elif missing(value):
            continue
        elif rule.kind == "exact":
            seen = math.floor(unit * value + 0.5)
            if rule.noise is None:
                yield Likelihood(count == seen)
            else:
                yield Likelihood(_miscount(rule.noise, seen, size)[count])
        elif rule.soft == "jeffrey":
            yield Jeffrey(count, value)
        else:
            yield Likelihood(value[count])


def _miscount(noise: dict[int, float], seen: int, size: int) -> Array:
    """P(seen | count) for every count: the additive error, renormalised within 0..size."""
    chance = np.zeros(size + 1, np.longdouble)
    for count in range(size + 1):
        total = sum(np.longdouble(noise.get(other - count, 0)) for other in range(size + 1))
        if total > 0 and 0 <= seen <= size:
            chance[count] = noise.get(seen - count, 0) / total
    return chance


def pair_comparison(rule: Any, bag: Bag, weak: Array) -> Factors:
    seen = weak[bag.index]
    if not missing(seen):
        first, second = pair(bag.positive)
        # Two independent draws put in order: a tie says nothing about which of them came first.
        truth = (1 + first - second) / 2 if rule.pairs == "sorted" else first >= second
        yield observe(truth, seen, rule.noise)


def pair_similarity(rule: Any, bag: Bag, weak: Array) -> Factors:
    seen = weak[bag.index]
    if not missing(seen):
        first, second = pair(bag.categorical)
        yield observe(first == second, seen, rule.noise)


def similarity_confidence(rule: Any, bag: Bag, weak: Array) -> Factors:
    confidence = weak[bag.index]
    if not missing(confidence):
        first, second = pair(bag.categorical)
        same = (first == second).astype(int)
        target = chances(confidence)
        yield Jeffrey(same, target) if rule.soft == "jeffrey" else Likelihood(target[same])


def confidence_difference(rule: Any, bag: Bag, weak: Array) -> Factors:
    difference = weak[bag.index]
    if not missing(difference):
        first, second = pair(bag.positive)
        yield Mean(second - first, float(difference))


def positive_confidence(rule: Any, bag: Bag, weak: Array) -> Factors:
    confidence = weak[bag.index]
    if not missing(confidence):
        (label,) = bag.positive.T
        yield Jeffrey(label, chances(confidence))


def partial_label(rule: Any, bag: Bag, weak: Array) -> Factors:
    rows = bag.instance_rows(weak, dims=1)
    yield each_instance(bag.categorical, rows, lambda candidates: candidates != 0)


def complementary_label(rule: Any, bag: Bag, weak: Array) -> Factors:
    labels = np.arange(bag.num_labels)
    # (N, C) sets, flat or in bags of one, against (B, K) classes.
    sets = weak.ndim == 3 or weak.shape == (bag.num_instances, bag.num_labels)
    rows = bag.instance_rows(weak, dims=1 if sets else 0)
    yield each_instance(bag.categorical, rows, lambda out: out == 0 if sets else labels != out)


def _transition(transition: Any, rate: float | None, num_labels: int) -> Array:
    """T[..., y, w] = P(w | y): as given, or symmetric with an error rate."""
    if transition is not None:
        return as_array(transition)
    if rate is None:
        raise SupervisionError("neither transitions nor a rate; expected one of them. The oracle cannot learn them.")
    wrong = np.longdouble(rate) / (num_labels - 1)
    return np.where(np.eye(num_labels, dtype=bool), 1 - np.longdouble(rate), wrong)


def _seen_through(transition: Array) -> Callable[[Array], Array]:
    return lambda seen: transition[:, int(seen)]


def noisy_label(rule: Any, bag: Bag, weak: Array) -> Factors:
    transition = _transition(rule.transition, rule.rate, bag.num_labels)
    yield each_instance(bag.categorical, bag.instance_rows(weak), _seen_through(transition))


def crowd_label(rule: Any, bag: Bag, weak: Array) -> Factors:
    answers = bag.instance_rows(weak, dims=1)  # (K, A)
    transitions = _transition(rule.transitions, rule.rate, bag.num_labels)
    transitions = np.broadcast_to(transitions, (answers.shape[1], *transitions.shape[-2:]))
    for transition, answer in zip(transitions, answers.T, strict=True):
        yield each_instance(bag.categorical, answer, _seen_through(transition))


def positive_unlabeled(rule: Any, bag: Bag, weak: Array) -> Factors:
    labelled = bag.instance_rows(weak) == 1
    yield Likelihood(np.asarray(bag.positive[:, labelled].all(axis=1)))
    yield _positives(bag.positive[:, ~labelled], rule.prior, rule.constraint)


def unlabeled_unlabeled(rule: Any, bag: Bag, weak: Array) -> Factors:
    which = weak[bag.index]
    if not missing(which):
        yield _positives(bag.positive, float(rule.priors[int(which)]), rule.constraint)


def unlabeled_set(rule: Any, bag: Bag, weak: Array) -> Factors:
    """The set of similar_dissimilar_unlabeled: (B, K) 1/-1, or (B,) set index 0, one prior."""
    if weak.ndim == 1 and len(weak) != bag.num_instances:
        if not missing(weak[bag.index]):
            yield _positives(bag.positive, rule.prior, rule.constraint)
    else:
        yield from positive_unlabeled(rule, bag, weak)


def _positives(unlabelled: Array, prior: float, constraint: str) -> Factor:
    """What a class prior says about the number of positives among n unlabelled instances."""
    count, n = unlabelled.sum(axis=1), unlabelled.shape[1]
    if constraint == "count":
        return Likelihood(count == math.floor(n * prior + 0.5))
    if constraint == "mean":
        return Mean(count, n * prior)
    no, yes = chances(prior)
    binomial = np.array([math.comb(n, s) * yes**s * no ** (n - s) for s in range(n + 1)])
    return Jeffrey(count, binomial) if constraint == "jeffrey" else Likelihood(binomial[count])


def semi_supervised(rule: Any, bag: Bag, weak: Array) -> Factors:
    multi_label = bag.channel is not None and (bag.num_classes > 1 or weak.ndim == 3)
    gold = bag.instance_rows(weak, dims=1 if multi_label else 0)
    gold = gold[:, bag.channel] if multi_label else gold
    yield each_instance(bag.labels, gold, lambda label: np.arange(bag.num_labels) == label)


def own_rule(rule: Any, bag: Bag, weak: Array) -> Factors:
    """Any other class: fold its `step` label by label, then read its `evidence`."""
    import torch

    takes_position = "position" in inspect.signature(rule.step).parameters

    @cache
    def step(position: int, state: int, label: int) -> int:
        where = {"position": position} if takes_position else {}
        return int(rule.step(torch.tensor(state), torch.tensor(label), **where))

    per_class = getattr(rule, "labels", "per_class") == "per_class"
    chains = bag.per_class(weak) if per_class else iter([(bag.categorical, weak[bag.index])])
    num_states = rule.num_states(bag.labels.shape[1])
    for labels, value in chains:
        if missing(value):
            continue
        states = [0] * len(labels)
        for position, column in enumerate(labels.T.tolist()):
            states = [step(position, z, y) for z, y in zip(states, column, strict=True)]
        seen = torch.from_numpy(np.asarray(value).reshape(1, 1))
        chance = as_array(rule.evidence(torch.arange(num_states), seen))
        yield Likelihood(np.broadcast_to(chance, (1, num_states))[0, states])


DEFINITIONS: dict[str, Callable[[Any, Bag, Array], Factors]] = {
    "MultiInstance": multi_instance,
    "LabelProportion": label_proportion,
    "PairComparison": pair_comparison,
    "PairSimilarity": pair_similarity,
    "SimilarityConfidence": similarity_confidence,
    "ConfidenceDifference": confidence_difference,
    "PositiveConfidence": positive_confidence,
    "PartialLabel": partial_label,
    "ComplementaryLabel": complementary_label,
    "NoisyLabel": noisy_label,
    "CrowdLabel": crowd_label,
    "PositiveUnlabeled": positive_unlabeled,
    "UnlabeledUnlabeled": unlabeled_unlabeled,
    "SemiSupervised": semi_supervised,
}


def factors(rule: Any, bag: Bag, weak: Any) -> Factors:
    """All that a supervision, or a combination of them, says about the labellings of a bag."""
    name = type(rule).__name__
    if name in DEFINITIONS:
        yield from DEFINITIONS[name](rule, bag, weak)
    elif hasattr(rule, "parts"):
        for part, part_weak in zip(rule.parts, weak, strict=True):
            yield from factors(part, bag, part_weak)
    else:
        yield from own_rule(rule, bag, weak)
