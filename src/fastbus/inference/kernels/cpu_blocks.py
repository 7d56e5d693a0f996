"""Blocks of eight classes of a bag, read from the logits and written to the posterior, for the CPU kernels.

The last block of several is moved back to end at the last class, so that it overlaps the one before: the classes
they share come out the same twice. Fewer than eight classes leave lanes with copies of the last one.
"""

# Numba compiles these functions, whose types mypy cannot see.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastbus.inference.kernels.cpu_vector import (
    LANES,
    any_above,
    load,
    load_integers,
    magnitude,
    part,
    splat,
    store,
    where_above,
)

Array = npt.NDArray[Any]
LARGEST = 1e6  # logits beyond are left to the ordinary path
MISSING = -1


@part
def first_of_block(block, C):
    """The first class of a block, and how many of its classes the block before has done."""
    wished = block * LANES
    first = max(0, min(wished, C - LANES))
    return first, wished - first


@part
def load_block(logits, C, start, size, first, x):
    """Logits of eight classes from flat (N * C) to x (K * 8); whether none is NaN or too large."""
    largest, good, bad = splat(LARGEST), splat(1.0), splat(0.0)
    state = good
    for k in range(size):
        here = (start + k) * C + first
        if C < LANES:
            for j in range(LANES):
                x[k * LANES + j] = logits[here + min(j, C - 1)]
            row = load(x, k * LANES)
        else:
            row = load(logits, here)
            store(x, k * LANES, row)
        # a comparison with NaN is false
        state = where_above(largest, magnitude(row), state, bad)
    return not any_above(good, state)


@part
def load_weak(weak, C, bag, first, said):
    """Weak labels of eight classes from flat (B * C) to said (8,)."""
    here = bag * C + first
    if C < LANES:
        for j in range(LANES):
            said[j] = weak[here + min(j, C - 1)]
    else:
        store(said, 0, load_integers(weak, here))


@part
def write_block(posterior, C, start, size, first, q):
    """The inverse of `load_block`."""
    for k in range(size):
        here = (start + k) * C + first
        if C < LANES:
            for j in range(C):
                posterior[here + j] = q[k * LANES + j]
        else:
            store(posterior, here, load(q, k * LANES))


@part
def add_log(total, product, factor):
    """total + log(product) with the logarithm of one more factor added, which is taken when it must be.

    Products stay within e-150 to e150, so that one logarithm does for many factors.
    """
    if factor < 1e-150 or factor > 1e150:
        return total + math.log(factor), product
    product *= factor
    if product < 1e-150 or product > 1e150:
        return total + math.log(product), 1.0
    return total, product


@part
def rows_are_right(N, starts, sizes):
    """Whether bags have instances, all of them among the N there are."""
    right = True
    for bag in range(len(sizes)):
        right &= sizes[bag] >= 1 and starts[bag] >= 0 and starts[bag] + sizes[bag] <= N
    return right


def answer(logits: Array, sizes: Array) -> tuple[Array, Array]:
    """Room for the posterior of all rows, zeros where no bag lies, and for log-likelihoods."""
    return np.zeros(logits.shape, logits.dtype), np.empty(len(sizes))


def on_arrays(
    solve: Callable[..., int], logits: Array, starts: Array, sizes: Array, weak: Array
) -> tuple[Array, Array, int]:
    """A compiled kernel on contiguous arrays; logits (..., C) may have more axes, which make up the rows."""
    posterior, likelihood = answer(logits, sizes)
    rows, columns = logits.ravel(), logits.shape[-1]
    status = solve(rows, columns, starts, sizes, weak.ravel(), posterior.ravel(), likelihood)
    return posterior, likelihood, status


def on_tensors(
    solve_arrays: Callable[..., tuple[Array, Array, int]],
    logits: Tensor,
    starts: Tensor,
    sizes: Tensor,
    weak: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, int]:
    """A kernel's answer for tensors instead of arrays."""
    given = (x.detach().contiguous().numpy() for x in (logits, starts, sizes, weak))
    posterior, likelihood, status = solve_arrays(*given, **options)
    return torch.from_numpy(posterior), torch.from_numpy(likelihood), status
