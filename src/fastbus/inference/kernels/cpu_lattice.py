"""The joint lattice of exact counts, or of classes seen, under a softmax head, on the CPU, in linear space.

A bag keeps the classes it holds, and pools those of missing labels into one column. Counts let every class be
multiplied by a constant, which is chosen such that expected counts come near the known ones: nothing underflows then.
The largest count has no axis, since it follows from the others. Lattice points lie in the order of their level, the
sum of their digits, and after k instances only a few neighbouring levels can be occupied.
Shapes: N instances in all, C classes, B bags, K instances of a bag, P columns of a bag, Z lattice points.
"""

# Numba compiles these functions, whose types mypy cannot see.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from fastbus.inference.kernels.cpu_blocks import LARGEST, MISSING, Array, add_log, answer, on_tensors, rows_are_right
from fastbus.inference.kernels.cpu_vector import kernel, part

LONGEST = 512  # no bag of more has a lattice within any sensible budget, but a small one
TILTS = 6
SMALLEST = 1e-250  # of a probability in linear space; what is below is left to the ordinary path


@part
def _columns(weak, C, bag, size, seen, column, cap):
    """column (C,): which column a class belongs to, -1 for none; cap (P,): how often a column occurs.

    Returns the number of columns, -1 if no labelling fits, and the pooled column, -1 if there is none. With `seen`
    the pooled column has no limit.
    """
    P, total, missing = 0, 0, 0
    for c in range(C):
        count = weak[bag * C + c]
        if count < MISSING or (seen and count > 1):
            return -1, -1
        column[c] = -1
        if count > 0:
            column[c] = P
            cap[P] = count
            P += 1
            total += count
        missing += count == MISSING
    if total > size or (missing == 0 and (total == 0 or (total < size and not seen))):
        return -1, -1
    if missing == 0 or (total == size and not seen):
        return P, -1
    for c in range(C):
        if weak[bag * C + c] == MISSING:
            column[c] = P
    cap[P] = size - total
    return P + 1, P


@part
def _points(cap, P, pooled, seen, budget):
    """The column without an axis, and how many lattice points the others have, 0 if beyond the budget."""
    free = pooled
    if not seen:
        free = 0
        for p in range(P):
            if cap[p] > cap[free]:
                free = p
    points = 1
    for p in range(P):
        if p != free:
            points *= cap[p] + 1
            if points > budget:
                return free, 0
    return free, points


@part
def _weigh(logits, C, start, size, column, weight, P):
    """weight (K, P), its rows' largest terms 1; the logarithm of what they lack to be probabilities; are all fit?"""
    level, product = 0.0, 1.0
    for k in range(size):
        here = (start + k) * C
        top, held = -np.inf, -np.inf
        for c in range(C):
            value = np.float64(logits[here + c])
            if not abs(value) <= LARGEST:
                return 0.0, False
            top = max(top, value)
            if column[c] >= 0:
                held = max(held, value)
        for p in range(P):
            weight[k, p] = 0.0
        norm = 0.0
        for c in range(C):
            value = np.float64(logits[here + c])
            norm += math.exp(value - top)
            if column[c] >= 0:
                weight[k, column[c]] += math.exp(value - held)
        level, product = add_log(level + (held - top), product, 1 / norm)
    return level + math.log(product), True


@part
def _tilt(weight, size, P, cap, factor, expected):
    """Multiply columns until their sums come near the known counts; the logarithm of what that is worth."""
    for p in range(P):
        factor[p] = 1.0
    for _ in range(TILTS):
        for p in range(P):
            expected[p] = 0.0
        for k in range(size):
            norm = 0.0
            for p in range(P):
                norm += weight[k, p] * factor[p]
            for p in range(P):
                expected[p] += weight[k, p] * factor[p] / norm
        for p in range(P):
            if expected[p] > 1e-100 and 1e-100 < factor[p] < 1e100:
                factor[p] *= cap[p] / expected[p]
    level, product = 0.0, 1.0
    for k in range(size):
        norm = 0.0
        for p in range(P):
            weight[k, p] *= factor[p]
            norm += weight[k, p]
        for p in range(P):
            weight[k, p] /= norm
        level, product = add_log(level, product, norm)
    level += math.log(product)
    for p in range(P):
        level -= cap[p] * math.log(factor[p])
    return level


@part
def _link(axes, radix, A, Z, seen, digit, rank, first, before, after):
    """Tables of neighbours (Z, A), Z for none, among points in the order of levels; first (levels + 2,) of each level.

    before: the point with one of a class less. after: that with one more; with `seen`, the same if it is there.
    """
    levels = 0
    for a in range(A):
        levels += radix[a] - 1
    for at in range(levels + 2):
        first[at] = 0
    for a in range(A):
        digit[a] = 0
    level = 0
    for z in range(Z):
        rank[z] = level
        first[level + 1] += 1
        level += _count_up(digit, radix, A)
    for at in range(levels):
        first[at + 1] += first[at]
    # filling a level moves its start to that of the next one, and has to be undone
    for z in range(Z):
        level = rank[z]
        rank[z] = first[level]
        first[level] += 1
    for at in range(levels, 0, -1):
        first[at] = first[at - 1]
    first[0], first[levels + 1] = 0, Z
    for z in range(Z):
        i, stride = rank[z], 1
        for a in range(A):
            before[i, a] = rank[z - stride] if digit[a] > 0 else Z
            if digit[a] < radix[a] - 1:
                after[i, a] = rank[z + stride]
            else:
                after[i, a] = i if seen else Z
            stride *= radix[a]
        _count_up(digit, radix, A)
    return levels


@part
def _count_up(digit, radix, A):
    """The next number in mixed radix; by how much the sum of its digits grew."""
    change = 0
    for a in range(A):
        if digit[a] < radix[a] - 1:
            digit[a] += 1
            return change + 1
        change -= digit[a]
        digit[a] = 0
    return change


@part
def _levels(k, size, levels):
    """The lowest and the highest level that k instances can have reached and from which the last one can be."""
    return max(0, levels - (size - k)), min(k, levels)


@part
def _fence(message, k, first, low, high, levels):
    """Zeros on the levels next to the occupied ones, which are looked at from there."""
    if low > 0:
        for i in range(first[low - 1], first[low]):
            message[k, i] = 0.0
    if high < levels:
        for i in range(first[high + 1], first[high + 2]):
            message[k, i] = 0.0


@part
def _forward(weight, size, axes, A, free, Z, levels, first, before, seen, alpha):
    alpha[0, 0] = 1.0
    alpha[0, Z] = 0.0
    _fence(alpha, 0, first, 0, 0, levels)
    for k in range(size):
        low, high = _levels(k + 1, size, levels)
        alpha[k + 1, Z] = 0.0
        stay = weight[k, free] if free >= 0 else 0.0
        for i in range(first[low], first[high + 1]):
            value = stay * alpha[k, i]
            for a in range(A):
                source = before[i, a]
                arrived = alpha[k, source]
                if seen and source != Z:
                    arrived += alpha[k, i]
                value += weight[k, axes[a]] * arrived
            alpha[k + 1, i] = value
        _fence(alpha, k + 1, first, low, high, levels)
    return alpha[size, Z - 1]


@part
def _backward(weight, size, axes, A, P, free, Z, levels, first, after, seen, alpha, beta, belief):
    """Overwrites weight (K, P) with the posterior of the columns."""
    beta[0, Z] = beta[1, Z] = 0.0
    beta[size % 2, Z - 1] = 1.0
    _fence(beta, size % 2, first, levels, levels, levels)
    for back in range(size):
        k = size - 1 - back
        low, high = _levels(k, size, levels)
        here, there = k % 2, (k + 1) % 2
        for p in range(P):
            belief[p] = 0.0
        stay = weight[k, free] if free >= 0 else 0.0
        for i in range(first[low], first[high + 1]):
            weight_here = alpha[k, i]
            value = stay * beta[there, i]
            if free >= 0:
                belief[free] += weight_here * beta[there, i]
            for a in range(A):
                later = beta[there, after[i, a]]
                value += weight[k, axes[a]] * later
                belief[axes[a]] += weight_here * later
            beta[here, i] = value
        _fence(beta, k % 2, first, low, high, levels)
        total = 0.0
        for p in range(P):
            belief[p] *= weight[k, p]
            total += belief[p]
        for p in range(P):
            weight[k, p] = belief[p] / total


@part
def _write(logits, C, start, size, column, pooled, weight, posterior):
    """Columns back to classes: pooled ones share as they did before."""
    for k in range(size):
        here = (start + k) * C
        top, norm = -np.inf, 0.0
        if pooled >= 0:
            for c in range(C):
                if column[c] == pooled:
                    top = max(top, np.float64(logits[here + c]))
            for c in range(C):
                if column[c] == pooled:
                    norm += math.exp(np.float64(logits[here + c]) - top)
        for c in range(C):
            q = weight[k, column[c]] if column[c] >= 0 else 0.0
            if pooled >= 0 and column[c] == pooled:
                q *= math.exp(np.float64(logits[here + c]) - top) / norm
            posterior[here + c] = q


@kernel
def _solve(logits, C, starts, sizes, weak, posterior, likelihood, seen, budget):
    if not rows_are_right(len(logits) // C, starts, sizes):
        return 1
    column, cap = np.empty(C + 1, np.int64), np.empty(C + 1, np.int64)
    most, longest = 1, sizes.max()
    for bag in range(len(sizes)):
        P, pooled = _columns(weak, C, bag, sizes[bag], seen, column, cap)
        points = _points(cap, P, pooled, seen, budget)[1]
        if P < 0 or points == 0:
            return 1
        most = max(most, points)
    axes, radix, digit = np.empty(C + 1, np.int64), np.empty(C + 1, np.int64), np.empty(C + 1, np.int64)
    factor, belief = np.empty(C + 1), np.empty(C + 1)
    weight = np.empty((longest, C + 1))
    rank = np.empty(most, np.int64)
    before, after = np.empty((most, C + 1), np.int32), np.empty((most, C + 1), np.int32)
    first = np.empty(longest + C + 3, np.int64)
    alpha = np.empty((longest + 1, most + 1))
    beta = np.empty((2, most + 1))
    for bag in range(len(sizes)):
        start, size = starts[bag], sizes[bag]
        P, pooled = _columns(weak, C, bag, size, seen, column, cap)
        free, Z = _points(cap, P, pooled, seen, budget)
        level, fit = _weigh(logits, C, start, size, column, weight, P)
        if not fit:
            return 1
        A = 0
        for p in range(P):
            if p != free:
                axes[A], radix[A] = p, cap[p] + 1
                A += 1
        if not seen:
            level += _tilt(weight, size, P, cap, factor, belief)
        levels = _link(axes, radix, A, Z, seen, digit, rank, first, before, after)
        total = _forward(weight, size, axes, A, free, Z, levels, first, before, seen, alpha)
        if not total > SMALLEST:
            return 1
        likelihood[bag] = math.log(total) + level
        _backward(weight, size, axes, A, P, free, Z, levels, first, after, seen, alpha, beta, belief)
        _write(logits, C, start, size, column, pooled, weight, posterior)
    return 0


def solve_lattice(
    logits: Tensor, starts: Tensor, sizes: Tensor, weak: Tensor, *, seen: bool, budget: int = 4096
) -> tuple[Tensor, Tensor, int]:
    """Posterior (N, C) of the logits' type, log-likelihood (B,) in float64 and a status, 0 if all is well.

    logits (N, C); starts, sizes (B,): the rows of each bag; weak (B, C): counts, or with `seen` which classes occur,
    0/1; -1 where missing. budget: lattice points of a bag, beyond which the status says so.
    """
    return on_tensors(solve_arrays, logits, starts, sizes, weak, seen=seen, budget=budget)


def solve_arrays(
    logits: Array, starts: Array, sizes: Array, weak: Array, *, seen: bool, budget: int
) -> tuple[Array, Array, int]:
    """The same for contiguous arrays; logits (..., C) may have more axes, which make up the rows."""
    # one type is enough: converting costs nothing beside the lattice, compiling twice does
    wide = logits.astype(np.float64, copy=False)
    posterior, likelihood = answer(wide, sizes)
    rows, columns = wide.ravel(), wide.shape[-1]
    status = _solve(rows, columns, starts, sizes, weak.ravel(), posterior.ravel(), likelihood, seen, budget)
    return posterior.astype(logits.dtype, copy=False), likelihood, status
