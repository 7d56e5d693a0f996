"""Weak labels about bags: does a class occur, how often, how do two instances compare.

Each maker takes the truth and the supervision, and returns (B, C), or (B,) where labels are binary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fastbus.data.weaken_inputs import Array
from fastbus.data.weaken_truth import Truth
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision, takes_position
from fastbus.supervision.compress import CompressedRule
from fastbus.supervision.pairwise import (
    ConfidenceDifference,
    PairComparison,
    PairSimilarity,
    SimilarityConfidence,
)


def multi_instance(truth: Truth, rule: MultiInstance) -> Array:
    seen = (truth.bag_sums(truth.chains) > 0).astype(np.int64)
    return truth.per_class(truth.flip(seen, rule.noise))


# -- counts --------------------------------------------------------------------------------------


def label_proportion(
    truth: Truth,
    rule: LabelProportion,
    *,
    width: int | tuple[int, int] = 1,
    open_ends: float = 0.0,
    spread: float = 1.0,
    probabilities: object = None,
) -> Array:
    """Counts of every class.

    width: an interval reaches 0 to `width` counts, drawn at random, beyond the true one on either side;
        a pair sets the sides apart. open_ends: the share of its ends that are left open.
    spread: soft counts are what an observer believes whose count errs with that standard deviation;
        probabilities (N, C): they are the distribution of the count under these instead.
    """
    counts = truth.bag_sums(truth.chains)  # (B, G)
    if rule.kind == "interval":
        return _intervals(truth, rule, counts, width, open_ends)
    if rule.kind == "soft":
        soft = _believed(truth, counts, spread) if probabilities is None else _expected(truth, probabilities)
        if rule.soft == "jeffrey" and not truth.multi_label and counts.shape[1] > 1:
            # distributions of classes that exclude each other do not commute, so one class speaks
            spoken = truth.random.integers(counts.shape[1], size=len(counts))
            soft[np.arange(counts.shape[1]) != spoken[:, None]] = np.nan
        return truth.per_class(soft, dims=1)
    told = counts if rule.noise is None else _miscounted(truth, counts, rule.noise)
    if rule.unit == "fraction":
        told = np.where(told == -1, np.nan, told / truth.sizes[:, None])
    return truth.per_class(told)


def _miscounted(truth: Truth, counts: Array, noise: dict[int, float]) -> Array:
    """Counts with an additive error, renormalised within 0..K; -1 where none can be reported."""
    told = np.full_like(counts, -1)
    for size in np.unique(truth.sizes):
        true, reported = np.arange(size + 1)[:, None], np.arange(size + 1)
        channel = sum(chance * (reported - true == error) for error, chance in noise.items())
        bags = truth.sizes == size
        chances = np.asarray(channel, dtype=np.float64)[counts[bags]]  # (b, G, size + 1)
        told[bags] = np.where(chances.sum(axis=-1) > 0, truth.draw(chances), -1)
    return told


def _intervals(
    truth: Truth, rule: LabelProportion, counts: Array, width: int | tuple[int, int], open_ends: float
) -> Array:
    sides = tuple(width) if isinstance(width, Sequence) else (width, width)
    whole = all(isinstance(side, (int, np.integer)) and not isinstance(side, bool) for side in sides)
    if len(sides) != 2 or not whole or min(sides) < 0:
        truth.complain(f"width={width!r}", "a whole number from 0, or two", "Give e.g. width=(1, 2).")
    reach = [truth.random.integers(0, side + 1, counts.shape) if side else 0 for side in sides]
    sizes = truth.sizes[:, None]
    bounds = np.stack([np.maximum(counts - reach[0], 0), np.minimum(counts + reach[1], sizes)], axis=-1)
    if rule.unit == "fraction":
        bounds = bounds / sizes[..., None]
    if truth.share(open_ends, "open_ends") > 0:
        left_open = truth.random.random(bounds.shape) < open_ends
        bounds = np.where(left_open, np.nan if rule.unit == "fraction" else -1, bounds)
    return truth.per_class(bounds, dims=1)


def _believed(truth: Truth, counts: Array, spread: float) -> Array:
    """What an observer who counts with a Gaussian error believes, all counts being equal before.

    The error is drawn, then believed for what it is: a distribution that gives a count 20 % is right
    about it in 20 % of the bags, if all counts are equally frequent.
    """
    if isinstance(spread, bool) or not isinstance(spread, (int, float)) or not spread > 0:
        truth.complain(f"spread={spread!r}", "a positive number", 'Use kind="exact" for certain counts.')
    states = np.arange(int(truth.sizes.max()) + 1)
    beliefs = np.zeros((*counts.shape, len(states)))
    for size in np.unique(truth.sizes):
        within = states[: size + 1]
        channel = np.exp(-0.5 * ((within[:, None] - within) / spread) ** 2)
        channel /= channel.sum(axis=1, keepdims=True)  # P(seen | count)
        bags = truth.sizes == size
        seen = truth.draw(channel[counts[bags]])
        belief = channel.T[seen]
        beliefs[bags, :, : size + 1] = belief / belief.sum(axis=-1, keepdims=True)
    return beliefs


def _expected(truth: Truth, probabilities: object) -> Array:
    """The distribution of each count where instances are independent, (B, G, S)."""
    chances = truth.probabilities(probabilities, clip=1e-4)
    chances = chances[:, 1:] if truth.binary else chances
    bags = np.split(chances[truth.order], np.cumsum(truth.sizes)[:-1])
    counts = np.zeros((len(bags), chances.shape[1], int(truth.sizes.max()) + 1))
    counts[:, :, 0] = 1
    for row, bag in zip(counts, bags, strict=True):
        for chance in bag:
            row[:, 1:] = row[:, 1:] * (1 - chance[:, None]) + row[:, :-1] * chance[:, None]
            row[:, 0] *= 1 - chance
    return counts


# -- pairs ---------------------------------------------------------------------------------------


def pair_comparison(truth: Truth, rule: PairComparison) -> Array:
    first, second = truth.pairs(truth.positives()).T
    told = (first >= second).astype(np.int64)
    if rule.pairs == "sorted" and bool((first == second).any()):
        told = np.where(first == second, truth.random.integers(0, 2, len(told)), told)
    return truth.hide(truth.flip(told, rule.noise))


def pair_similarity(truth: Truth, rule: PairSimilarity) -> Array:
    first, second = truth.pairs(truth.single_label()).T
    return truth.hide(truth.flip((first == second).astype(np.int64), rule.noise))


def similarity_confidence(
    truth: Truth, rule: SimilarityConfidence, *, probabilities: object = None, clip: float = 1e-4
) -> Array:
    """P(same class) under the probabilities of a scorer, sum_c p1c p2c."""
    truth.single_label()
    first, second = truth.pairs(truth.probabilities(probabilities, clip)).swapaxes(0, 1)
    return truth.hide((first * second).sum(axis=-1).clip(0, 1))


def confidence_difference(
    truth: Truth, rule: ConfidenceDifference, *, probabilities: object = None, clip: float = 1e-4
) -> Array:
    """P(y2 = 1) - P(y1 = 1) under the probabilities of a scorer, sign kept."""
    truth.positives()
    first, second = truth.pairs(truth.probabilities(probabilities, clip)[:, 1]).T
    return truth.hide(second - first)


# -- any rule --------------------------------------------------------------------------------------


def own_rule(truth: Truth, rule: Supervision, *, weak_labels: Sequence[Any] | None = None) -> Array:
    """Fold the rule over the labels of each bag and draw from the evidence of its last state.

    weak_labels: all weak labels there are, where the rule has no method weak_labels(bag_size).
    """
    categorical = rule.labels == "categorical"
    if categorical:
        labels = truth.single_label()[:, None]
    else:
        labels = truth.positives()[:, None] if rule.binary else truth.chains
    if isinstance(rule, CompressedRule) and categorical and truth.num_classes != rule.num_labels:
        truth.complain(
            f"labels of {truth.num_classes} classes",
            f"{rule.num_labels}, as from_function was told",
            f"Pass num_classes={rule.num_labels} if some of them do not occur.",
        )
    wrong = np.flatnonzero(truth.sizes != (rule.bag_size or truth.sizes))
    if len(wrong):
        truth.complain(
            f"bag {wrong[0]} of {truth.sizes[wrong[0]]} instances",
            f"bags of {rule.bag_size}",
            "Regroup the instances.",
        )
    told: dict[int, Array] = {}
    for size in np.unique(truth.sizes).tolist():
        bags = np.flatnonzero(truth.sizes == size)
        rows = truth.order[np.isin(truth.group[truth.order], bags)]
        told[size] = _fold(truth, rule, labels[rows].reshape(len(bags), size, -1), weak_labels)
    values = np.empty((len(truth.sizes), labels.shape[1]), dtype=np.result_type(*told.values()))
    for size, entries in told.items():
        values[truth.sizes == size] = entries
    values = truth.hide(values)
    return values[:, 0] if categorical or rule.binary or truth.binary else values


def _fold(truth: Truth, rule: Supervision, labels: Array, weak_labels: Sequence[Any] | None) -> Array:
    """Weak labels (B, G) of bags of one size (B, K, G)."""
    size = labels.shape[1]
    known = weak_labels if weak_labels is not None else rule.weak_labels(size)
    if known is None:
        truth.complain(
            "the weak labels are not known",
            "a finite set",
            "Pass weak_labels=, or give the rule a method weak_labels(bag_size).",
        )
    state = torch.zeros(labels.shape[0], labels.shape[2], dtype=torch.long)
    for position in range(size):
        options = {"position": position} if takes_position(rule) else {}
        state = rule.step(state, torch.from_numpy(labels[:, position]), **options)
    choices = np.array(list(known))
    Z = rule.checked_num_states(size)
    given = rule.evidence(torch.arange(Z), torch.from_numpy(choices)[:, None])  # (M, Z)
    chances = given.to(torch.float64).numpy().T[state.numpy()]  # (B, G, M)
    lost = np.argwhere(~(chances.sum(axis=-1) > 0))
    if len(lost):
        truth.complain(
            f"no weak label has a chance for the labels {labels[lost[0][0], :, lost[0][1]].tolist()}",
            "evidence that sums to 1 over the weak labels",
            "Pass all of them as weak_labels=.",
        )
    certain = bool(((chances > 0).sum(axis=-1) == 1).all())
    return np.asarray(choices[chances.argmax(axis=-1) if certain else truth.draw(chances)])
