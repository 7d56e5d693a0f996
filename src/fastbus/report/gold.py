"""Where true labels are known: accuracy, confusion and calibration, each beside what a constant answer scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.errors import InputError
from fastbus.report.resample import Estimate, bag_sums, ratio
from fastbus.training.inputs import missing

Array = NDArray[np.float64]
BINS = 10


class Calibration(NamedTuple):
    """Predictions in bins of equal width by their confidence: how sure they are, how often they are right."""

    edges: Array  # (bins + 1,)
    counts: NDArray[np.int64]  # (bins,)
    confidence: Array  # (bins,) mean, NaN where empty
    accuracy: Array  # (bins,)
    error: float  # mean distance between the two, weighed by the counts
    brier: float  # mean squared distance between probabilities and truth, summed over the classes
    brier_baseline: float  # that of the class shares themselves, for every instance


class Gold(NamedTuple):
    """Predictions against true labels. Several classes an instance: every (instance, class) entry counts."""

    labels: int  # how many are known
    accuracy: Estimate
    with_weak: Estimate  # of the posterior, which has read the weak labels as well
    majority: Estimate
    majority_means: str
    names: tuple[str, ...]  # of the rows and columns of the confusion
    confusion: NDArray[np.int64]  # true by predicted
    recall: Array  # of each class
    share: Array  # of each class among the true labels
    calibration: Calibration
    matched: bool  # whether predicted classes were renamed to fit, as the supervision leaves their names open


def true_classes(labels: Any, classes: NDArray[Any]) -> NDArray[np.int64]:
    """Class indices (N,), -1 where unknown, from names or indices; 0/1 (N, C) as they are."""
    values = np.asarray(labels.to_numpy() if hasattr(labels, "to_numpy") else labels)
    if values.ndim == 2:
        return values.astype(np.int64)
    names = {name: position for position, name in enumerate(classes.tolist())}
    gone = missing(values, classes)
    known = [value for value, lost in zip(values.tolist(), gone, strict=True) if not lost]
    if all(value in names for value in known):
        codes = [-1 if lost else names[value] for value, lost in zip(values.tolist(), gone, strict=True)]
        return np.asarray(codes, dtype=np.int64)
    wrong = [value for value in known if not (isinstance(value, (int, float)) and value in range(len(classes)))]
    if wrong:
        raise InputError(
            f"true label {wrong[0]!r}; expected one of {classes.tolist()[:10]}, or their positions. Correct labels=."
        )
    return np.where(gone, -1, np.nan_to_num(values.astype(np.float64), nan=-1)).astype(np.int64)


def against_truth(
    labels: NDArray[np.int64],
    probs: Array,
    posterior: Array,
    sizes: NDArray[np.int64],
    names: tuple[str, ...],
    match: bool,
) -> Gold | None:
    """Everything that true labels (N,) or (N, C) say about probabilities and posteriors (N, C)."""
    if not (labels >= 0).any():
        return None
    if labels.ndim == 2:
        guess, after = (probs >= 0.5).astype(np.int64), (posterior >= 0.5).astype(np.int64)
        names, usual = ("absent", "present"), _usual_of_columns(labels)
        means = "for each class, always the more frequent answer"
    else:
        if match:
            order = _matching(labels, probs.argmax(1), probs.shape[1])
            probs, posterior = probs[:, order], posterior[:, order]
        guess, after = probs.argmax(1), posterior.argmax(1)
        most = int(np.bincount(labels[labels >= 0], minlength=probs.shape[1]).argmax())
        usual = np.full_like(labels, most)
        means = f"always the most frequent true class, {names[most]}"
    known = labels >= 0
    count = bag_sums(_flat(known), sizes)
    right, read, trivial = (bag_sums(_flat((x == labels) & known), sizes) for x in (guess, after, usual))
    size = len(names)
    pair = labels[known] * size + guess[known]
    confusion = np.bincount(pair, minlength=size * size).reshape(size, size)
    totals = confusion.sum(1)
    recall = np.where(totals > 0, confusion.diagonal() / np.maximum(totals, 1), np.nan)
    return Gold(
        int(known.sum()), ratio(right, count), ratio(read, count), ratio(trivial, count), means, names, confusion,
        recall, totals / totals.sum(), _calibration(labels, probs), match and labels.ndim == 1,
    )  # fmt: skip


def _calibration(labels: NDArray[np.int64], probs: Array) -> Calibration:
    known = labels >= 0
    if labels.ndim == 2:
        positive = probs[known]
        truth = labels[known].astype(np.float64)
        confidence, right = np.maximum(positive, 1 - positive), (positive >= 0.5) == (truth == 1)
        base = np.broadcast_to((labels * known).sum(0) / np.maximum(known.sum(0), 1), labels.shape)[known]
        brier, constant = 2 * ((positive - truth) ** 2).mean(), 2 * ((base - truth) ** 2).mean()
    else:
        some, truth = probs[known], np.eye(probs.shape[1])[labels[known]]
        confidence, right = some.max(1), some.argmax(1) == labels[known]
        brier, constant = ((some - truth) ** 2).sum(1).mean(), ((truth.mean(0) - truth) ** 2).sum(1).mean()
    low = 0.5 if labels.ndim == 2 else 1 / probs.shape[1]
    edges = np.linspace(low, 1, BINS + 1)
    at = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, BINS - 1)
    count = np.bincount(at, minlength=BINS)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(at, weights=confidence, minlength=BINS) / count
        share = np.bincount(at, weights=right, minlength=BINS) / count
    filled = count > 0
    error = float((count[filled] * np.abs(mean[filled] - share[filled])).sum() / count.sum())
    return Calibration(edges, count, mean, share, error, float(brier), float(constant))


def _matching(labels: NDArray[np.int64], guess: NDArray[np.int64], C: int) -> NDArray[np.int64]:
    """The order of predicted classes that agrees best with the true ones."""
    from scipy.optimize import linear_sum_assignment

    known = labels >= 0
    table = np.bincount(labels[known] * C + guess[known], minlength=C * C).reshape(C, C)
    return np.asarray(linear_sum_assignment(-table)[1], dtype=np.int64)


def _usual_of_columns(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    often = (labels == 1).sum(0) > (labels == 0).sum(0)
    return np.broadcast_to(often.astype(np.int64), labels.shape)


def _flat(flags: NDArray[np.bool_]) -> Array:
    """Flags (N,) or (N, C) summed over the classes."""
    return np.asarray(flags.reshape(len(flags), -1).sum(1), dtype=np.float64)
