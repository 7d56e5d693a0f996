"""How well predictions foretell the weak labels, kind by kind, beside an answer that ignores the instances.

Flat probabilities (N, C) of N instances in B bags, bag after bag; weak labels as `read_inputs` aligns them.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastbus.inference.predict_weak import expected_weak
from fastbus.report.resample import Estimate, bag_sums, ratio
from fastbus.supervision.base import Supervision
from fastbus.training.inputs import missing

Array = NDArray[np.float64]
CONFIDENCES = ("positive_confidence", "confidence_difference", "similarity_confidence")
MOST_POINTS = 2000
MANY = 12  # weak labels beyond which a table of given against predicted ones is no longer read
UNBOUND = ("pair_similarity", "similarity_confidence")  # they name classes up to a permutation


class Agreement(NamedTuple):
    """Given against predicted weak labels of one part of the supervision.

    kind: "numbers", points to scatter; "labels", a table of counts; "rate", a share only.
    score: mean absolute error of numbers, else the share of agreeing labels. baseline: the same for the best
        answer that is the same for all.
    """

    title: str
    kind: Literal["numbers", "labels", "rate"]
    what: str
    score: Estimate
    baseline: Estimate
    baseline_means: str
    points: int  # how many numbers there are; at most 2,000 of them are kept to be drawn
    given: Array  # (M,) numbers
    predicted: Array  # (M,)
    series: NDArray[np.int64]  # (M,) the class of each number
    names: tuple[str, ...]  # of the series, or of the rows and columns of the table
    table: NDArray[np.int64]  # (W, W) given by predicted

    @property
    def lower_is_better(self) -> bool:
        return self.kind == "numbers"


def agree(
    part: Supervision, weak: Any, probs: Array, sizes: NDArray[np.int64], columns: bool, names: tuple[str, ...]
) -> Agreement | None:
    """Given against predicted weak labels of one part; None where no number says anything."""
    values = np.asarray(weak)
    if part.title == "label_proportion":
        return _shares(part, values.astype(np.float64), probs, sizes, columns, names)
    if part.title == "unlabeled_unlabeled":
        return _sets(part, values, probs, sizes)
    if part.title in CONFIDENCES:
        foretold = _expected(part, probs, sizes, False).astype(np.float64)
        given = values.astype(np.float64).reshape(-1)
        what = {"positive_confidence": "probability of the positive class", "confidence_difference": "difference"}
        return _numbers(part.title, what.get(part.title, "probability of the same class"), given, foretold, None, sizes)
    if part.level == "bag":
        foretold = _expected(part, probs, sizes, columns)
        return _labels(part, values, foretold, np.ones_like(sizes), _weak_names(part, values))
    if part.title in ("partial_label", "complementary_label"):
        return _sets_of_classes(part, values, probs, sizes)
    if part.title == "positive_unlabeled":
        return _known_positives(part, values, probs, sizes)
    if values.ndim == 2 and part.title == "semi_supervised":
        return _labels(part, values, (probs >= 0.5).astype(np.int64), sizes, ("absent", "present"))
    foretold = probs.argmax(1)
    if values.ndim == 2:
        foretold = np.broadcast_to(foretold[:, None], values.shape)
    return _labels(part, values, foretold, sizes, names)


def _expected(part: Supervision, probs: Array, sizes: NDArray[np.int64], columns: bool) -> NDArray[Any]:
    # counts, the only answers that depend on whether classes are exclusive, are compared as shares
    rows, lengths = torch.from_numpy(probs), torch.from_numpy(sizes)
    return np.asarray(expected_weak(part, rows, lengths, columns, exclusive=False).numpy())


def _shares(
    part: Supervision, values: Array, probs: Array, sizes: NDArray[np.int64], columns: bool, names: tuple[str, ...]
) -> Agreement | None:
    """Shares of the classes in the bags: the mean of the predictions against the given count, interval or mean."""
    kind, unit = getattr(part, "kind", "exact"), getattr(part, "unit", "count")
    if kind == "soft":
        values = (values * np.arange(values.shape[-1])).sum(-1)
    elif kind == "interval":
        ends = np.where(values < 0, np.nan, values)
        top = sizes[:, None] if columns else sizes
        top = np.ones_like(top) if unit == "fraction" else top
        values = (np.nan_to_num(ends[..., 0], nan=0.0) + np.where(np.isnan(ends[..., 1]), top, ends[..., 1])) / 2
        values = np.where(np.isnan(ends).all(-1), np.nan, values)
    values = values.reshape(len(sizes), -1)
    values = np.where(values < 0, np.nan, values)
    given = values / sizes[:, None] if unit == "count" or kind == "soft" else values
    foretold = bag_sums(probs[:, -given.shape[1] :], sizes) / sizes[:, None]
    shown = names if given.shape[1] == len(names) else names[-given.shape[1] :]
    return _numbers(part.title, "share of a class in a bag", given, foretold, shown, sizes)


def _sets(part: Supervision, values: NDArray[Any], probs: Array, sizes: NDArray[np.int64]) -> Agreement | None:
    priors = np.asarray(part.priors)  # type: ignore[attr-defined]
    index = values.astype(np.int64)
    given, foretold = [], []
    for number, prior in enumerate(priors.tolist()):
        if (index == number).any():
            given.append(prior)
            foretold.append(float(probs[index == number, -1].mean()))
    ones = np.ones(len(given), dtype=np.int64)
    what = "share of positives in a set"
    return _numbers(part.title, what, np.asarray(given), np.asarray(foretold), None, ones)


def _numbers(
    title: str, what: str, given: Array, foretold: Array, names: tuple[str, ...] | None, sizes: NDArray[np.int64]
) -> Agreement | None:
    """Points, their mean absolute error, and that of the mean over all bags."""
    given, foretold = given.reshape(len(sizes), -1), foretold.reshape(len(sizes), -1)
    known = ~np.isnan(given)
    if not known.any():
        return None
    sure = np.where(known, given, 0.0)
    constant = sure.sum(0) / np.maximum(known.sum(0), 1)
    error = np.where(known, np.abs(sure - foretold), 0.0).sum(1)
    trivial = np.where(known, np.abs(sure - constant), 0.0).sum(1)
    count = known.sum(1).astype(np.float64)
    series = np.broadcast_to(np.arange(given.shape[1]), given.shape)
    total = int(known.sum())
    kept = np.arange(total)
    if total > MOST_POINTS:
        kept = np.sort(np.random.default_rng(0).choice(total, MOST_POINTS, replace=False))
    return Agreement(
        title, "numbers", what, ratio(error, count), ratio(trivial, count), "the average given number for every bag",
        total, given[known][kept], foretold[known][kept], series[known][kept], names or (),
        np.zeros((0, 0), dtype=np.int64),
    )  # fmt: skip


def _labels(
    part: Supervision, values: NDArray[Any], foretold: NDArray[Any], group: NDArray[np.int64], names: tuple[str, ...]
) -> Agreement | None:
    """Labels (M, ...) and predictions of the same shape; `group` sums to M and tells the bags apart."""
    bag = np.repeat(np.arange(len(group)), group)
    flat, guess = values.reshape(len(bag), -1), foretold.reshape(len(bag), -1)
    known = ~missing(flat)
    if not known.any():
        return None
    kinds = np.unique(np.concatenate([flat[known], guess[known]]))
    shown = tuple(names[int(kind)] for kind in kinds) if names else tuple(f"{kind:g}" for kind in kinds.tolist())
    size = len(kinds)
    pair = np.searchsorted(kinds, flat[known]) * size + np.searchsorted(kinds, guess[known])
    table = np.bincount(pair, minlength=size * size).reshape(size, size)
    usual = kinds[table.sum(1).argmax()]
    flags = (known, (flat == guess) & known, (flat == usual) & known)
    counts, right, trivial = (bag_sums(x.sum(1).astype(np.float64), group) for x in flags)
    kind: Literal["labels", "rate"] = "labels" if size <= MANY else "rate"
    means = f"always the most frequent given label, {shown[int(table.sum(1).argmax())]}"
    nothing = np.zeros(0)
    return Agreement(
        part.title, kind, "weak labels that the predictions foretell", ratio(right, counts), ratio(trivial, counts),
        means, int(known.sum()), nothing, nothing, nothing.astype(np.int64), shown, table,
    )  # fmt: skip


def _weak_names(part: Supervision, values: NDArray[Any]) -> tuple[str, ...]:
    words = {
        "multi_instance": ("no positive", "some positive"),
        "pair_similarity": ("different", "similar"),
        "pair_comparison": ("second", "first"),
    }
    known = words.get(part.title, ())
    own = getattr(part, "values", None)  # a rule made from a function knows what its codes stand for
    if own is not None and not all(isinstance(value, (bool, int, float)) for value in own):
        return tuple(map(str, own))
    return known


def _sets_of_classes(
    part: Supervision, values: NDArray[Any], probs: Array, sizes: NDArray[np.int64]
) -> Agreement | None:
    """Whether the predicted class is allowed, beside the one class that is allowed most often."""
    C = probs.shape[1]
    given: NDArray[np.bool_]
    allowed: NDArray[np.bool_]
    if values.ndim == 2:
        given = np.asarray((values >= 0).all(1))
        allowed = np.asarray(values == (1 if part.title == "partial_label" else 0))
    else:
        given = ~missing(values)
        allowed = np.asarray(values[:, None] != np.arange(C))
    if not given.any():
        return None
    hit = allowed[np.arange(len(allowed)), probs.argmax(1)] & given
    usual = int((allowed & given[:, None]).sum(0).argmax())
    count = bag_sums(given.astype(np.float64), sizes)
    what = "predicted classes that the weak label allows"
    means = "the one class that is allowed most often, for every instance"
    return _rate(part.title, what, means, hit, allowed[:, usual] & given, count, sizes)


def _known_positives(
    part: Supervision, values: NDArray[Any], probs: Array, sizes: NDArray[np.int64]
) -> Agreement | None:
    known = values == 1
    if not known.any():
        return None
    hit = known & (probs[:, -1] >= 0.5)
    count = bag_sums(known.astype(np.float64), sizes)
    # a coin that says positive as often as the classifier does
    share = np.where(known, float((probs[:, -1] >= 0.5).mean()), 0.0)
    means = "answering positive at random, as often as the classifier does"
    return _rate(part.title, "known positives that are predicted positive", means, hit, share, count, sizes)


def _rate(
    title: str, what: str, means: str, hit: NDArray[Any], trivial: NDArray[Any], count: Array,
    sizes: NDArray[np.int64],
) -> Agreement:  # fmt: skip
    right, usual = (bag_sums(x.astype(np.float64), sizes) for x in (hit, trivial))
    nothing = np.zeros(0)
    return Agreement(
        title, "rate", what, ratio(right, count), ratio(usual, count), means, int(count.sum()), nothing, nothing,
        nothing.astype(np.int64), (), np.zeros((0, 0), dtype=np.int64),
    )  # fmt: skip
