"""The joint lattice of exact counts, or of classes seen, under a softmax head: one launch for the whole E-step.

A program solves one bag. It keeps the classes that the bag holds, tilts them until their expected counts agree
with the known ones (the posterior does not change, and nothing underflows), walks the lattice forward and
backward in float64, and writes posteriors and the log-likelihood. Classes come in descending order of counts:
the first has no axis, since its count follows from the others.
Shapes: N instances in all, C classes, B bags, P classes a bag holds at most.
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbus.inference.kernels.gpu_launch import on

TILE = 8192  # lattice points times classes a program handles at a time
SHARE = 512  # of them for each warp; a bag is one program, so that large lattices take many warps
MOST_MARKED = tl.constexpr(32)  # classes whose digits fit into the bits of a number
TILTS = 12
LONGEST = 1024  # instances of a bag, of few classes
BUDGET = 4096
MOST_MESSAGES = 2**29  # 4 GB of scratch
MOST_CELLS = 2**13  # instances times classes that a program can hold


@triton.jit
def _solve(
    logits,  # (N, C)
    starts,  # (B,) int64: first instance of each bag
    sizes,  # (B,) int64
    names,  # (B, C) int64: classes, those first that the bag holds
    counts,  # (B, C) int64: theirs, in descending order
    scratch,  # (B, 2, K + 1, Z) float64: forward and backward messages
    tilted,  # (B, K, P2) float64
    marks,  # (B, 2, Z) int32: for each point the classes it may be reached by, and those it may be left by
    posterior,  # (N, C), zeros
    likelihood,  # (B,) float64
    status,  # (B,) int32
    N,
    C,
    P,
    K,
    Z,
    P2: tl.constexpr,
    K2: tl.constexpr,
    BLOCK: tl.constexpr,
    SEEN: tl.constexpr,
    STEPS: tl.constexpr,
):
    bag = tl.program_id(0).to(tl.int64)
    start = tl.load(starts + bag)
    size = tl.load(sizes + bag)
    strange = (size < 1) | (size > K) | (start < 0) | (start + size > N)
    size = tl.where(strange, 0, size).to(tl.int32)
    column = tl.arange(0, P2)
    row = tl.arange(0, K2)
    count = tl.load(counts + bag * C + column, mask=column < P, other=0).to(tl.int32)
    name = tl.load(names + bag * C + column, mask=column < P, other=0)
    held = count > 0
    free = (column == 0) & (not SEEN)
    radix = tl.where(held & ~free, (1 if SEEN else count) + 1, 1)
    # missing labels, classes beyond what a bag has room for, counts that do not fill it, lattices without room
    strange = strange | (tl.load(counts + bag * C + C - 1) < 0)
    strange = strange | ((P < C) & (tl.load(counts + bag * C + P, mask=P < C, other=0) > 0))
    strange = strange | (tl.exp2(tl.sum(tl.log2(radix.to(tl.float64)), 0)) > Z + 0.5)
    if SEEN:
        strange = strange | (tl.max(count, 0) != 1) | (tl.sum(held.to(tl.int32), 0) > size)
    else:
        strange = strange | (tl.sum(tl.where(held, count, 0), 0) != size)
    size = tl.where(strange, 0, size)
    held = held & (size > 0)
    radix = tl.where(size > 0, radix, 1)
    real = row < size

    # log probabilities of all classes need their sum, of which the bag may hold only a few
    total = tl.zeros((K2,), tl.float64)
    peak = tl.full((K2,), float("-inf"), tl.float64)
    c = 0
    while c < C:
        value = tl.load(logits + (start + row) * C + c, mask=real, other=0.0).to(tl.float64)
        higher = tl.maximum(peak, value)
        total = total * tl.exp(peak - higher) + tl.exp(value - higher)
        peak = higher
        c += 1
    cell = (start + row)[:, None] * C + name[None, :]
    inside = real[:, None] & held[None, :]
    x = tl.load(logits + cell, mask=inside, other=float("-inf")).to(tl.float64)
    top = tl.max(x, 1)
    top = tl.where(real & (top > float("-inf")), top, 0.0)
    p = tl.where(inside, tl.exp(x - top[:, None]), 0.0)
    norm = tl.where(real, tl.sum(p, 1), 1.0)
    p = p / norm[:, None]
    level = tl.sum(tl.where(real, top + tl.log(norm) - peak - tl.log(total), 0.0), 0)

    # tilting: multiply each class by what its expected count lacks
    wanted = tl.where(held, count, 1).to(tl.float64)
    if not SEEN:
        for _ in range(STEPS):
            expected = tl.sum(p, 0)
            factor = tl.where(held & (expected > 0), wanted / tl.where(expected > 0, expected, 1.0), 1.0)
            p = p * factor[None, :]
            norm = tl.where(real, tl.sum(p, 1), 1.0)
            p = p / norm[:, None]
            level += tl.sum(tl.log(norm), 0) - tl.sum(tl.where(held, wanted * tl.log(factor), 0.0), 0)
    tl.store(tilted + (bag * K + row)[:, None] * P2 + column[None, :], p, mask=(row < K)[:, None])

    through = tl.cumprod(radix, 0)
    stride = through // radix
    points = tl.max(through, 0)
    entered = marks + bag * 2 * Z
    leaving = entered + Z

    ahead = scratch + bag * 2 * (K + 1) * Z
    back = ahead + (K + 1) * Z
    point = tl.arange(0, BLOCK)
    z0 = 0
    while z0 < points:
        z = z0 + point
        tl.store(ahead + z, tl.where(z == 0, 1.0, 0.0).to(tl.float64), mask=z < points)
        tl.store(back + size * Z + z, tl.where(z == points - 1, 1.0, 0.0).to(tl.float64), mask=z < points)
        if P2 <= MOST_MARKED:
            # divisions are slow, so that every point's digits are taken apart once
            digit = (z[:, None] // stride[None, :]) % radix[None, :]
            bit = tl.where(held, 1, 0)[None, :] << column[None, :]
            tl.store(entered + z, tl.sum(tl.where(digit > 0, bit, 0), 1), mask=z < points)
            tl.store(leaving + z, tl.sum(tl.where(digit < radix[None, :] - 1, bit, 0), 1), mask=z < points)
        z0 += BLOCK
    tl.debug_barrier()
    k = 0
    while k < size:
        weight = tl.load(tilted + (bag * K + k) * P2 + column)
        z0 = 0
        while z0 < points:
            z = z0 + point
            if P2 <= MOST_MARKED:
                mark = tl.load(entered + z, mask=z < points, other=0)
                moved = ((mark[:, None] >> column[None, :]) & 1) > 0
            else:
                digit = (z[:, None] // stride[None, :]) % radix[None, :]
                moved = (digit > 0) & held[None, :] & (z < points)[:, None]
            before = tl.load(ahead + k * Z + z[:, None] - stride[None, :], mask=moved, other=0.0)
            here = tl.load(ahead + k * Z + z, mask=z < points, other=0.0)
            stays = (moved & SEEN) | (free & held)[None, :]
            before += tl.where(stays, here[:, None], 0.0)
            tl.store(ahead + (k + 1) * Z + z, tl.sum(before * weight[None, :], 1), mask=z < points)
            z0 += BLOCK
        tl.debug_barrier()
        k += 1
    reached = tl.load(ahead + size * Z + points - 1)
    log_chance = tl.log(tl.where(reached > 0, reached, 1.0)) + level
    tl.store(likelihood + bag, log_chance)
    # below that, what underflowed on the way might have mattered
    strange = strange | ~(reached > 1e-250) | ~(log_chance > float("-inf"))
    tl.store(status + bag, strange.to(tl.int32))

    j = 0
    while j < size:
        k = size - 1 - j
        weight = tl.load(tilted + (bag * K + k) * P2 + column)
        belief = tl.zeros((BLOCK, P2), tl.float64)
        z0 = 0
        while z0 < points:
            z = z0 + point
            known = (z < points)[:, None] & held[None, :]
            if P2 <= MOST_MARKED:
                mark = tl.load(entered + z, mask=z < points, other=0)
                entry = ((mark[:, None] >> column[None, :]) & 1) > 0
                mark = tl.load(leaving + z, mask=z < points, other=0)
                moves = ((mark[:, None] >> column[None, :]) & 1) > 0
            else:
                digit = (z[:, None] // stride[None, :]) % radix[None, :]
                entry = (digit > 0) & known
                moves = (digit < radix[None, :] - 1) & known
            after = tl.load(back + (k + 1) * Z + z[:, None] + stride[None, :], mask=moves, other=0.0)
            here = tl.load(back + (k + 1) * Z + z, mask=z < points, other=0.0)
            stays = (entry & SEEN) | (known & free[None, :])
            after += tl.where(stays, here[:, None], 0.0)
            alpha = tl.load(ahead + k * Z + z, mask=z < points, other=0.0)
            belief += after * alpha[:, None]
            tl.store(back + k * Z + z, tl.sum(after * weight[None, :], 1), mask=z < points)
            z0 += BLOCK
        shares = tl.sum(belief, 0) * weight
        q = shares / tl.sum(shares, 0)
        tl.store(posterior + (start + k) * C + name, q.to(posterior.dtype.element_ty), mask=held)
        tl.debug_barrier()
        j += 1


def solve_lattice(
    logits: Tensor,
    starts: Tensor,
    sizes: Tensor,
    weak: Tensor,
    *,
    seen: bool,
    longest: int,
    points: int | None = None,
    budget: int = BUDGET,
    padded: bool = False,
    order: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Posterior (N, C) of the logits' type, log-likelihood (B,) float64 and status (B,) of bags in flat logits (N, C).

    weak (B, C): exact counts that sum to the sizes, or with `seen` which classes occur, 0/1.
    longest, points: bounds on the size of a bag and of its lattice; without `points` the largest lattice is looked
    up, which waits for the device, and counts up to `budget`. padded changes nothing here. order: what `by_count`
    says about `weak`, where it is known already.
    """
    N, C = logits.shape
    B = len(sizes)
    P = min(C, longest)
    if points is None:
        points = int(lattice_points(weak, seen=seen).amax().clamp(max=budget)) if B else 1
    logits, weak = logits.detach().contiguous(), weak.contiguous()
    posterior = torch.zeros_like(logits)
    likelihood = torch.empty(B, dtype=torch.float64, device=logits.device)
    P2, K2 = _padded(longest, C)
    if not B or bags_at_once(longest, points, C) < B:
        return posterior, likelihood, torch.ones(B, dtype=torch.int32, device=logits.device)
    held, names = by_count(weak) if order is None else order
    scratch = logits.new_empty(B * 2 * (longest + 1) * points, dtype=torch.float64)
    tilted = logits.new_empty(B * longest * P2, dtype=torch.float64)
    marks = torch.empty(B * 2 * points, dtype=torch.int32, device=logits.device)
    status = torch.empty(B, dtype=torch.int32, device=logits.device)
    block = max(32, min(TILE // P2, triton.next_power_of_2(points)))
    launch: Any = _solve[(B,)]
    with on(logits.device):
        launch(
            logits,
            starts,
            sizes,
            names,
            held,
            scratch,
            tilted,
            marks,
            posterior,
            likelihood,
            status,
            N,
            C,
            P,
            longest,
            points,
            P2=P2,
            K2=K2,
            BLOCK=block,
            SEEN=seen,
            STEPS=TILTS,
            num_warps=min(16, max(1, block * P2 // SHARE)),
        )
    return posterior, likelihood, status


def bags_at_once(longest: int, points: int, C: int) -> int:
    """How many bags a launch takes: as many as there is room for messages, none where a bag fits into no program."""
    P2, K2 = _padded(longest, C)
    return 0 if K2 * P2 > MOST_CELLS else MOST_MESSAGES // (2 * (longest + 1) * points)


def _padded(longest: int, C: int) -> tuple[int, int]:
    """Powers of two that hold the classes a bag may have, and its instances."""
    return max(2, triton.next_power_of_2(min(C, longest))), triton.next_power_of_2(max(longest, 2))


def by_count(weak: Tensor) -> tuple[Tensor, Tensor]:
    """Counts (B, C) of each bag in descending order, and the classes they belong to."""
    held, names = torch.sort(weak, dim=1, descending=True, stable=True)
    return held, names


def lattice_points(counts: Tensor, *, seen: bool) -> Tensor:
    """Size of each bag's lattice, (B,)."""
    if seen:
        return 2 ** (counts > 0).sum(1).clamp(max=60)
    axes = (counts.clamp(min=0) + 1).double()
    return (axes.log().sum(1) - axes.amax(1).log()).exp().clamp(max=2.0**60).round().long()
