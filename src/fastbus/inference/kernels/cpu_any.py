"""Is there a positive? One-vs-rest chains of multi-instance labels on the CPU, eight classes of a bag at a time.

P(none) = prod(1 - p), and P(some) is summed over the first positive, without cancellation; P(y_k = 1 | some) is
p_k / P(some).
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
    any_above,
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

LONGEST = 2**31  # any bag
ROWS = 512  # a product of as many numbers in [1, 2] does not overflow
IMPROBABLE = 1e-100  # below it, probabilities are taken relative to the largest


@part
def _probabilities(x, size, q, some, log_none, norm):
    """p to q (K * 8); P(some), and log P(none) + log(norm) of each column."""
    one, nothing = splat(1.0), splat(0.0)
    left, found, level, product = one, nothing, nothing, one
    for k in range(size):
        if k % ROWS == ROWS - 1:
            store(norm, 0, product)
            for j in range(LANES):
                norm[j] = math.log(norm[j])
            level = add(level, load(norm, 0))
            product = one
        value = load(x, k * LANES)
        weight = exp_of_negative(subtract(nothing, magnitude(value)))
        product = fma(product, weight, product)
        level = add(level, where_above(value, nothing, value, nothing))
        large = divide(one, add(one, weight))
        small = multiply(weight, large)
        yes = where_above(value, nothing, large, small)
        store(q, k * LANES, yes)
        found = fma(left, yes, found)
        left = multiply(left, where_above(value, nothing, small, large))
    store(norm, 0, product)
    store(some, 0, found)
    store(log_none, 0, subtract(nothing, level))


@part
def _relative(x, size, j, q):
    """Column j, whose logits are all far below 0: p to q up to a factor; its logarithm, and their sum."""
    top = x[j]
    for k in range(size):
        top = max(top, x[k * LANES + j])
    total = 0.0
    for k in range(size):
        q[k * LANES + j] = math.exp(x[k * LANES + j] - top)
        total += q[k * LANES + j]
    return top, total


@part
def _close(said, some, log_none, norm, share, factor, extra):
    """What p is divided by, and log P(w) = extra + log(factor); nothing is known where the label is below 0."""
    one, nothing = splat(1.0), splat(0.0)
    label, found = load(said, 0), load(some, 0)
    store(share, 0, where_above(label, nothing, found, where_above(nothing, label, one, splat(np.inf))))
    none = where_above(nothing, label, one, divide(one, load(norm, 0)))
    store(factor, 0, where_above(label, nothing, found, none))
    none = where_above(nothing, label, nothing, load(log_none, 0))
    store(extra, 0, where_above(label, nothing, nothing, none))
    return any_above(splat(IMPROBABLE), load(share, 0))


@kernel
def _solve(logits, C, starts, sizes, weak, posterior, likelihood):
    longest = sizes.max()
    if not rows_are_right(len(logits) // C, starts, sizes) or weak.min() < MISSING or weak.max() > 1:
        return 1
    x, q = np.empty((2, longest * LANES))
    said, some, log_none, norm, share, factor, extra = np.empty((7, LANES))
    for bag in range(len(sizes)):
        start, size = starts[bag], sizes[bag]
        level, product = 0.0, 1.0
        for block in range((C + LANES - 1) // LANES):
            first, done = first_of_block(block, C)
            load_weak(weak, C, bag, first, said)
            if not load_block(logits, C, start, size, first, x):
                return 1
            _probabilities(x, size, q, some, log_none, norm)
            if _close(said, some, log_none, norm, share, factor, extra):
                for j in range(LANES):
                    if share[j] < IMPROBABLE:
                        extra[j], share[j] = _relative(x, size, j, q)
                        factor[j] = share[j]
            for j in range(done, min(LANES, C)):
                level, product = add_log(level + extra[j], product, factor[j])
            scale, one = load(share, 0), splat(1.0)
            for k in range(size):
                p = divide(load(q, k * LANES), scale)
                store(q, k * LANES, where_above(p, one, one, p))
            write_block(posterior, C, start, size, first, q)
        likelihood[bag] = level + math.log(product)
    return 0


def solve_any(logits: Tensor, starts: Tensor, sizes: Tensor, weak: Tensor) -> tuple[Tensor, Tensor, int]:
    """Posterior (N, C) of the logits' type, log-likelihood (B,) in float64 and a status, 0 if all is well.

    logits (N, C); starts, sizes (B,): the rows of each bag; weak (B, C): 1 for some, 0 for none, -1 where missing.
    """
    return on_tensors(solve_arrays, logits, starts, sizes, weak)


def solve_arrays(logits: Array, starts: Array, sizes: Array, weak: Array) -> tuple[Array, Array, int]:
    """The same for contiguous arrays; logits (..., C) may have more axes, which make up the rows."""
    return on_arrays(_solve, logits, starts, sizes, weak)
