"""Exact counts, or any positive, of one-vs-rest chains (sigmoid head) on a GPU: one launch for the whole E-step.

A program takes one bag and a few of its classes; a chain is one class of one bag.
counts  The log odds of a chain are shifted, roughly, until its count is the expected one: the posterior does not
        change by it, and nothing underflows. The probability of the count is then a sum over M nodes t of
            F(t) e^(-iwt),  F = prod_k f_k,  f_k = 1 - p_k + p_k e^(it),
        and the same sum over F / f_k leaves instance k out (quadrature.py has the mathematics). Nodes are walked one
        by one with all instances in registers, so that no message is ever stored. M = K + 1 is exact; fewer nodes
        do where counts M away are improbable beyond rounding, by Hoeffding's or Bernstein's inequality.
any     P(some) by pairs, some(a, b) = some(a) + none(a) some(b), which cancels nothing however small p is.
The last program of a bag to finish adds up its classes, in their order. A nonzero status says that something is
unusual, or that a sum has lost digits: the ordinary path decides then.
Shapes: N instances in all, C classes, B bags.
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbus.inference.kernels.gpu_launch import (
    APPROXIMATE,
    block_of,
    counters,
    finish,
    on,
    product,
    reciprocal,
    sigmoid,
)

LONGEST = 8192  # instances of a bag that a program can hold; larger bags take plain torch
TILTS = 64  # steps towards the shift at most; some 4 are usual, bisection of logits of 1e3 takes 15
NEGLIGIBLE = tl.constexpr(40.0)  # what is left out is below e^-40
PI = tl.constexpr(3.141592653589793)
PRODUCTS = tl.constexpr(512)  # factors between 1 and 2 that may be multiplied without overflow
LOST = tl.constexpr(1e-3)  # a probability this far below the usual has lost digits by cancellation


SHAPES = ["B", "N", "C", "slot", "blocks"]  # numbers that no kernel is compiled anew for


class Tile(NamedTuple):
    """How a program is laid out: classes it takes, its warps, and whether it walks two nodes at a time."""

    classes: int
    warps: int
    twice: bool = False


# by the padded size of a bag; measured on an H200, where few classes a program make enough programs for all its parts
COUNT_TILES = {size: Tile(4, 1, twice=True) for size in (16, 32, 64)}
COUNT_TILES |= {128: Tile(4, 1), 256: Tile(2, 1), 512: Tile(1, 1)}
ANY_TILES = {16: Tile(4, 1), 32: Tile(4, 1), 64: Tile(4, 1), 128: Tile(4, 1), 256: Tile(4, 1), 512: Tile(4, 2)}


@triton.jit
def _complex_product(a, b, c, d):
    return a * c - b * d, a * d + b * c


@triton.jit
def _some_or_none(some, none, other_some, other_none):
    return some + none * other_some, none * other_none


@triton.jit
def _tilt(x, free, count, room, active, STEPS: tl.constexpr, APPROX: tl.constexpr):
    """A shift (BC,) float32 under which the expected count is near the wanted one: within a fifth of a deviation."""
    spare = tl.log(tl.maximum(room, 1.0)) + 1.0
    low = tl.where(active, -tl.max(tl.where(free, x, float("-inf")), 0) - spare, 0.0)
    high = tl.where(active, -tl.min(tl.where(free, x, float("inf")), 0) + spare, 0.0)
    theta = tl.minimum(tl.maximum(low, 0.0), high)
    before = tl.full(theta.shape, float("inf"), tl.float32)
    step = 0
    going = tl.max(active.to(tl.int32), 0)
    while (step < STEPS) & (going > 0):
        p = sigmoid(x + theta[None, :], APPROX)
        expected, square = tl.sum(p, 0), tl.sum(p * p, 0)
        gap, variance = expected - count, expected - square
        size = tl.abs(gap)
        far = active & (size > 0.05 + 0.2 * tl.sqrt(tl.maximum(variance, 0.0)))
        low = tl.where(gap <= 0, theta, low)
        high = tl.where(gap >= 0, theta, high)
        newton = theta - gap / tl.maximum(variance, 1e-30)
        kept = (newton > low) & (newton < high) & (size < before * 0.5)
        theta = tl.where(far, tl.where(kept, newton, 0.5 * (low + high)), theta)
        before = tl.where(kept, size, float("inf"))
        going = tl.max(far.to(tl.int32), 0)
        step += 1
    return theta


@triton.jit
def _nodes(variance, offset, room, active):
    """The number of nodes M, an odd one, that serves all chains of a program, and the sine square of the last."""
    third: tl.constexpr = NEGLIGIBLE / 3.0
    widest = tl.max(tl.where(active, variance, 0.0), 0)
    narrowest = tl.min(tl.where(active, variance, 1e300), 0)
    most = tl.max(tl.where(active, room, 0).to(tl.float64), 0)
    off = tl.max(tl.where(active, offset, 0.0), 0)
    bernstein = third + tl.sqrt(third * third + 2.0 * NEGLIGIBLE * widest)
    hoeffding = tl.sqrt(0.5 * NEGLIGIBLE * most)
    wanted = tl.minimum(tl.minimum(bernstein, hoeffding) + off + 2.0, most)
    M = wanted.to(tl.int32) + 1
    M = M + 1 - M % 2
    # |F| falls like e^(-2 variance sin^2(t/2)); an instance left out takes a quarter off the variance at most
    return M, 0.5 * NEGLIGIBLE / tl.maximum(narrowest - 0.25, 1.0)


@triton.jit
def _at_node(p, skew, cos, sin, back_cos, back_sin, APPROX: tl.constexpr):
    """F e^(-iwt) and the same one count earlier, real parts (BC,), and 1 / |f|^2 (K2, BC), at half the angle t."""
    near, far, sine = cos * cos, sin * sin, 2.0 * sin * cos
    real, imaginary = tl.reduce((1.0 - p * (2.0 * far), p * sine), 0, _complex_product)
    value = real * back_cos + imaginary * back_sin
    swing = imaginary * back_cos - real * back_sin
    return value, value * (near - far) - swing * sine, reciprocal(near + skew * far, APPROX)


@triton.jit(do_not_specialize=SHAPES)
def _solve_counts(
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
    slot,  # rows that each bag owns, zeros after its own; 0 for none
    blocks,
    K2: tl.constexpr,
    BC: tl.constexpr,
    BLOCKS2: tl.constexpr,
    STEPS: tl.constexpr,
    APPROX: tl.constexpr,
    TWICE: tl.constexpr,
):
    bag = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    start = tl.load(starts + bag)
    size = tl.load(sizes + bag)
    size = tl.where((start >= 0) & (start + size <= N), size, 0).to(tl.int32)
    row = tl.arange(0, K2)
    column = block * BC + tl.arange(0, BC)
    there = column < C
    count = tl.load(weak + bag * C + column, mask=there, other=-1).to(tl.int32)
    cell = row[:, None] * C + column[None, :]
    inside = (row < size)[:, None] & there[None, :]
    given = tl.load(logits + start * C + cell, mask=inside, other=float("-inf"))
    x = given.to(tl.float64)
    free = tl.abs(given) < float("inf")
    # free instances and, in the upper half of the same sum, certain positives
    found = tl.sum(tl.where(free, 1, tl.where(given == float("inf"), 65536, 0)), 0)
    room, wanted = found % 65536, count - found // 65536
    observed = count >= 0
    active = observed & (wanted > 0) & (wanted < room)

    shift = _tilt(given.to(tl.float32), free, count.to(tl.float32), room.to(tl.float32), active, STEPS, APPROX)
    # far away, all free labels are the forced ones; a missing label leaves the predictions as they are
    forced = tl.where(wanted == room, 1e300, -1e300).to(tl.float64)
    theta = tl.where(active, shift.to(tl.float64), tl.where(observed, forced, 0.0))
    y = x + theta[None, :]
    doubt = tl.exp(-tl.abs(y))
    inverse = reciprocal(1.0 + doubt, APPROX)
    up = y > 0
    p = tl.where(up, inverse, doubt * inverse)
    skew = (1.0 - doubt) * inverse  # |1 - 2p|
    skew = skew * skew
    variance = 0.25 * (K2 - tl.sum(skew, 0))
    offset = tl.abs(tl.sum(p, 0) - count)
    M, last = _nodes(variance, offset, room, active)

    # log P(w) = log P_theta(w) + sum_k log(1 + e^(x + theta)) - log(1 + e^x) - theta w, taken apart so that a shift
    # of any size leaves no trace
    turned = free & (up != (given > 0))
    chosen = tl.sum(tl.where(turned, -tl.abs(x), 0.0), 0)
    surplus = tl.sum(up.to(tl.int32), 0) - count
    log_chance = chosen + tl.where(active, theta, 0.0) * surplus
    # as precise as the logits are
    prior_doubt = tl.exp(-tl.abs(given)).to(tl.float64)
    if K2 <= PRODUCTS:
        norms = tl.reduce(1.0 + doubt, 0, product) / tl.reduce(1.0 + prior_doubt, 0, product)
    else:
        norms = 1.0
        log_chance += tl.sum(tl.log((1.0 + doubt) / (1.0 + prior_doubt)), 0)

    # the node t = 0 gives 1 to every sum; the others count twice, since the conjugate half is not walked
    total = tl.zeros((BC,), tl.float64)
    left_out = tl.zeros((K2, BC), tl.float64)
    step = PI / M.to(tl.float64)
    step_cos, step_sin = tl.cos(step), tl.sin(step)
    cos, sin = step_cos, step_sin  # of t / 2
    turn = (2.0 * step) * (tl.where(active, count, 0) % M).to(tl.float64)
    turn_cos, turn_sin = tl.cos(turn), tl.sin(turn)
    back_cos, back_sin = turn_cos, turn_sin
    node = 1
    while (2 * node < M) & (sin * sin <= last):
        value, ahead, weight = _at_node(p, skew, cos, sin, back_cos, back_sin, APPROX)
        cos, sin = cos * step_cos - sin * step_sin, sin * step_cos + cos * step_sin
        back_cos, back_sin = back_cos * turn_cos - back_sin * turn_sin, back_sin * turn_cos + back_cos * turn_sin
        node += 1
        if TWICE:
            # a chain's sums wait for each other, those of two nodes do not; beyond the last node they count nothing
            more = (2 * node < M) & (sin * sin <= last)
            second, second_ahead, second_weight = _at_node(p, skew, cos, sin, back_cos, back_sin, APPROX)
            second, second_ahead = tl.where(more, second, 0.0), tl.where(more, second_ahead, 0.0)
            total += second
            left_out += (second_ahead[None, :] + p * (second - second_ahead)[None, :]) * second_weight
            cos, sin = cos * step_cos - sin * step_sin, sin * step_cos + cos * step_sin
            back_cos, back_sin = back_cos * turn_cos - back_sin * turn_sin, back_sin * turn_cos + back_cos * turn_sin
            node += 1
        total += value
        left_out += (ahead[None, :] + p * (value - ahead)[None, :]) * weight
    total = tl.where(active, 1.0 + 2.0 * total, 1.0)
    nodes = tl.where(active, M, 1).to(tl.float64)
    strange = ~(total * (1.0 + tl.sqrt(tl.maximum(variance, 0.0))) >= LOST * nodes)
    total = tl.where(strange, 1.0, total)
    scale = 1.0 / total
    left_out = tl.where(active[None, :], 1.0 + 2.0 * left_out, 1.0)
    q = (p * left_out * scale[None, :]).to(given.dtype)
    stored = ((row < size) | ((row < slot) & (start >= 0) & (start + row < N)))[:, None] & there[None, :]
    tl.store(posterior + start * C + cell, tl.minimum(tl.maximum(q, 0.0), 1.0), mask=stored)

    log_chance += tl.log(total / nodes * norms)
    strange = strange | ~(log_chance > float("-inf"))
    strange = strange | (count < -1) | (observed & ((wanted < 0) | (wanted > room)))
    log_chance = tl.where(observed, log_chance, 0.0)
    strange = (strange & there) | (size < 1) | (size > K2)
    finish(
        bag, block, tl.sum(log_chance, 0), tl.max(strange.to(tl.int32), 0),
        counter, likelihood, status, answer, B, blocks, BLOCKS2,
    )  # fmt: skip


@triton.jit(do_not_specialize=SHAPES)
def _solve_any(
    logits,
    starts,
    sizes,
    weak,
    posterior,
    counter,
    likelihood,
    status,
    answer,
    B,
    N,
    C,
    slot,
    blocks,
    K2: tl.constexpr,
    BC: tl.constexpr,
    BLOCKS2: tl.constexpr,
    STEPS: tl.constexpr,
    APPROX: tl.constexpr,
    TWICE: tl.constexpr,
):
    bag = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    start = tl.load(starts + bag)
    size = tl.load(sizes + bag)
    size = tl.where((start >= 0) & (start + size <= N), size, 0).to(tl.int32)
    row = tl.arange(0, K2)
    column = block * BC + tl.arange(0, BC)
    there = column < C
    seen = tl.load(weak + bag * C + column, mask=there, other=-1)
    cell = row[:, None] * C + column[None, :]
    inside = (row < size)[:, None] & there[None, :]
    given = tl.load(logits + start * C + cell, mask=inside, other=float("-inf"))
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
    possible = some > 0
    log_chance = tl.where(seen == 1, tl.log(tl.where(possible, some, 1.0)), tl.where(seen == 0, none, 0.0))
    q = tl.where((seen == 1)[None, :], p / tl.where(possible, some, 1.0)[None, :], p)
    q = tl.where((seen == 0)[None, :], 0.0, tl.minimum(q, 1.0))
    q = tl.where(inside, q, 0.0)
    stored = ((row < size) | ((row < slot) & (start >= 0) & (start + row < N)))[:, None] & there[None, :]
    tl.store(posterior + start * C + cell, q.to(given.dtype), mask=stored)

    strange = (seen < -1) | (seen > 1) | ((seen == 1) & ~possible) | ~(log_chance > float("-inf"))
    strange = strange | (tl.max((given != given).to(tl.int32), 0) > 0)
    strange = (strange & there) | (size < 1) | (size > K2)
    log_chance = tl.where(there, log_chance, 0.0)
    finish(
        bag, block, tl.sum(log_chance, 0), tl.max(strange.to(tl.int32), 0),
        counter, likelihood, status, answer, B, blocks, BLOCKS2,
    )  # fmt: skip


def solve_counts(
    logits: Tensor,
    starts: Tensor,
    sizes: Tensor,
    weak: Tensor,
    *,
    longest: int,
    padded: bool = False,
    tile: Tile | None = None,
    rounded: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Posterior (N, C), log-likelihood (B,) float64 and status (B,), for known counts (B, C), -1 where missing.

    longest: a bound on the sizes, at most `LONGEST`.
    padded: every bag owns `longest` rows from its start on, and together they are all rows.
    rounded: log-likelihoods of the logits' type.
    """
    return _launch(_solve_counts, COUNT_TILES, logits, starts, sizes, weak, longest, padded, tile, rounded)


def solve_any(
    logits: Tensor,
    starts: Tensor,
    sizes: Tensor,
    weak: Tensor,
    *,
    longest: int,
    padded: bool = False,
    tile: Tile | None = None,
    rounded: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for weak labels (B, C) that say whether there is a positive, 0/1, -1 where missing."""
    return _launch(_solve_any, ANY_TILES, logits, starts, sizes, weak, longest, padded, tile, rounded)


def _launch(
    kernel: Any,
    tiles: dict[int, Tile],
    logits: Tensor,
    starts: Tensor,
    sizes: Tensor,
    weak: Tensor,
    longest: int,
    padded: bool,
    tile: Tile | None,
    rounded: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    N, C = logits.shape
    B = sizes.shape[0]
    K2 = block_of(longest, 16)
    # beyond the table a thread keeps 16 positions of one class, and warps are added
    tile = tile or tiles.get(K2) or Tile(1, K2 // 512)
    BC = min(tile.classes, block_of(C, 1))
    blocks = -(-C // BC)
    logits, weak = logits.detach().contiguous(), weak.contiguous()
    posterior = torch.empty_like(logits) if padded else torch.zeros_like(logits)
    likelihood = torch.empty(B * (blocks + 1), dtype=torch.float64, device=logits.device)
    status = torch.empty(B * (blocks + 1), dtype=torch.int32, device=logits.device)
    answer = torch.empty(B, dtype=logits.dtype if rounded else torch.float64, device=logits.device)
    if not B or longest > LONGEST:
        return posterior, answer, torch.ones_like(status[:B])
    with on(logits.device):
        kernel[(B * blocks,)](
            logits,
            starts,
            sizes,
            weak,
            posterior,
            counters(B, logits.device),
            likelihood,
            status,
            answer,
            B,
            N,
            C,
            longest if padded else 0,
            blocks,
            K2=K2,
            BC=BC,
            BLOCKS2=block_of(blocks, 32),
            STEPS=TILTS,
            APPROX=APPROXIMATE,
            TWICE=tile.twice,
            num_warps=tile.warps,
        )
    return posterior, answer, status[:B]
