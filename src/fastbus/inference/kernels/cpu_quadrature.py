"""Exact counts of long bags on the CPU: time in proportion to the bag, eight of its instances at a time.

The log odds of a class are shifted until the wanted count is about the expected one, which the posterior does not
feel. The probability of the count is then a sum over M nodes t of
    F(t) e^(-iwt),  F = prod_k f_k,  f_k = 1 - p_k + p_k e^(it),
and the same sum over F / f_k leaves instance k out (quadrature.py has the mathematics). Nodes where |F| is below
rounding are left out, so that some 13 of them do for any bag, and at most 30. Probabilities err by some 1e-15, those
near 0 as well; the recursion of cpu_counts.py, which keeps all digits of these, is the faster one for short bags.
Shapes: N instances in all, C classes, B bags, K instances of a bag.
"""

# Numba compiles these functions, whose types mypy cannot see.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,call-arg,var-annotated"

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from fastbus.inference.kernels import cpu_counts
from fastbus.inference.kernels.cpu_blocks import LARGEST, MISSING, Array, answer, on_arrays, on_tensors, rows_are_right
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

LONGEST = 2**31  # any bag
NEGLIGIBLE = 37.0  # what is left out is below e^-37
GROUP = 4  # nodes worked on at once
MOST_NODES = 64
TILTS = 200  # steps towards the shift at most; some 4 are usual
ABSENT = -1e300  # the log odds of no instance, which fill the last eight up
FLUSH = 512  # a product of as many numbers in [1, 2] does not overflow, and a sum of them hardly rounds
LOST = 1e-3  # a probability this far below the usual has lost digits by cancellation


@part
def _sum(vector, room):
    store(room, 0, vector)
    total = 0.0
    for j in range(LANES):
        total += room[j]
    return total


@part
def _gather(logits, C, start, size, column, x):
    """One class to x, filled up to whole vectors; how many numbers that is, and the range, low > high if one is bad."""
    low, high, right = math.inf, -math.inf, True
    for k in range(size):
        value = np.float64(logits[(start + k) * C + column])
        x[k] = value
        right = right and bool(abs(value) <= LARGEST)
        low, high = min(low, value), max(high, value)
    width = (size + LANES - 1) // LANES * LANES
    for k in range(size, width):
        x[k] = ABSENT
    return width, low if right else math.inf, high


@part
def _moments(x, width, theta, room):
    """Mean and variance of the count under shifted odds."""
    one, nothing, shift = splat(1.0), splat(0.0), splat(theta)
    mean, variance = nothing, nothing
    for k in range(0, width, LANES):
        y = add(load(x, k), shift)
        doubt = exp_of_negative(subtract(nothing, magnitude(y)))
        large = divide(one, add(one, doubt))
        small = multiply(doubt, large)
        mean = add(mean, where_above(y, nothing, large, small))
        variance = fma(small, large, variance)
    return _sum(mean, room), _sum(variance, room)


@part
def _find_shift(x, width, size, count, low, high, room):
    """A shift under which the expected count is within a fifth of a deviation of the wanted one.

    The log odds of the mean hardly bend, so Newton's steps are taken there, within a shrinking bracket.
    """
    spare = math.log(size) + 1
    bottom, top = -high - spare, -low + spare
    theta = min(max(bottom, 0.0), top)
    goal = math.log(count / (size - count))
    before = math.inf
    for _ in range(TILTS):
        mean, variance = _moments(x, width, theta, room)
        gap = mean - count
        if abs(gap) <= 0.05 + 0.2 * math.sqrt(variance):
            break
        if gap <= 0:
            bottom = theta
        if gap >= 0:
            top = theta
        off = goal - math.log(mean / (size - mean))
        proposed = theta + off * mean * (size - mean) / (size * variance)
        if bottom < proposed < top and abs(off) < 0.5 * before:
            theta, before = proposed, abs(off)
        else:
            theta, before = 0.5 * (bottom + top), math.inf
    return theta


@part
def _weigh(x, width, theta, p, skew, room):
    """p and (1 - 2p)^2 under shifted odds; mean and variance of the count, and what turns P(count) into the likelihood.

    That is taken apart so that a shift of any size leaves no trace: the likely labels' probability without the shift,
    how many of these are positive, and what others add to them.
    """
    one, nothing, shift = splat(1.0), splat(0.0), splat(theta)
    mean, variance, chosen, taken, after, before = nothing, nothing, nothing, nothing, one, one
    level = 0.0
    for k in range(0, width, LANES):
        value = load(x, k)
        y = add(value, shift)
        doubt = exp_of_negative(subtract(nothing, magnitude(y)))
        large = divide(one, add(one, doubt))
        small = multiply(doubt, large)
        yes = where_above(y, nothing, large, small)
        distance = multiply(subtract(one, doubt), large)
        store(p, k, yes)
        store(skew, k, multiply(distance, distance))
        mean = add(mean, yes)
        variance = fma(small, large, variance)
        taken = add(taken, where_above(y, nothing, one, nothing))
        size_of = magnitude(value)
        up_now = where_above(value, nothing, nothing, size_of)
        down_now = where_above(value, nothing, size_of, nothing)
        chosen = add(chosen, where_above(y, nothing, up_now, down_now))
        after = fma(after, doubt, after)
        before = fma(before, exp_of_negative(subtract(nothing, size_of)), before)
        if k % (FLUSH * LANES) == (FLUSH - 1) * LANES:
            level += _log_product(after, room) - _log_product(before, room) - _sum(chosen, room)
            after, before, chosen = one, one, nothing
    level += _log_product(after, room) - _log_product(before, room) - _sum(chosen, room)
    return _sum(mean, room), _sum(variance, room), _sum(taken, room), level


@part
def _log_product(vector, room):
    store(room, 0, vector)
    total = 0.0
    for j in range(LANES):
        total += math.log(room[j])
    return total


@part
def _place_nodes(size, count, offset, variance, near, far, sine, turn):
    """The circle is divided into M, an odd number; nodes that matter in its first half, without t = 0.

    near, far: squares of the cosine and the sine of t / 2. turn: w t.
    """
    third = NEGLIGIBLE / 3
    bernstein = third + math.sqrt(third * third + 2 * NEGLIGIBLE * variance)
    hoeffding = math.sqrt(0.5 * NEGLIGIBLE * size)
    M = int(min(min(bernstein, hoeffding) + offset + 2, size)) + 1
    M += 1 - M % 2
    # |F| falls like e^(-2 variance sin^2(t/2)); an instance left out takes a quarter off the variance at most
    last = 0.5 * NEGLIGIBLE / max(variance - 0.25, 1.0)
    nodes = 0
    while nodes < MOST_NODES - GROUP and 2 * (nodes + 1) < M:
        half = math.pi * (nodes + 1) / M
        if math.sin(half) ** 2 > last:
            break
        near[nodes], far[nodes] = math.cos(half) ** 2, math.sin(half) ** 2
        sine[nodes] = math.sin(2 * half)
        turn[nodes] = 2 * math.pi * ((count * (nodes + 1)) % M) / M
        nodes += 1
    filled = nodes
    while filled % GROUP:
        near[filled], far[filled], sine[filled], turn[filled] = 1.0, 0.0, 0.0, 0.0
        filled += 1
    return M, nodes, filled


@part
def _characteristic(p, width, far, sine, first, real, imaginary, room):
    """F at four nodes from `first` on."""
    one, nothing = splat(1.0), splat(0.0)
    a0, a1, a2, a3 = one, one, one, one
    b0, b1, b2, b3 = nothing, nothing, nothing, nothing
    c0, c1 = splat(-2 * far[first]), splat(-2 * far[first + 1])
    c2, c3 = splat(-2 * far[first + 2]), splat(-2 * far[first + 3])
    s0, s1, s2, s3 = splat(sine[first]), splat(sine[first + 1]), splat(sine[first + 2]), splat(sine[first + 3])
    for k in range(0, width, LANES):
        v = load(p, k)
        r0, r1, r2, r3 = fma(v, c0, one), fma(v, c1, one), fma(v, c2, one), fma(v, c3, one)
        i0, i1, i2, i3 = multiply(v, s0), multiply(v, s1), multiply(v, s2), multiply(v, s3)
        a0, b0 = subtract(multiply(a0, r0), multiply(b0, i0)), fma(a0, i0, multiply(b0, r0))
        a1, b1 = subtract(multiply(a1, r1), multiply(b1, i1)), fma(a1, i1, multiply(b1, r1))
        a2, b2 = subtract(multiply(a2, r2), multiply(b2, i2)), fma(a2, i2, multiply(b2, r2))
        a3, b3 = subtract(multiply(a3, r3), multiply(b3, i3)), fma(a3, i3, multiply(b3, r3))
    real[first], imaginary[first] = _complex_product(a0, b0, room)
    real[first + 1], imaginary[first + 1] = _complex_product(a1, b1, room)
    real[first + 2], imaginary[first + 2] = _complex_product(a2, b2, room)
    real[first + 3], imaginary[first + 3] = _complex_product(a3, b3, room)


@part
def _complex_product(a, b, room):
    store(room, 0, a)
    store(room, LANES, b)
    x, y = room[0], room[LANES]
    for j in range(1, LANES):
        x, y = x * room[j] - y * room[LANES + j], x * room[LANES + j] + y * room[j]
    return x, y


@part
def _turn_back(nodes, near, far, sine, turn, real, imaginary):
    """F e^(-iwt) to `real`, the same one count earlier to `imaginary`, real parts both; the sum over the circle."""
    total = 1.0
    for n in range(nodes):
        cos, sin = math.cos(turn[n]), math.sin(turn[n])
        value = real[n] * cos + imaginary[n] * sin
        swing = imaginary[n] * cos - real[n] * sin
        real[n], imaginary[n] = value, value * (near[n] - far[n]) - swing * sine[n]
        total += 2 * value
    return total


@part
def _leave_one_out(p, skew, width, filled, near, far, value, ahead, total, q):
    """The posterior: p times the sum over F / f_k one count earlier. Four quotients share a division."""
    one, two, nothing, scale = splat(1.0), splat(2.0), splat(0.0), splat(1 / total)
    for k in range(0, width, LANES):
        yes, square = load(p, k), load(skew, k)
        rest = nothing
        for n in range(0, filled, GROUP):
            n0 = fma(yes, splat(value[n] - ahead[n]), splat(ahead[n]))
            n1 = fma(yes, splat(value[n + 1] - ahead[n + 1]), splat(ahead[n + 1]))
            n2 = fma(yes, splat(value[n + 2] - ahead[n + 2]), splat(ahead[n + 2]))
            n3 = fma(yes, splat(value[n + 3] - ahead[n + 3]), splat(ahead[n + 3]))
            d0, d1 = fma(square, splat(far[n]), splat(near[n])), fma(square, splat(far[n + 1]), splat(near[n + 1]))
            d2 = fma(square, splat(far[n + 2]), splat(near[n + 2]))
            d3 = fma(square, splat(far[n + 3]), splat(near[n + 3]))
            left, right = fma(n0, d1, multiply(n1, d0)), fma(n2, d3, multiply(n3, d2))
            d0, d2 = multiply(d0, d1), multiply(d2, d3)
            rest = add(rest, divide(fma(left, d2, multiply(right, d0)), multiply(d0, d2)))
        found = multiply(multiply(yes, scale), fma(rest, two, one))
        found = where_above(found, nothing, found, nothing)
        store(q, k, where_above(found, one, one, found))


@part
def _settled(x, size, count, q):
    """None, all, or nothing known: the posterior to q and the log-likelihood."""
    level, part_of = 0.0, 0.0
    for k in range(size):
        if k % FLUSH == 0:
            level, part_of = level + part_of, 0.0
        value = x[k]
        doubt = math.exp(-abs(value))
        if count == MISSING:
            q[k] = (1.0 if value > 0 else doubt) / (1 + doubt)
            continue
        q[k] = 0.0 if count == 0 else 1.0
        part_of -= max(value if count == 0 else -value, 0.0) + math.log1p(doubt)
    return level + part_of


@kernel
def _solve(logits, C, starts, sizes, weak, posterior, likelihood):
    if not rows_are_right(len(logits) // C, starts, sizes):
        return 1
    x, p, skew = np.empty((3, sizes.max() + LANES))
    near, far, sine, turn, real, imaginary = np.empty((6, MOST_NODES))
    room = np.empty(2 * LANES)
    for bag in range(len(sizes)):
        start, size = starts[bag], sizes[bag]
        likelihood[bag] = 0.0
        for column in range(C):
            count = weak[bag * C + column]
            width, low, high = _gather(logits, C, start, size, column, x)
            if low > high or count < MISSING or count > size:
                return 1
            if count <= 0 or count == size:
                likelihood[bag] += _settled(x, size, count, p)
            else:
                theta = _find_shift(x, width, size, count, low, high, room)
                mean, variance, taken, level = _weigh(x, width, theta, p, skew, room)
                offset = abs(mean - count)
                M, nodes, filled = _place_nodes(size, count, offset, variance, near, far, sine, turn)
                for first in range(0, filled, GROUP):
                    _characteristic(p, width, far, sine, first, real, imaginary, room)
                total = _turn_back(nodes, near, far, sine, turn, real, imaginary)
                real[nodes:filled], imaginary[nodes:filled] = 0.0, 0.0
                if not total * (1 + math.sqrt(variance)) >= LOST * M:
                    return 1
                # a probability, which rounding may leave above 1
                likelihood[bag] += min(level + theta * (taken - count) + math.log(total / M), 0.0)
                _leave_one_out(p, skew, width, filled, near, far, real, imaginary, total, p)
            for k in range(size):
                posterior[(start + k) * C + column] = p[k]
    return 0


def solve_counts(logits: Tensor, starts: Tensor, sizes: Tensor, weak: Tensor) -> tuple[Tensor, Tensor, int]:
    """Posterior (N, C) of the logits' type, log-likelihood (B,) in float64 and a status, 0 if all is well.

    logits (N, C); starts, sizes (B,): the rows of each bag; weak (B, C): counts, -1 where missing.
    """
    return on_tensors(solve_arrays, logits, starts, sizes, weak)


def solve_arrays(logits: Array, starts: Array, sizes: Array, weak: Array) -> tuple[Array, Array, int]:
    """The same for contiguous arrays; logits (..., C) may have more axes, which make up the rows."""
    return on_arrays(_solve, logits, starts, sizes, weak)


def longest_by_recursion(C: int) -> int:
    """Measured: beyond, quadrature is the faster one. The recursion takes eight classes at once, or one in their time.

    It must not depend on other bags, or the bits of an answer would.
    """
    return min(64 + 32 * C, 256)


def solve_bags(logits: Array, starts: Array, sizes: Array, weak: Array, *, longest: int) -> tuple[Array, Array, int]:
    """Short bags by recursion, long ones by quadrature. longest: a bound on the sizes."""
    limit = longest_by_recursion(logits.shape[-1])
    if longest <= limit:
        return cpu_counts.solve_arrays(logits, starts, sizes, weak)
    long = sizes > limit
    if long.all():
        return solve_arrays(logits, starts, sizes, weak)
    # rows of other bags are zeros in either answer
    posterior, likelihood = answer(logits, sizes)
    for solve, chosen in ((cpu_counts.solve_arrays, ~long), (solve_arrays, long)):
        if chosen.any():
            found, likelihood[chosen], status = solve(logits, starts[chosen], sizes[chosen], weak[chosen])
            if status:
                return posterior, likelihood, status
            posterior += found
    return posterior, likelihood, 0
