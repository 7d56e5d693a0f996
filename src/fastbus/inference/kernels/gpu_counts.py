"""Exact counts of one-vs-rest chains on a GPU (sigmoid head; gpu_bags.py says how programs are laid out).

The log odds of a chain are shifted, roughly, until its count is the expected one: the posterior does not change by
it, and nothing underflows. The probability of the count is then a sum over M nodes t of
    F(t) e^(-iwt),  F = prod_k f_k,  f_k = 1 - p_k + p_k e^(it),
and the same sum over F / f_k leaves instance k out (quadrature.py has the mathematics). Nodes are walked one after the
other, a few at a time, with all instances in registers, so that no message is ever stored. Any M > K is exact; fewer
nodes do where counts M away are improbable beyond rounding, by Hoeffding's or Bernstein's inequality. Small bags take
an exact number, which is known before the logits arrive, and may be shifted more roughly.

A launch of few programs lasts as long as one of them, and one waits for its own results most of the time. Hence loads
come first, sums share their shuffles, and there are no branches that would keep instructions apart.
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl

from fastbus.inference.kernels.gpu_bags import LONGEST, SHAPES, WIDEST, Tile, launch, place, read
from fastbus.inference.kernels.gpu_launch import collect, publish
from fastbus.inference.kernels.gpu_math import (
    circle_at,
    decay,
    inverse_weight,
    log,
    quick_inverse,
    quick_log,
    quick_power,
    reciprocal,
    turned_by,
)

__all__ = ["LONGEST", "WIDEST", "solve_counts"]

TILTS = tl.constexpr(64)  # steps towards the shift at most; 1 to 3 are usual, bisection of logits of 1e3 takes 15
NEGLIGIBLE = tl.constexpr(40.0)  # what is left out is below e^-40
SMALL = tl.constexpr(32)  # padded sizes at which inequalities would hardly save a node
PRODUCTS = tl.constexpr(512)  # factors between 1 and 2 that may be multiplied without overflow
LARGEST = tl.constexpr(1e18)  # logits whose squares are float32 numbers
LOST = tl.constexpr(1e-3)  # a probability this far below the usual has lost digits by cancellation

# by the padded size of a bag; measured on an H200, where few classes a program make enough programs for all its parts
TILES = {16: Tile(4, 1), 32: Tile(4, 1), 64: Tile(4, 1), 128: Tile(4, 1), 256: Tile(2, 1), 512: Tile(1, 1)}


@triton.jit
def _outline(found, top, bottom, total, square, norm, found2, top2, bottom2, total2, square2, norm2):
    """Of a chain's logits: kinds of instances, the largest and least, sums of them and of squares, and the norm."""
    top, bottom = tl.maximum(top, top2), tl.minimum(bottom, bottom2)
    return found + found2, top, bottom, total + total2, square + square2, norm * norm2


@triton.jit
def _sum_and_most(a, b, c, d):
    return a + c, tl.maximum(b, d)


@triton.jit
def _two_sums(a, b, c, d):
    return a + c, b + d


@triton.jit
def _two_sums_and_product(a, b, c, d, e, f):
    return a + d, b + e, c * f


@triton.jit
def _two_complex_products(a, b, c, d, e, f, g, h):
    return a * e - b * f, a * f + b * e, c * g - d * h, c * h + d * g


@triton.jit
def _tilt(x, outline, wanted, room, count, active, ROUGHLY: tl.constexpr, APPROX: tl.constexpr):
    """A shift (BC,) float32 under which the expected count is near the wanted one: a fifth of a deviation, or one."""
    _found, top, bottom, total, square, _norm = outline
    room = tl.maximum(room, 1).to(tl.float32)
    spare = quick_log(room, APPROX) + 1.0
    low, high = tl.where(active, -top - spare, 0.0), tl.where(active, spare - bottom, 0.0)
    # were logits normal, their mean sigmoid would be that of (mean + shift) / sqrt(1 + pi / 8 variance), nearly
    part = quick_inverse(room, APPROX)
    mean = total * part
    stretch = tl.sqrt(1.0 + 0.3927 * tl.maximum(square * part - mean * mean, 0.0))
    share = tl.where(active, wanted, 1).to(tl.float32)
    odds = quick_log(share, APPROX) - quick_log(tl.maximum(room - share, 1.0), APPROX)
    theta = tl.minimum(tl.maximum(low, odds * stretch - mean), high)
    slack: tl.constexpr = 0.5 if ROUGHLY else 0.05
    steep: tl.constexpr = 1.0 if ROUGHLY else 0.04
    count = count.to(tl.float32)
    exponent = x * -1.4426950408889634
    before = tl.full(theta.shape, float("inf"), tl.float32)
    step = 0
    going = 1
    while (step < TILTS) & (going > 0):
        p = quick_inverse(1.0 + quick_power(exponent - 1.4426950408889634 * theta[None, :], APPROX), APPROX)
        expected, squares = tl.reduce((p, p * p), 0, _two_sums)
        gap, variance = expected - count, expected - squares
        size = tl.abs(gap)
        excess = size - slack
        far = active & (excess > 0) & (excess * excess > steep * variance)
        low = tl.where(gap <= 0, theta, low)
        high = tl.where(gap >= 0, theta, high)
        newton = theta - gap * quick_inverse(tl.maximum(variance, 1e-30), APPROX)
        kept = (newton > low) & (newton < high) & (size < before * 0.5)
        theta = tl.where(far, tl.where(kept, newton, 0.5 * (low + high)), theta)
        before = tl.where(kept, size, float("inf"))
        going = tl.max(far.to(tl.int32), 0)
        step += 1
    return theta


@triton.jit
def _nodes(variance, offset, room, active):
    """The number of nodes M that serves all chains of a program, a pair of pairs and one, and 1 - cos t of the last."""
    third: tl.constexpr = NEGLIGIBLE / 3.0
    widest = tl.max(tl.where(active, variance, 0.0), 0)
    narrowest = tl.min(tl.where(active, variance, 1e300), 0)
    most = tl.max(tl.where(active, room, 0).to(tl.float64), 0)
    off = tl.max(tl.where(active, offset, 0.0), 0)
    bernstein = third + tl.sqrt(third * third + 2.0 * NEGLIGIBLE * widest)
    hoeffding = tl.sqrt(0.5 * NEGLIGIBLE * most)
    wanted = tl.minimum(tl.minimum(bernstein, hoeffding) + off + 2.0, most)
    M = (wanted.to(tl.int32) + 4) // 4 * 4 + 1
    # |F| falls like e^(-2 variance sin^2(t/2)); an instance left out takes a quarter off the variance at most
    return M, NEGLIGIBLE / tl.maximum(narrowest - 0.25, 1.0)


@triton.jit
def _first_nodes(M, count, APPROX: tl.constexpr):
    """Cosine and sine of the angle t of the first two of M nodes, and of wt for counts w below M; 1 / M."""
    part = reciprocal(M.to(tl.float64), APPROX)
    cos, sin = circle_at(part)
    back_cos, back_sin = circle_at(count.to(tl.float64) * part)
    cos2, sin2 = turned_by(cos, sin, cos, sin)
    back_cos2, back_sin2 = turned_by(back_cos, back_sin, back_cos, back_sin)
    return part, cos, sin, cos2, sin2, back_cos, back_sin, back_cos2, back_sin2


@triton.jit
def _earlier(cos, sin, back_cos, back_sin):
    """Of angles wt those of a count earlier."""
    return back_cos * cos + back_sin * sin, back_sin * cos - back_cos * sin


@triton.jit
def _sums(
    real, imaginary, p, spread, cos, back_cos, back_sin, last_cos, last_sin, FEW: tl.constexpr, APPROX: tl.constexpr
):
    """The real part of F e^(-iwt) (BC,), and of the same without each of the instances (K2, BC)."""
    value = real * back_cos + imaginary * back_sin
    ahead = real * last_cos + imaginary * last_sin
    more = real * (back_cos - last_cos) + imaginary * (back_sin - last_sin)
    weight = inverse_weight(1.0 - spread * (1.0 - cos), FEW, APPROX)  # 1 / |f|^2
    return value, (ahead[None, :] + p * more[None, :]) * weight


@triton.jit
def _two_nodes(
    p,
    spread,
    cos,
    sin,
    cos2,
    sin2,
    back_cos,
    back_sin,
    back_cos2,
    back_sin2,
    FEW: tl.constexpr,
    APPROX: tl.constexpr,
):
    """The sums at two nodes, which do not wait for each other."""
    last_cos, last_sin = _earlier(cos, sin, back_cos, back_sin)
    last_cos2, last_sin2 = _earlier(cos2, sin2, back_cos2, back_sin2)
    r, i, r2, i2 = tl.reduce(
        (1.0 - p * (1.0 - cos), p * sin, 1.0 - p * (1.0 - cos2), p * sin2), 0, _two_complex_products
    )
    value, part = _sums(r, i, p, spread, cos, back_cos, back_sin, last_cos, last_sin, FEW, APPROX)
    value2, part2 = _sums(r2, i2, p, spread, cos2, back_cos2, back_sin2, last_cos2, last_sin2, FEW, APPROX)
    return value + value2, part, part2


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
    slot,  # rows that each bag owns where they are padded
    blocks,
    K2: tl.constexpr,
    BC: tl.constexpr,
    BLOCKS2: tl.constexpr,
    APPROX: tl.constexpr,
    PADDED: tl.constexpr,
):
    # the counts first: nothing that other loads bring need be there to ask for them
    column = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    there = column < C
    told = tl.load(weak + (tl.program_id(0) // blocks).to(tl.int64) * C + column, mask=there, other=-1)
    count = tl.where((told < -1) | (told > K2), -2, told).to(tl.int32)  # -2: not a count of this bag
    bag, block, start, size = place(starts, sizes, N, slot, blocks, PADDED)
    row = tl.arange(0, K2)
    cell = row[:, None] * C + column[None, :]
    given, _inside, owned = read(logits, start, size, row, there, cell, C, slot, PADDED)
    FEW: tl.constexpr = given.dtype != tl.float64
    observed = count >= 0
    free = tl.abs(given) < float("inf")
    rough = tl.minimum(tl.maximum(given, -2.0 * LARGEST), 2.0 * LARGEST).to(tl.float32)
    known = tl.where(free, rough, 0.0)
    # free instances and, in the upper half of the same sum, certain positives
    kinds = tl.where(free, 1, tl.where(given == float("inf"), 65536, 0))
    above, below = tl.where(free, rough, float("-inf")), tl.where(free, rough, float("inf"))
    x = given.to(tl.float64)
    # as precise as the logits are, where errors that are alike do not add up over many
    quick = quick_power(-1.4426950408889634 * tl.abs(rough), APPROX).to(tl.float64)
    prior_doubt = quick if FEW and K2 <= SMALL else decay(tl.abs(x))
    outline = tl.reduce((kinds, above, below, known, known * known, 1.0 + prior_doubt), 0, _outline)
    found = outline[0]
    room, wanted = found % 65536, count - found // 65536
    active = observed & (wanted > 0) & (wanted < room)

    shift = _tilt(rough, outline, wanted, room, count, active, K2 <= SMALL, APPROX)
    # far away, all free labels are the forced ones; a missing label leaves the predictions as they are
    forced = tl.where(wanted == room, 1e300, -1e300).to(tl.float64)
    theta = tl.where(active, shift.to(tl.float64), tl.where(observed, forced, 0.0))
    y = x + theta[None, :]
    doubt = decay(tl.abs(y))
    inverse = reciprocal(1.0 + doubt, APPROX)
    up = y > 0
    least = doubt * inverse
    p = tl.where(up, inverse, least)
    spread = 2.0 * least * inverse  # 2 p (1 - p)
    usual = 1.0
    if K2 > SMALL:
        variance = 0.5 * tl.sum(spread, 0)
        M, last = _nodes(variance, tl.abs(tl.sum(p, 0) - count), room, active)
        circle = _first_nodes(M, tl.where(active, count, 0) % M, APPROX)
        usual = 1.0 / (1.0 + tl.sqrt(tl.maximum(variance, 0.0)))

    # log P(w) = log P_theta(w) + sum_k log(1 + e^(x + theta)) - log(1 + e^x) - theta w, taken apart so that a shift
    # of any size leaves no trace
    turned = tl.where(free & (up != (given > 0)), -tl.abs(x), 0.0)
    if K2 <= PRODUCTS:
        chosen, ups, norms = tl.reduce((turned, up.to(tl.int32), 1.0 + doubt), 0, _two_sums_and_product)
        norms = norms * reciprocal(outline[5], APPROX)
    else:
        chosen, ups = tl.reduce((turned + tl.log((1.0 + doubt) / (1.0 + prior_doubt)), up.to(tl.int32)), 0, _two_sums)
        norms = tl.full((BC,), 1.0, tl.float64)
    shifted = chosen + tl.where(active, theta, 0.0) * (ups - count)
    if K2 <= SMALL:
        M = tl.maximum((size + 3) // 4, 1) * 4 + 1  # the least of its kind above the size
        circle = _first_nodes(M, tl.where(observed & (count < M), count, 0), APPROX)
    # comparisons that no NaN passes
    strange = ~((shifted > float("-inf")) & (norms < float("inf")))
    strange = strange | (count < -1) | (observed & ((wanted < 0) | (wanted > room)))
    strange = strange | (outline[1] > LARGEST) | (outline[2] < -LARGEST)

    # the node t = 0 gives 1 to every sum; the others count twice, since the conjugate half is not walked
    total = tl.zeros((BC,), tl.float64)
    left_out = tl.zeros((K2, BC), tl.float64)
    part, cos, sin, cos2, sin2, back_cos, back_sin, back_cos2, back_sin2 = circle
    by_cos, by_sin, turn_cos, turn_sin = cos2, sin2, back_cos2, back_sin2
    least_total, scaled = LOST * usual * M.to(tl.float64), norms * part
    node = 1
    more = True
    while more:
        value, one, other = _two_nodes(
            p, spread, cos, sin, cos2, sin2, back_cos, back_sin, back_cos2, back_sin2, FEW, APPROX
        )
        total += value
        left_out += one
        left_out += other
        cos, sin = turned_by(cos, sin, by_cos, by_sin)
        cos2, sin2 = turned_by(cos2, sin2, by_cos, by_sin)
        back_cos, back_sin = turned_by(back_cos, back_sin, turn_cos, turn_sin)
        back_cos2, back_sin2 = turned_by(back_cos2, back_sin2, turn_cos, turn_sin)
        node += 2
        more = 2 * node < M
        if K2 > SMALL:
            more = more & (1.0 - cos <= last)
    total = 1.0 + 2.0 * total
    trusted = active & (total >= least_total)
    strange = strange | (active & ~trusted)
    strange = (strange & there) | (size < 1) | (size > K2)
    scale = reciprocal(tl.where(trusted, total, 1.0), APPROX)
    both = tl.where(active, 2.0 * scale, 0.0)
    q = (p * (scale[None, :] + both[None, :] * left_out)).to(given.dtype)
    tl.store(posterior + start * C + cell, tl.minimum(tl.maximum(q, 0.0), 1.0), mask=owned)
    log_chance = tl.where(observed, shifted + log(tl.where(trusted, total * scaled, norms), APPROX), 0.0)
    log_chance, strange = tl.reduce((log_chance, strange.to(tl.int32)), 0, _sum_and_most)
    before = publish(bag, block, log_chance, strange, counter, likelihood, status, B, blocks)
    collect(bag, before, counter, likelihood, status, answer, B, blocks, BLOCKS2)


# known counts (B, C), -1 where missing
solve_counts = partial(launch, _solve_counts, TILES)
