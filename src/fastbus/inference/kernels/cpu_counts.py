"""Exact counts of one-vs-rest chains on the CPU: eight classes of a bag at a time, in linear space.

A known count makes the posterior blind to a common shift of the log odds. Each class is shifted to where the best
labelling takes the instances above 0: then every factor of it is 1, and no sum that holds it can underflow. So a
rough shift will do, found by halving. All terms are positive, so that small posteriors keep all their digits.
Shapes: N instances in all, C classes, B bags, K instances of a bag.
"""

# Numba compiles these functions, whose types mypy cannot see.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from fastbus.inference.kernels.cpu_blocks import (
    MISSING,
    Array,
    add_log,
    first_of_block,
    load_block,
    load_weak,
    on_arrays,
    on_tensors,
    rows_are_right,
    write_block,
)
from fastbus.inference.kernels.cpu_vector import (
    LANES,
    add,
    divide,
    exp_of_negative,
    fma,
    kernel,
    load,
    magnitude,
    multiply,
    part,
    splat,
    store,
    subtract,
    where_above,
)

SPARE = 300.0  # the best labelling may be as improbable as exp(-SPARE)
LONGEST = 512  # 2**K is the most that weights can sum to


@part
def _find_shift(x, size, wanted, shift, low, high):
    """shift (8,): about the wanted-th largest of each column, so that K times its error is at most SPARE."""
    bottom = load(x, 0)
    top = bottom
    for k in range(1, size):
        row = load(x, k * LANES)
        bottom = where_above(bottom, row, row, bottom)
        top = where_above(row, top, row, top)
    store(low, 0, bottom)
    store(high, 0, top)
    # none or all of them: no labels to choose from
    for j in range(LANES):
        if wanted[j] == 0.0:
            low[j] = high[j]
        if wanted[j] == size:
            high[j] = low[j]
    bottom, top, goal = load(low, 0), load(high, 0), load(wanted, 0)
    half, one, nothing = splat(0.5), splat(1.0), splat(0.0)
    while True:
        middle = multiply(add(bottom, top), half)
        store(low, 0, subtract(top, bottom))
        widest = 0.0
        for j in range(LANES):
            widest = max(widest, low[j])
        if widest * size <= SPARE:
            break
        above = nothing
        for k in range(size):
            above = add(above, where_above(load(x, k * LANES), middle, one, nothing))
        enough = where_above(goal, above, nothing, one)
        bottom = where_above(enough, nothing, middle, bottom)
        top = where_above(enough, nothing, top, middle)
    store(shift, 0, middle)


@part
def _weigh(x, size, shift, stay, move, norm, chosen, surplus):
    """Weights of both labels, the larger one 1, and what turns their sum into a likelihood."""
    c, one, nothing = load(shift, 0), splat(1.0), splat(0.0)
    product, level, taken = one, nothing, nothing
    for k in range(size):
        value = load(x, k * LANES)
        y = subtract(value, c)
        weight = exp_of_negative(subtract(nothing, magnitude(y)))
        store(stay, k * LANES, where_above(y, nothing, weight, one))
        store(move, k * LANES, where_above(y, nothing, one, weight))
        size_of = magnitude(value)
        product = fma(product, exp_of_negative(subtract(nothing, size_of)), product)
        # what the label of weight 1 is less probable than the other one without the shift
        against = where_above(y, nothing, where_above(value, nothing, nothing, size_of), nothing)
        for_it = where_above(y, nothing, nothing, where_above(value, nothing, size_of, nothing))
        level = subtract(level, add(against, for_it))
        taken = add(taken, where_above(y, nothing, one, nothing))
    store(norm, 0, product)
    store(chosen, 0, level)
    store(surplus, 0, taken)


@part
def _forward(stay, move, size, least, most, alpha, width):
    """alpha[k, s + 1]: weight of s positives among the first k; only those from which the count can be met."""
    nothing = splat(0.0)
    store(alpha, 0, nothing)
    store(alpha, LANES, splat(1.0))
    store(alpha, 2 * LANES, nothing)
    for k in range(size):
        here = k * width * LANES
        after = here + width * LANES
        no, yes = load(stay, k * LANES), load(move, k * LANES)
        bottom = max(0, least - (size - k - 1))
        top = min(k + 1, most)
        less = load(alpha, here + bottom * LANES)
        store(alpha, after + bottom * LANES, nothing)
        for s in range(bottom, top + 1):
            same = load(alpha, here + (s + 1) * LANES)
            store(alpha, after + (s + 1) * LANES, fma(yes, less, multiply(no, same)))
            less = same
        store(alpha, after + (top + 2) * LANES, nothing)


@part
def _backward(stay, move, size, least, most, alpha, width, beta, total, q):
    """The posterior (K * 8); beta[s] is the weight of the wanted count, given s positives so far."""
    nothing = splat(0.0)
    whole = load(total, 0)
    for back in range(size):
        k = size - 1 - back
        here = k * width * LANES
        no, yes = load(stay, k * LANES), load(move, k * LANES)
        bottom = max(0, least - (size - k))
        top = min(k, most)
        same = load(beta, bottom * LANES)
        belief = nothing
        for s in range(bottom, top + 1):
            more = load(beta, (s + 1) * LANES)
            belief = fma(load(alpha, here + (s + 1) * LANES), more, belief)
            store(beta, s * LANES, fma(yes, more, multiply(no, same)))
            same = more
        store(q, k * LANES, divide(multiply(yes, belief), whole))


@part
def _range_of_counts(said, size, wanted):
    """Counts of eight classes to `wanted`, 0 where missing; the least and the most, the latter -1 if one is wrong."""
    least, most = size, 0
    for j in range(LANES):
        count = int(said[j])
        if count < MISSING or count > size:
            return 0, -1
        count = max(count, 0)
        wanted[j] = count
        least, most = min(least, count), max(most, count)
    return least, most


@part
def _leave_prior(x, size, j, q):
    """Column j, of which nothing is known."""
    for k in range(size):
        value = x[k * LANES + j]
        rest = math.exp(-abs(value))
        q[k * LANES + j] = (1.0 if value > 0 else rest) / (1 + rest)


@kernel
def _solve(logits, C, starts, sizes, weak, posterior, likelihood):
    longest = sizes.max()
    width = max(weak.max(), 0) + 4
    if not rows_are_right(len(logits) // C, starts, sizes) or width > longest + 4 or longest > LONGEST:
        return 1
    x, stay, move, q = np.empty((4, longest * LANES))
    said, wanted, shift, norm, chosen, surplus, low, high, total = np.empty((9, LANES))
    alpha = np.empty((longest + 1) * width * LANES)
    beta = np.empty(width * LANES)
    for bag in range(len(sizes)):
        start, size = starts[bag], sizes[bag]
        level, product = 0.0, 1.0
        for block in range((C + LANES - 1) // LANES):
            first, done = first_of_block(block, C)
            load_weak(weak, C, bag, first, said)
            least, most = _range_of_counts(said, size, wanted)
            if most < 0 or not load_block(logits, C, start, size, first, x):
                return 1
            _find_shift(x, size, wanted, shift, low, high)
            _weigh(x, size, shift, stay, move, norm, chosen, surplus)
            _forward(stay, move, size, least, most, alpha, width)
            beta[: (most + 2) * LANES] = 0.0
            for j in range(LANES):
                count = int(wanted[j])
                beta[count * LANES + j] = 1.0
                total[j] = alpha[(size * width + count + 1) * LANES + j]
            _backward(stay, move, size, least, most, alpha, width, beta, total, q)
            for j in range(min(LANES, C)):
                count = said[j]
                if not total[j] > 0.0:
                    return 1
                if count == MISSING:
                    _leave_prior(x, size, j, q)
                    continue
                if j >= done:
                    level += chosen[j] + shift[j] * (count - surplus[j])
                    level, product = add_log(level, product, total[j] / norm[j])
                if count == size:
                    for k in range(size):
                        q[k * LANES + j] = 1.0
            write_block(posterior, C, start, size, first, q)
        likelihood[bag] = level + math.log(product)
    return 0


def solve_counts(logits: Tensor, starts: Tensor, sizes: Tensor, weak: Tensor) -> tuple[Tensor, Tensor, int]:
    """Posterior (N, C) of the logits' type, log-likelihood (B,) in float64 and a status, 0 if all is well.

    logits (N, C); starts, sizes (B,): the rows of each bag; weak (B, C): counts, -1 where missing.
    """
    return on_tensors(solve_arrays, logits, starts, sizes, weak)


def solve_arrays(logits: Array, starts: Array, sizes: Array, weak: Array) -> tuple[Array, Array, int]:
    """The same for contiguous arrays; logits (..., C) may have more axes, which make up the rows."""
    return on_arrays(_solve, logits, starts, sizes, weak)
