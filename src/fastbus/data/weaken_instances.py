"""Weak labels about instances, and about sets of which some instances are labelled.

Each maker takes the truth and the supervision, and returns (N, ...) in the order of the rows.
"""

from __future__ import annotations

import math

import numpy as np

from fastbus.data.draws import equal_per_class
from fastbus.data.weaken_inputs import Array, as_array
from fastbus.data.weaken_truth import Truth
from fastbus.supervision.confusion import symmetric_confusion
from fastbus.supervision.imperfect import ComplementaryLabel, CrowdLabel, NoisyLabel, PartialLabel
from fastbus.supervision.incomplete import (
    PositiveConfidence,
    PositiveUnlabeled,
    SemiSupervised,
    UnlabeledUnlabeled,
)


def partial_label(truth: Truth, rule: PartialLabel, *, ratio: float | None = None) -> Array:
    """Candidate sets (N, C): the true class always, each wrong one with probability `ratio`."""
    labels = truth.single_label()
    if ratio is None:
        truth.complain("no ratio", "the chance of each wrong class to be a candidate", "Pass e.g. ratio=0.3.")
    sets = truth.random.random((len(labels), truth.num_classes)) < truth.share(ratio, "ratio")
    sets[np.arange(len(labels)), labels] = True
    return truth.per_instance(sets.astype(np.int64), dims=1)


def complementary_label(truth: Truth, rule: ComplementaryLabel, *, excluded: int | None = None) -> Array:
    """One wrong class (N,), uniform over them; `excluded`: a set of so many, rows of 0/1 (N, C)."""
    labels, C = truth.single_label(), truth.num_classes
    if excluded is None:
        shift = truth.random.integers(1, C, size=len(labels))
        return truth.per_instance((labels + shift) % C)
    if isinstance(excluded, bool) or not isinstance(excluded, int) or not 1 <= excluded < C:
        truth.complain(f"excluded={excluded!r}", f"a whole number 1 to {C - 1}", "The true class is never excluded.")
    rank = truth.random.random((len(labels), C))
    rank[np.arange(len(labels)), labels] = 2.0  # the true class comes last
    sets = rank.argsort(axis=1).argsort(axis=1) < excluded
    return truth.per_instance(sets.astype(np.int64), dims=1)


def _confusions(
    truth: Truth, given: object, rate: float | None, own: object, own_rate: float | None, name: str
) -> Array:
    """The confusions of the rule, or those of the options where the rule is to learn them."""
    told = [value for value in (given, rate, own, own_rate) if value is not None]
    if len(told) != 1:
        truth.complain(
            f"{'neither' if not told else 'more than one'} of {name} and rate",
            "one of them, of the supervision or as an option",
            f"Pass e.g. rate=0.3 or {name}=, or a supervision that has one.",
        )
    matrix = given if given is not None else own
    if matrix is None:
        share = truth.share(rate if rate is not None else own_rate, "rate")
        return symmetric_confusion(share, truth.num_classes).numpy()
    chances = as_array(matrix, f"{truth.title}: {name}").astype(np.float64)
    C = truth.num_classes
    if chances.shape[-2:] != (C, C):
        truth.complain(
            f"{name} of shape {chances.shape}",
            f"{C} classes, as the labels have",
            "Pass num_classes= if some classes do not occur.",
        )
    if (chances < 0).any() or (abs(chances.sum(axis=-1) - 1) > 1e-3).any():
        truth.complain(f"{name} with rows that do not sum to 1", "rows P(w | y)", "Divide each by its sum.")
    return chances


def noisy_label(truth: Truth, rule: NoisyLabel, *, rate: float | None = None, transition: object = None) -> Array:
    """A label drawn from T[y]; by `rate` a wrong one in that share of the instances, never the true one."""
    labels = truth.single_label()
    matrix = _confusions(truth, transition, rate, rule.transition, rule.rate, "transition")
    if matrix.ndim != 2:
        truth.complain(f"transition of shape {matrix.shape}", "(C, C)", "Give one matrix.")
    return truth.per_instance(truth.draw(matrix[labels]))


def crowd_label(
    truth: Truth,
    rule: CrowdLabel,
    *,
    annotators: int | None = None,
    answers: int | None = None,
    rate: float | None = None,
    transitions: object = None,
) -> Array:
    """Answers (N, A), each drawn from T_a[y]; `answers`: so many to each instance, of random annotators."""
    labels = truth.single_label()
    matrices = _confusions(truth, transitions, rate, rule.transitions, rule.rate, "transitions")
    if matrices.ndim == 2:
        if annotators is None or isinstance(annotators, bool) or annotators < 1:
            truth.complain(f"annotators={annotators!r}", "how many there are", "Pass e.g. annotators=5.")
        matrices = np.broadcast_to(matrices, (annotators, *matrices.shape))
    elif annotators not in (None, len(matrices)):
        truth.complain(f"annotators={annotators}", f"{len(matrices)}, one a matrix", "Leave it out.")
    A = len(matrices)
    told = truth.draw(matrices[:, labels].swapaxes(0, 1))  # (N, A)
    if answers is not None:
        if isinstance(answers, bool) or not isinstance(answers, int) or not 1 <= answers <= A:
            truth.complain(f"answers={answers!r}", f"a whole number 1 to {A}", "There are no more annotators.")
        told = np.where(truth.random.random(told.shape).argsort(1).argsort(1) < answers, told, -1)
    return truth.per_instance(told)


def semi_supervised(truth: Truth, rule: SemiSupervised, *, labelled: int | float | None = None) -> Array:
    """The labels of some instances, -1 for the others, in equal numbers from every class.

    labelled: how many, or their share. Where instances have several classes, random ones are labelled.
    Left out, every label is told that the missing share leaves.
    """
    N = len(truth.labels)
    if labelled is None:
        if truth.missing == 0:
            truth.complain("no labelled=", "how many labels are known, or their share", "Pass labelled=250.")
        return truth.per_instance(truth.labels, dims=truth.labels.ndim - 1)
    if isinstance(labelled, float):
        labelled = round(truth.share(labelled, "labelled") * N)
    if isinstance(labelled, bool) or not isinstance(labelled, (int, np.integer)) or not 0 < labelled <= N:
        truth.complain(f"labelled={labelled!r}", f"1 to {N} instances, or a share", "Give e.g. labelled=250.")
    if truth.multi_label:
        chosen = truth.random.choice(N, size=labelled, replace=False)
    else:
        chosen = equal_per_class(truth.labels, labelled, truth.random, truth.num_classes)
    told = np.full_like(truth.labels, -1)
    told[chosen] = truth.labels[chosen]
    return truth.per_instance(told, dims=truth.labels.ndim - 1)


def positive_confidence(
    truth: Truth,
    rule: PositiveConfidence,
    *,
    probabilities: object = None,
    clip: float = 1e-4,
    positives_only: bool = True,
) -> Array:
    """P(y = 1) under the probabilities of a scorer; missing for negatives, which are never drawn."""
    positive = truth.positives() == 1
    if (truth.sizes != 1).any():
        truth.complain("bags of several instances", "single instances", "Leave bags out.")
    confidence = truth.probabilities(probabilities, clip)[:, 1]
    told = np.where(positive, confidence, np.nan) if positives_only else confidence
    return truth.hide(told[truth.order])


# -- sets ----------------------------------------------------------------------------------------


def positive_unlabeled(truth: Truth, rule: PositiveUnlabeled, *, labelled: int | float | None = None) -> Array:
    """1 for a labelled positive, -1 for unlabelled; each bag, or all without bags, is one set.

    Left out, as many positives are labelled as leave the rule's prior among the unlabelled. `labelled`
    sets their number in each set, or their share of its positives; a prior that is then wrong by more
    than four standard deviations is refused. A rule without a prior needs it.
    """
    labels = truth.positives()
    if truth.missing:
        truth.complain("a missing share", "none: -1 means unlabelled here", "Pass labelled= instead.")
    group = np.zeros(len(labels), dtype=np.int64) if truth.alone else truth.group
    told = np.full_like(labels, -1)
    for bag in range(int(group.max()) + 1):
        rows = np.flatnonzero(group == bag)
        positives = rows[labels[rows] == 1]
        prior = rule.known_prior if labelled is None else rule.prior
        known = _num_labelled(truth, prior, len(rows), len(positives), labelled, bag)
        told[truth.random.choice(positives, size=known, replace=False)] = 1
    return truth.per_instance(told)


def _num_labelled(
    truth: Truth, prior: float | None, size: int, positives: int, labelled: int | float | None, bag: int
) -> int:
    if labelled is None and prior is not None:
        # each further label takes one positive away and, by rounding, one or none of those expected, so
        # the difference cannot jump over zero
        for known in range(positives + 1):
            if positives - known == math.floor((size - known) * prior + 0.5):
                return known
    if isinstance(labelled, float):
        labelled = round(truth.share(labelled, "labelled") * positives)
    known = 0 if labelled is None else labelled
    whole = isinstance(known, (int, np.integer)) and not isinstance(known, bool)
    if not whole or not 0 <= known <= positives:
        truth.complain(
            f"labelled={labelled!r} of {positives} positives in set {bag}",
            "no more than there are",
            "Lower it, or draw a larger set.",
        )
    rest = size - known
    if prior is None:
        return int(known)
    off = positives - known - rest * prior
    if labelled is None or abs(off) > max(1.0, 4 * math.sqrt(rest * prior * (1 - prior))):
        share = (positives - known) / max(rest, 1)
        truth.complain(
            f"set {bag} has {share:.1%} positives among its {rest} unlabelled instances",
            f"{prior:.1%}, the prior of the supervision",
            "Draw the set with fastbus.data.draws.draw_positive_unlabeled, or state the prior it has.",
        )
    return int(known)


def unlabeled_unlabeled(truth: Truth, rule: UnlabeledUnlabeled, *, sets: object = None) -> Array:
    """The set each bag comes from, (B,).

    sets: these indices, where the bags were drawn from known sets (`draw_unlabeled_sets`). Left out, a
    set is drawn for every bag with the chance that it has made it, all sets being equal before.
    """
    positives = truth.bag_sums(truth.positives())
    priors = np.array(rule.priors)
    if sets is None:
        log_chance = positives[:, None] * np.log(priors)
        log_chance = log_chance + (truth.sizes - positives)[:, None] * np.log1p(-priors)
        chances = np.exp(log_chance - log_chance.max(axis=1, keepdims=True))
        return truth.hide(truth.draw(chances) if len(priors) > 1 else np.zeros_like(positives))
    index = as_array(sets, f"{truth.title}: sets")
    within = index.dtype.kind in "iu" and ((index >= 0) & (index < len(priors))).all()
    if index.shape != positives.shape or not within:
        truth.complain(
            f"sets of shape {index.shape}",
            f"{len(positives)} indices 0 to {len(priors) - 1}, one a bag",
            "Give the index of the set that each bag was drawn from.",
        )
    return truth.hide(index.astype(np.int64))
