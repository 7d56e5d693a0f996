"""Whether a bag holds any positive of a class, exactly, on a GPU (sigmoid head; gpu_bags.py has the layout).

P(some) by pairs, some(a, b) = some(a) + none(a) some(b), which cancels nothing however small p is.
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

from fastbus.inference.kernels.gpu_bags import LONGEST, SHAPES, WIDEST, Tile, launch, place, read
from fastbus.inference.kernels.gpu_launch import collect, publish
from fastbus.inference.kernels.gpu_math import product, reciprocal

__all__ = ["LONGEST", "WIDEST", "solve_any"]

RARE = tl.constexpr(1e-100)
PRODUCTS = tl.constexpr(512)  # factors between 1 and 2 that may be multiplied without overflow
# by the padded size of a bag; measured on an H200
TILES = {16: Tile(4, 1), 32: Tile(4, 1), 64: Tile(4, 1), 128: Tile(4, 1), 256: Tile(4, 1), 512: Tile(4, 2)}


@triton.jit
def _some_or_none(some, none, other_some, other_none):
    return some + none * other_some, none * other_none


@triton.jit(do_not_specialize=SHAPES)
def _solve_any(
    logits,  # (N, C)
    starts,  # (B,) int64
    sizes,  # (B,) int64
    weak,  # (B, C) int64
    posterior,  # (N, C)
    counter,  # (B,) int32, zeros before and after
    likelihood,  # (B + B * blocks,) float64: results, then parts
    status,  # (B + B * blocks,) int32
    answer,  # (B,) the results once more, in a type of choice
    B,
    N,
    C,
    slot,  # rows that each bag owns where they are padded
    blocks,
    K2: tl.constexpr,
    BC: tl.constexpr,
    BLOCKS2: tl.constexpr,
    APPROX: tl.constexpr,
    PADDED: tl.constexpr,
):
    bag, block, start, size = place(starts, sizes, N, slot, blocks, PADDED)
    row, column = tl.arange(0, K2), block * BC + tl.arange(0, BC)
    there = column < C
    cell = row[:, None] * C + column[None, :]
    seen = tl.load(weak + bag * C + column, mask=there, other=-1)
    given, inside, owned = read(logits, start, size, row, there, cell, C, slot, PADDED)
    x = given.to(tl.float64)

    doubt = tl.exp(-tl.abs(x))
    inverse = reciprocal(1.0 + doubt, APPROX)
    p = tl.where(x > 0, inverse, doubt * inverse)
    some, _ = tl.reduce((p, tl.where(x > 0, doubt * inverse, inverse)), 0, _some_or_none)
    # P(none) itself may underflow, its logarithm must not
    none = -tl.sum(tl.maximum(x, 0.0), 0)
    if K2 <= PRODUCTS:
        none -= tl.log(tl.reduce(1.0 + doubt, 0, product))
    else:
        none -= tl.sum(tl.log(1.0 + doubt), 0)
    log_some = tl.log(tl.where(some > 0, some, 1.0))
    share = p / tl.where(some > 0, some, 1.0)[None, :]
    possible = some > 0
    if tl.max(((seen == 1) & (some < RARE)).to(tl.int32), 0) > 0:
        # digits are lost where p is hardly a number: all odds relative to the largest
        top = tl.max(x, 0)
        rare, possible = some < RARE, top > float("-inf")
        odds = tl.exp(x - tl.where(possible, top, 0.0)[None, :])
        total = tl.where(possible, tl.sum(odds, 0), 1.0)
        log_some = tl.where(rare, top + tl.log(total), log_some)
        share = tl.where(rare[None, :], odds / total[None, :], share)
    log_chance = tl.where(seen == 1, log_some, tl.where(seen == 0, none, 0.0))
    strange = (seen < -1) | (seen > 1) | ((seen == 1) & ~possible) | ~(log_chance > float("-inf"))
    strange = strange | (tl.max((given != given).to(tl.int32), 0) > 0)
    strange = (strange & there) | (size < 1) | (size > K2)
    log_chance = tl.where(there, log_chance, 0.0)
    before = publish(
        bag, block, tl.sum(log_chance, 0), tl.max(strange.to(tl.int32), 0), counter, likelihood, status, B, blocks
    )
    # while the counter is on its way
    q = tl.where((seen == 1)[None, :], share, p)
    q = tl.where((seen == 0)[None, :], 0.0, tl.minimum(q, 1.0))
    q = tl.where(inside, q, 0.0)
    tl.store(posterior + start * C + cell, q.to(given.dtype), mask=owned)
    collect(bag, before, counter, likelihood, status, answer, B, blocks, BLOCKS2)


# whether there is a positive of each class (B, C), 0/1, -1 where missing
solve_any = partial(launch, _solve_any, TILES)
