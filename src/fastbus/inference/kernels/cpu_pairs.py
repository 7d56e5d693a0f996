"""Pairs on the CPU: comparisons, similarities, and both as confidences, a few dozen operations each.

With a, b the predictions of the first and the second instance, every kind gives weights to their labellings:
    binary     1 to (0,0) and (1,1), r to (0,1) and f to (1,0), up to a factor
    similar    r to equal labels and f to unequal ones, of any number of classes
Nothing is subtracted from 1: what is left for the other classes is summed.
Shapes: N instances in all, C classes, B pairs.
"""

# Numba compiles these functions, whose types mypy cannot see.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from fastbus.inference.kernels.cpu_blocks import LARGEST, MISSING, Array, answer, on_tensors, rows_are_right
from fastbus.inference.kernels.cpu_vector import kernel, part

LONGEST = 2**31  # whatever is no pair has a status of its own
SMALLEST = 1e-290  # below, products lose digits
SORTED, LABELLED, SIMILAR, SIMILARITY, DIFFERENCE = range(5)
KINDS = {
    "sorted": SORTED,  # 1: the first is the more positive one, ties told either way
    "labelled": LABELLED,  # 1: the first is at least as positive
    "similar": SIMILAR,  # 1: the same class
    "similarity": SIMILARITY,  # the probability of that
    "difference": DIFFERENCE,  # the mean of second minus first
}


@part
def _two(log_odds):
    """Probabilities of label 0 and label 1."""
    doubt = math.exp(-abs(log_odds))
    large = 1 / (1 + doubt)
    small = doubt * large
    if log_odds > 0:
        return small, large
    return large, small


@part
def _tilt(d, even, rise, fall):
    """t with mean d under weights 1, t, 1/t: the positive root of (1-d) rise t^2 - d even t - (1+d) fall."""
    root = math.sqrt((d * even) ** 2 + 4 * (1 - d) * (1 + d) * rise * fall)
    if d > 0:
        return (d * even + root) / (2 * (1 - d) * rise)
    return 2 * (1 + d) * fall / (root - d * even)


@part
def _shares(w, same, differ):
    """What equal and unequal labels are multiplied by to have the probabilities w and 1 - w, and the likelihood.

    The first is below 0 where that cannot be.
    """
    if (w > 0 and not same > SMALLEST) or (w < 1 and not differ > SMALLEST):
        return -1.0, 0.0, 0.0
    keep, change, level = 0.0, 0.0, 0.0
    if w > 0:
        keep = w / same
        level += w * math.log(same)
    if w < 1:
        change = (1 - w) / differ
        level += (1 - w) * math.log(differ)
    return keep, change, level


@part
def _weigh(kind, w, even, rise, fall):
    """Factors of equal labels, of (0,1) and of (1,0), and the log-likelihood; the first is below 0 if it is lost."""
    if kind in (SIMILAR, SIMILARITY):
        keep, change, level = _shares(w, even, rise + fall)
        return keep, change, change, level
    tie, up, down, extra = 1.0, 1.0, 1.0, 0.0
    if kind == SORTED:
        tie, up, down = 0.5, 1 - w, w
    elif kind == LABELLED:
        tie, up, down = w, 1 - w, w
    elif abs(w) == 1:
        tie, up, down = 0.0, (1 + w) / 2, (1 - w) / 2
    else:
        if not (rise * fall > SMALLEST and even > SMALLEST):
            return -1.0, 0.0, 0.0, 0.0
        up = _tilt(w, even, rise, fall)
        down = 1 / up
        extra = w * math.log(up)
    total = tie * even + up * rise + down * fall
    if not total > SMALLEST:
        return -1.0, 0.0, 0.0, 0.0
    return tie / total, up / total, down / total, math.log(total) - extra


@part
def _probabilities(logits, here, C, p, others):
    """Probabilities of C classes to p, their sums over all other classes to `others`; whether the logits will do."""
    top = -math.inf
    for c in range(C):
        value = np.float64(logits[here + c])
        if not abs(value) <= LARGEST:
            return False
        top = max(top, value)
    total = 0.0
    for c in range(C):
        p[c] = math.exp(np.float64(logits[here + c]) - top)
        total += p[c]
    before = 0.0
    for c in range(C):
        p[c] /= total
        others[c] = before
        before += p[c]
    after = 0.0
    for c in range(C - 1, -1, -1):
        others[c] += after
        after += p[c]
    return True


@part
def _several(logits, C, first, second, missing, w, scratch, posterior):
    """Similar pairs of C classes: the log-likelihood, NaN if it is lost."""
    a, not_a, b, not_b = scratch
    if not (_probabilities(logits, first, C, a, not_a) and _probabilities(logits, second, C, b, not_b)):
        return math.nan
    if missing:
        posterior[first : first + C], posterior[second : second + C] = a, b
        return 0.0
    same, differ = 0.0, 0.0
    for c in range(C):
        same += a[c] * b[c]
        differ += a[c] * not_b[c]
    keep, change, level = _shares(w, same, differ)
    if keep < 0:
        return math.nan
    for c in range(C):
        posterior[first + c] = min(a[c] * (keep * b[c] + change * not_b[c]), 1.0)
        posterior[second + c] = min(b[c] * (keep * a[c] + change * not_a[c]), 1.0)
    return level


@part
def _binary(logits, C, first, second, missing, w, kind, posterior):
    """Pairs of two classes, or of one sigmoid: the log-likelihood, NaN if it is lost."""
    x, y = np.float64(logits[first + C - 1]), np.float64(logits[second + C - 1])
    if C == 2:
        x -= np.float64(logits[first])
        y -= np.float64(logits[second])
    if not (abs(x) <= LARGEST and abs(y) <= LARGEST):
        return math.nan
    a0, a1 = _two(x)
    b0, b1 = _two(y)
    if missing:
        first0, first1, second0, second1, level = a0, a1, b0, b1, 0.0
    else:
        none, rise, fall, both = a0 * b0, a0 * b1, a1 * b0, a1 * b1
        tie, up, down, level = _weigh(kind, w, none + both, rise, fall)
        if tie < 0:
            return math.nan
        none, rise, fall, both = tie * none, up * rise, down * fall, tie * both
        first0, first1, second0, second1 = none + rise, fall + both, none + fall, rise + both
    posterior[first + C - 1] = min(first1, 1.0)
    posterior[second + C - 1] = min(second1, 1.0)
    if C == 2:
        posterior[first] = min(first0, 1.0)
        posterior[second] = min(second0, 1.0)
    return level


@kernel
def _solve(logits, C, starts, sizes, weak, signed, kind, posterior, likelihood):
    if not rows_are_right(len(logits) // C, starts, sizes) or (C > 2 and kind not in (SIMILAR, SIMILARITY)):
        return 1
    scratch = np.empty((4, C))
    lowest = -1.0 if kind == DIFFERENCE else 0.0
    for bag in range(len(sizes)):
        w = weak[bag]
        missing = math.isnan(w) or (signed and w == MISSING)
        if sizes[bag] != 2 or not (missing or lowest <= w <= 1):
            return 1
        if not missing and kind <= SIMILAR and w != 0 and w != 1:
            return 1
        first = starts[bag] * C
        if C > 2:
            level = _several(logits, C, first, first + C, missing, w, scratch, posterior)
        else:
            level = _binary(logits, C, first, first + C, missing, w, kind, posterior)
        if math.isnan(level):
            return 1
        likelihood[bag] = level
    return 0


def solve_pairs(
    logits: Tensor, starts: Tensor, sizes: Tensor, weak: Tensor, *, kind: str
) -> tuple[Tensor, Tensor, int]:
    """Posterior (N, C) of the logits' type, log-likelihood (B,) in float64 and a status, 0 if all is well.

    logits (N, C), C = 1 for a sigmoid; starts, sizes (B,): the rows of each pair; weak (B,) as `kind` of `KINDS` says
    it, -1 where missing among integers, NaN among floats.
    """
    return on_tensors(solve_arrays, logits, starts, sizes, weak, kind=kind)


def solve_arrays(logits: Array, starts: Array, sizes: Array, weak: Array, *, kind: str) -> tuple[Array, Array, int]:
    """The same for contiguous arrays; logits (..., C) may have more axes, which make up the rows."""
    posterior, likelihood = answer(logits, sizes)
    signed = weak.dtype.kind != "f"
    status = _solve(
        logits.ravel(),
        logits.shape[-1],
        starts,
        sizes,
        weak.astype(np.float64),
        signed,
        KINDS[kind],
        posterior.ravel(),
        likelihood,
    )
    return posterior, likelihood, status
