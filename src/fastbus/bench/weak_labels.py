"""Weakening by plain definitions: from the truth of a scene to a supervision and its weak labels.

Every function takes a `Scene` and returns `Weakened`. Weak labels come from the truth by a definition
written out here, apart from the engine's and the oracle's, so that they are possible and a wrong
reading of the catalogue shows; then noise and missing entries are applied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from fastbus.bench.own_rules import AtLeast, LastPositive, SumModulo
from fastbus.bench.scenes import Array, Scene
from fastbus.supervision import (
    ComplementaryLabel,
    ConfidenceDifference,
    CrowdLabel,
    LabelProportion,
    MultiInstance,
    NoisyLabel,
    PairComparison,
    PairSimilarity,
    PartialLabel,
    PositiveConfidence,
    PositiveUnlabeled,
    SemiSupervised,
    SimilarityConfidence,
    Supervision,
    UnlabeledUnlabeled,
)


class Weakened(NamedTuple):
    """A supervision and the weak labels of a scene; a tuple of them for a combination."""

    supervision: Supervision
    weak: Any


Weaken = Callable[[Scene], Weakened]


# -- bags ----------------------------------------------------------------------------------------


def _rates(scene: Scene) -> tuple[float, float]:
    """(false positive, false negative), sometimes without one of the two errors."""
    rates = scene.rng.uniform(0.05, 0.4, size=2) * (scene.rng.random(2) < 0.8)
    return float(rates[0]), float(rates[1])


def _flip(scene: Scene, truth: Array, rates: tuple[float, float]) -> Array:
    wrong = scene.rng.random(truth.shape) < np.where(truth == 1, rates[1], rates[0])
    return np.where(wrong, 1 - truth, truth)


def _told(scene: Scene, truth: Array, noisy: bool) -> tuple[Array, tuple[float, float] | None]:
    """0/1 weak labels as they are told, and the noise channel they went through."""
    if not noisy:
        return truth, None
    rates = _rates(scene)
    return _flip(scene, truth, rates), rates


def multi_instance(scene: Scene, noisy: bool = False) -> Weakened:
    told, noise = _told(scene, scene.per_class(lambda chain: int(chain.any())), noisy)
    return Weakened(MultiInstance(noise=noise), scene.weak(told))


def exact_counts(scene: Scene) -> Weakened:
    return Weakened(LabelProportion(), scene.weak(scene.per_class(np.sum)))


def fractions(scene: Scene) -> Weakened:
    return Weakened(LabelProportion(unit="fraction"), scene.weak(scene.per_class(np.mean)))


def noisy_counts(scene: Scene) -> Weakened:
    """The count plus an error of -1, 0, 1 or 2, drawn anew while it falls outside 0..K."""
    chances = scene.rng.dirichlet(np.ones(4))
    errors = np.arange(-1, 3)

    def tell(chain: Array) -> int:
        reported = chain.sum() + errors
        inside = chances * ((reported >= 0) & (reported <= len(chain)))
        return int(scene.rng.choice(reported, p=inside / inside.sum()))

    noise = dict(zip(errors.tolist(), chances.tolist(), strict=True))
    return Weakened(LabelProportion(noise=noise), scene.weak(scene.per_class(tell)))


def intervals(scene: Scene) -> Weakened:
    def tell(chain: Array) -> list[int]:
        low, high = chain.sum() - scene.rng.integers(0, 3), chain.sum() + scene.rng.integers(0, 3)
        low = -1 if scene.chance(0.25) else max(low, 0)  # -1 is an open end
        return [low, -1 if scene.chance(0.25) else min(high, len(chain))]

    return Weakened(LabelProportion("interval"), scene.weak(scene.per_class(tell), dims=1))


def fraction_intervals(scene: Scene) -> Weakened:
    """Bounds that need not be counts, e.g. "at least 30 %"."""

    def tell(chain: Array) -> list[float]:
        low = np.nan if scene.chance(0.25) else max(0.0, chain.mean() - scene.rng.random() / 2)
        high = np.nan if scene.chance(0.25) else min(1.0, chain.mean() + scene.rng.random() / 2)
        return [float(low), float(high)]

    supervision = LabelProportion("interval", unit="fraction")
    return Weakened(supervision, scene.weak(scene.per_class(tell), dims=1))


def _distribution(scene: Scene, low: int, high: int, length: int) -> Array:
    """A random distribution over the counts low..high, some of them 0, as a row of that length."""
    weights = scene.rng.gamma(0.7, size=length) + 1e-6
    weights *= scene.rng.random(length) < 0.8
    weights[scene.rng.integers(low, high + 1)] += 0.5
    weights[:low] = weights[high + 1 :] = 0
    return np.asarray(weights / weights.sum())


def soft_counts(scene: Scene, soft: Any = "jeffrey") -> Weakened:
    """Distributions over counts; under a softmax head at most one class of a bag sets one."""
    length = int(scene.sizes.max() + scene.rng.integers(1, 3))

    def tell(chain: Array) -> Array:
        row = _distribution(scene, 0, len(chain), length)
        row[chain.sum()] += 0.1  # a likelihood must leave the truth possible
        return np.asarray(row / row.sum())

    values = scene.hide(scene.per_class(tell), dims=1)
    if soft == "jeffrey" and values.ndim == 3 and scene.head == "softmax":
        spoken = scene.rng.integers(scene.num_classes, size=len(values))
        values[np.arange(scene.num_classes) != spoken[:, None]] = np.nan
    return Weakened(LabelProportion("soft", soft=soft), torch.from_numpy(values))


def soft_counts_and_gold(scene: Scene) -> Weakened:
    """Jeffrey's rule after gold labels, which leave the count room between their own two ends."""
    gold = np.where(scene.rng.random(len(scene.truth)) < 0.4, scene.truth, -1)
    bags = np.split(gold, np.cumsum(scene.sizes)[:-1])
    length = int(scene.sizes.max() + 1)
    spoken = 1 if scene.binary else int(scene.rng.integers(scene.num_classes))
    rows = []
    for bag in bags:
        others = ((bag != spoken) & (bag != -1)).sum()
        rows.append(_distribution(scene, (bag == spoken).sum(), len(bag) - others, length))
    values = scene.hide(np.array(rows), dims=1)
    if not scene.binary:
        classes = np.arange(scene.num_classes)[:, None]
        values = np.where(classes == spoken, values[:, None, :], np.nan)
    weak = torch.from_numpy(values), torch.from_numpy(scene.placed(gold, 99))
    return Weakened(LabelProportion("soft") & SemiSupervised(), weak)


# -- pairs ---------------------------------------------------------------------------------------


def pair_comparison(scene: Scene, pairs: Any = "sorted", noisy: bool = False) -> Weakened:
    def tell(bag: Array) -> int:
        tie = bag[0] == bag[1]
        if pairs == "sorted" and tie:
            return int(scene.rng.integers(2))
        return int(bag[0] >= bag[1])

    told, noise = _told(scene, scene.per_bag(tell), noisy)
    return Weakened(PairComparison(pairs=pairs, noise=noise), scene.weak(told))


def pair_similarity(scene: Scene, noisy: bool = False) -> Weakened:
    told, noise = _told(scene, scene.per_bag(lambda bag: int(bag[0] == bag[1])), noisy)
    return Weakened(PairSimilarity(noise=noise), scene.weak(told))


def similarity_confidence(scene: Scene, soft: Any = "jeffrey") -> Weakened:
    """Any confidence is possible; certain ones must be right only as virtual evidence."""

    def tell(bag: Array) -> float:
        certain = float(bag[0] == bag[1]) if soft == "virtual" else float(scene.rng.integers(2))
        return certain if scene.chance(0.2) else float(scene.rng.random())

    return Weakened(SimilarityConfidence(soft=soft), scene.weak(scene.per_bag(tell)))


def confidence_difference(scene: Scene) -> Weakened:
    """Differences in [-1, 1], both ends among them."""

    def tell(bag: Array) -> float:
        difference = float(scene.rng.uniform(-1, 1))
        return float(np.sign(difference)) if scene.chance(0.25) else difference

    return Weakened(ConfidenceDifference(), scene.weak(scene.per_bag(tell)))


# -- instances -----------------------------------------------------------------------------------


def positive_confidence(scene: Scene) -> Weakened:
    values = 1 - scene.rng.random(len(scene.sizes))
    values[scene.rng.random(len(values)) < 0.2] = 1.0
    weighting: Any = "pconf" if scene.chance(0.5) else None
    return Weakened(PositiveConfidence(weighting=weighting), scene.weak(values))


def partial_label(scene: Scene) -> Weakened:
    sets = scene.rng.random((len(scene.truth), scene.num_labels)) < 0.4
    sets[np.arange(len(sets)), scene.truth] = True
    return Weakened(PartialLabel(), scene.instances(sets.astype(int), dims=1))


def complementary_label(scene: Scene, sets: bool = False) -> Weakened:
    """Bags of one, padded to width C, could mean either by (B, C): so classes are (B,) there."""
    if sets:
        excluded = scene.rng.random((len(scene.truth), scene.num_labels)) < 0.4
        excluded[np.arange(len(excluded)), scene.truth] = False
        weak = scene.instances(excluded.astype(int), dims=1, short=False)
        return Weakened(ComplementaryLabel(), weak)
    other = scene.rng.integers(1, scene.num_labels, size=len(scene.truth))
    classes = (scene.truth + other) % scene.num_labels
    return Weakened(ComplementaryLabel(), scene.instances(classes, short=True))


def _transition(scene: Scene) -> Array:
    """A random (C, C) of rows T[y], some of whose entries are 0."""
    Y = scene.num_labels
    matrix = scene.rng.gamma(1.0, size=(Y, Y)) * (scene.rng.random((Y, Y)) < 0.8) + np.eye(Y)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def _pass_through(scene: Scene, transition: Array) -> Array:
    """Labels (N,) drawn from the rows of T that the truth selects."""
    cumulative = transition.cumsum(axis=1)[scene.truth]
    drawn = (scene.rng.random((len(scene.truth), 1)) > cumulative).sum(axis=1)
    return np.asarray(drawn.clip(max=scene.num_labels - 1))


def noisy_label(scene: Scene, by_rate: bool = False) -> Weakened:
    if not by_rate:
        transition = _transition(scene)
        weak = scene.instances(_pass_through(scene, transition))
        return Weakened(NoisyLabel(torch.from_numpy(transition)), weak)
    rate = float(scene.rng.uniform(0.05, 0.7))
    shift = scene.rng.integers(1, scene.num_labels, size=len(scene.truth))
    wrong = scene.rng.random(len(scene.truth)) < rate
    told = np.where(wrong, (scene.truth + shift) % scene.num_labels, scene.truth)
    return Weakened(NoisyLabel(rate=rate), scene.instances(told))


def crowd_label(scene: Scene, by_rate: bool = False) -> Weakened:
    """Three annotators of different skill; some answers are always missing."""
    if by_rate:
        rate = float(scene.rng.uniform(0.1, 0.5))
        answers = scene.rng.integers(scene.num_labels, size=(len(scene.truth), 3))
        return Weakened(CrowdLabel(rate=rate), scene.instances(answers))
    matrices = np.stack([_transition(scene) for _ in range(3)])
    answers = np.stack([_pass_through(scene, matrix) for matrix in matrices], axis=1)
    answers[scene.rng.random(answers.shape) < 0.3] = -1
    return Weakened(CrowdLabel(torch.from_numpy(matrices)), scene.instances(answers))


def semi_supervised(scene: Scene, share: float = 0.5) -> Weakened:
    given = scene.rng.random(scene.truth.shape) < share
    return Weakened(SemiSupervised(), scene.instances(np.where(given, scene.truth, -1)))


# -- sets ----------------------------------------------------------------------------------------


def _prior(scene: Scene) -> float:
    return float(scene.rng.uniform(0.1, 0.9))


def positive_unlabeled(scene: Scene, constraint: Any) -> Weakened:
    labelled = (scene.truth == 1) & (scene.rng.random(len(scene.truth)) < 0.4)
    weak = torch.from_numpy(scene.placed(np.where(labelled, 1, -1), 99))
    return Weakened(PositiveUnlabeled(_prior(scene), constraint=constraint), weak)


def unlabeled_unlabeled(scene: Scene, constraint: Any, sets: int | None = None) -> Weakened:
    """Draws from that many sets, by default 1 to 3, each with its prior."""
    priors = [_prior(scene) for _ in range(sets or int(scene.rng.integers(1, 4)))]
    index = scene.rng.integers(len(priors), size=len(scene.sizes))
    return Weakened(UnlabeledUnlabeled(priors, constraint=constraint), scene.weak(index))


# -- own rules -----------------------------------------------------------------------------------


def at_least(scene: Scene) -> Weakened:
    m = int(scene.rng.integers(1, 4))
    return Weakened(AtLeast(m), scene.weak(scene.per_class(lambda chain: int(chain.sum() >= m))))


def sum_modulo(scene: Scene, slip: float = 0.0) -> Weakened:
    sums = scene.per_bag(lambda bag: int(bag.sum()) % 3)
    if slip:
        wrong = scene.rng.random(len(sums)) < slip
        sums = np.where(wrong, (sums + scene.rng.integers(1, 3, size=len(sums))) % 3, sums)
    return Weakened(SumModulo(3, slip), scene.weak(sums))


def last_positive(scene: Scene) -> Weakened:
    def tell(chain: Array) -> int:
        return int((np.flatnonzero(chain) + 1).max(initial=0))

    return Weakened(LastPositive(), scene.weak(scene.per_class(tell)))


def from_function(scene: Scene, rule: Callable[[tuple[int, ...]], Hashable], categorical: bool = False) -> Weakened:
    """Bags of one size; the weak labels are what the function says of the truth."""
    size = int(scene.sizes[0])

    def tell(labels: Array) -> int:
        return int(rule(tuple(labels.tolist())))  # type: ignore[call-overload,no-any-return]

    values = scene.per_bag(tell) if categorical else scene.per_class(tell)
    num_labels = scene.num_labels if categorical else 2
    return Weakened(Supervision.from_function(rule, size, num_labels), scene.weak(values))


# -- combinations --------------------------------------------------------------------------------


def both(scene: Scene, parts: tuple[Weaken, ...]) -> Weakened:
    """Several weak labels of the same truth, each with its own missing entries."""
    weakened = [part(scene) for part in parts]
    supervision = weakened[0].supervision
    for part in weakened[1:]:
        supervision = supervision & part.supervision
    return Weakened(supervision, tuple(part.weak for part in weakened))


def all_of(*parts: Weaken) -> Weaken:
    return partial(both, parts=parts)
