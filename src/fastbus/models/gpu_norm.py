"""Normalisation by the batch, rectifier and a sum in front or behind, on a GPU: three passes forth, three back.

Values are (M, C), M positions of all images and C channels, which lie last. Programs own runs of rows; what they count
is merged by a second, small launch in a fixed order, so that results repeat themselves. Means and squared deviations
are merged as Chan, Golub and LeVeque do, which cancels nothing.
    z = (x - mean) * inverse * weight + bias [+ after],   y = z or, below 0, slope * z
    g = dy * (1 or slope),   dx = weight * inverse * (g - mean(g) - xhat * mean(g * xhat)),   dafter = g
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from fastbus.inference.kernels.gpu_launch import on

TILE, WARPS = 4096, 8  # values that a program looks at together, and the threads it has, 32 times that
COUNTED, COUNTING, AHEAD = 4096, 8, 1  # the same of programs that count, and tiles that are fetched ahead
PROGRAMS = 528  # that count: four for each multiprocessor of an H200, whose loads hide each other's waiting
MERGED = 8192  # of their results that a merging program looks at together


@triton.jit
def _tile(first, M, C: tl.constexpr, ROWS: tl.constexpr):
    """Places (ROWS, C) of a tile and which of its rows there are."""
    row = first + tl.arange(0, ROWS)
    return row[:, None].to(tl.int64) * C + tl.arange(0, C)[None, :], (row < M)[:, None]


@triton.jit
def _count(
    x, before, total, means, squares, M,
    C: tl.constexpr, ROWS: tl.constexpr, EACH: tl.constexpr, SUM: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Mean and squared deviations of each channel, over EACH tiles of rows; the sum is laid down on the way.

    Every place of the tile counts for itself, so that nothing waits for others before the end.
    """
    mean, square = tl.zeros((ROWS, C), tl.float32), tl.zeros((ROWS, C), tl.float32)
    start = tl.program_id(0) * EACH * ROWS
    for i in tl.range(0, EACH, num_stages=AHEAD):
        at, there = _tile(start + i * ROWS, M, C, ROWS)
        given = tl.load(x + at, mask=there, other=0.0)
        if SUM:
            given = (given.to(tl.float32) + tl.load(before + at, mask=there, other=0.0).to(tl.float32)).to(given.dtype)
            tl.store(total + at, given, mask=there)
        value = given.to(tl.float32)
        apart = tl.where(there, value - mean, 0.0)
        mean += apart * (1.0 / (i + 1))
        square += apart * (value - mean)
    rows_left = M - start - tl.arange(0, ROWS)
    number = tl.maximum(tl.minimum((rows_left + ROWS - 1) // ROWS, EACH), 0).to(tl.float32)[:, None]
    every = tl.maximum(tl.minimum(M - start, EACH * ROWS), 1).to(tl.float32)
    middle = tl.sum(number * mean, 0) / every
    apart = mean - middle[None, :]
    at = tl.program_id(0) * C + tl.arange(0, C)
    tl.store(means + at, middle)
    tl.store(squares + at, tl.sum(square + number * apart * apart, 0))


@triton.jit
def _merge(
    means, squares, running_mean, running_var, mean_out, inverse_out, M, owned, programs, momentum, eps,
    C: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """All programs' counts together, and what remains of them from step to step. owned: rows of a program."""
    column, part = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PARTS)
    at, there = part[:, None] * C + column[None, :], (part < programs)[:, None]
    number = tl.maximum(tl.minimum(M - part * owned, owned), 0).to(tl.float32)[:, None]
    means_ = tl.load(means + at, mask=there, other=0.0)
    mean = tl.sum(number * means_, 0) / M
    apart = means_ - mean[None, :]
    square = tl.sum(tl.load(squares + at, mask=there, other=0.0) + number * apart * apart, 0)
    tl.store(mean_out + column, mean)
    tl.store(inverse_out + column, 1.0 / tl.sqrt(square / M + eps))
    old_mean, old_var = tl.load(running_mean + column), tl.load(running_var + column)
    tl.store(running_mean + column, old_mean + momentum * (mean - old_mean))
    tl.store(running_var + column, old_var + momentum * (square / (M - 1) - old_var))


@triton.jit
def _apply(
    x, mean, inverse, weight, bias, after, y, M, slope, C: tl.constexpr, ROWS: tl.constexpr, AFTER: tl.constexpr
):
    column = tl.arange(0, C)
    scale = tl.load(inverse + column) * tl.load(weight + column)
    at, there = _tile(tl.program_id(0) * ROWS, M, C, ROWS)
    value = tl.load(x + at, mask=there, other=0.0)
    z = (value.to(tl.float32) - tl.load(mean + column)[None, :]) * scale[None, :] + tl.load(bias + column)[None, :]
    if AFTER:
        z += tl.load(after + at, mask=there, other=0.0).to(tl.float32)
    tl.store(y + at, tl.where(z > 0, z, slope * z).to(value.dtype), mask=there)


@triton.jit
def _slopes(dy, x, y, at, there, mean, scale, bias, slope, AFTER: tl.constexpr):
    """g and x - mean of a tile. The sign of z is that of y, or is found anew where that reads less."""
    apart = tl.load(x + at, mask=there, other=0.0).to(tl.float32) - mean[None, :]
    sign = apart * scale[None, :] + bias[None, :]
    if AFTER:
        sign = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
    g = tl.load(dy + at, mask=there, other=0.0).to(tl.float32)
    return tl.where(sign > 0, g, slope * g), apart


@triton.jit
def _count_back(
    dy, x, y, mean, inverse, weight, bias, sums, products, M, slope,
    C: tl.constexpr, ROWS: tl.constexpr, EACH: tl.constexpr, AFTER: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Sums of g and of g * xhat, over EACH tiles of rows."""
    column = tl.arange(0, C)
    middle, unit, shift = tl.load(mean + column), tl.load(inverse + column), tl.load(bias + column)
    scale = unit * tl.load(weight + column)
    total, product = tl.zeros((ROWS, C), tl.float32), tl.zeros((ROWS, C), tl.float32)
    for i in tl.range(0, EACH, num_stages=AHEAD):
        at, there = _tile((tl.program_id(0) * EACH + i) * ROWS, M, C, ROWS)
        g, apart = _slopes(dy, x, y, at, there, middle, scale, shift, slope, AFTER)
        total += g  # 0 in rows that are not there
        product += g * apart
    at = tl.program_id(0) * C + column
    tl.store(sums + at, tl.sum(total, 0))
    tl.store(products + at, tl.sum(product, 0) * unit)


@triton.jit
def _merge_back(sums, products, dbias, dweight, programs, C: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    column, part = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PARTS)
    at, there = part[:, None] * C + column[None, :], (part < programs)[:, None]
    tl.store(dbias + column, tl.sum(tl.load(sums + at, mask=there, other=0.0), 0))
    tl.store(dweight + column, tl.sum(tl.load(products + at, mask=there, other=0.0), 0))


@triton.jit
def _apply_back(
    dy, x, y, mean, inverse, weight, bias, dbias, dweight, dtotal, dx, dafter, M, slope,
    C: tl.constexpr, ROWS: tl.constexpr, AFTER: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, C)
    middle, unit, shift = tl.load(mean + column), tl.load(inverse + column), tl.load(bias + column)
    scale = unit * tl.load(weight + column)
    at, there = _tile(tl.program_id(0) * ROWS, M, C, ROWS)
    g, apart = _slopes(dy, x, y, at, there, middle, scale, shift, slope, AFTER)
    if AFTER:
        tl.store(dafter + at, g.to(dafter.dtype.element_ty), mask=there)
    common, along = tl.load(dbias + column) / M, unit * tl.load(dweight + column) / M
    out = scale[None, :] * (g - common[None, :] - apart * along[None, :])
    if SUM:
        out += tl.load(dtotal + at, mask=there, other=0.0).to(tl.float32)
    tl.store(dx + at, out.to(dx.dtype.element_ty), mask=there)


class _Grid(NamedTuple):
    """How (M, C) values are shared among programs."""

    M: int
    C: int
    rows: int  # of a tile that is counted
    each: int  # such tiles of a program
    programs: int  # that count

    @property
    def counting(self) -> dict[str, int]:
        return {"C": self.C, "ROWS": self.rows, "EACH": self.each, "AHEAD": AHEAD, "num_warps": COUNTING}

    def applying(self) -> tuple[tuple[int], dict[str, int]]:
        rows = max(1, TILE // self.C)
        return (triton.cdiv(self.M, rows),), {"C": self.C, "ROWS": rows, "num_warps": WARPS}

    def merging(self) -> tuple[tuple[int], dict[str, int]]:
        parts = triton.next_power_of_2(self.programs)
        columns = min(self.C, max(1, MERGED // parts))
        return (self.C // columns,), {"C": self.C, "PARTS": parts, "COLUMNS": columns}


def _grid(x: Tensor) -> _Grid:
    C = x.shape[1]
    M = x.numel() // C
    rows = max(1, COUNTED // C)
    tiles = triton.cdiv(M, rows)
    each = triton.cdiv(tiles, PROGRAMS)
    return _Grid(M, C, rows, each, triton.cdiv(tiles, each))


class FusedNorm(torch.autograd.Function):
    """y, or where there is something to add before, (x + before, y). Running statistics are updated in place."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, before: Tensor | None, after: Tensor | None, weight: Tensor, bias: Tensor,
        running_mean: Tensor, running_var: Tensor, momentum: float, eps: float, slope: float,
    ) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
        grid = _grid(x)
        before, after = (None if other is None else _last(other, x) for other in (before, after))
        total = x if before is None else torch.empty_like(x)
        parts = x.new_empty((2, grid.programs, grid.C), dtype=torch.float32)
        mean, inverse = x.new_empty((2, grid.C), dtype=torch.float32).unbind()
        y = torch.empty_like(x)
        with on(x.device):
            _count[(grid.programs,)](
                x, x if before is None else before, total, *parts.unbind(), grid.M,
                SUM=before is not None, **grid.counting,
            )  # fmt: skip
            programs, merging = grid.merging()
            owned = grid.each * grid.rows
            _merge[programs](
                *parts.unbind(), running_mean, running_var, mean, inverse, grid.M, owned, grid.programs, momentum, eps,
                **merging,
            )  # fmt: skip
            programs, applying = grid.applying()
            _apply[programs](
                total, mean, inverse, weight, bias, x if after is None else after, y, grid.M, slope,
                AFTER=after is not None, **applying,
            )  # fmt: skip
        ctx.save_for_backward(total, weight, bias, mean, inverse, None if after is None else y)
        ctx.slope, ctx.summed = slope, before is not None
        ctx.set_materialize_grads(False)
        return y if before is None else (total, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * 5  # statistics and numbers
        x, weight, bias, mean, inverse, y = ctx.saved_tensors
        dtotal, dy = grads if ctx.summed else (None, *grads)
        if dy is None:
            return dtotal, dtotal, None, None, None, *nothing
        grid = _grid(x)
        dy, dtotal = _last(dy, x), None if dtotal is None else _last(dtotal, x)
        parts = x.new_empty((2, grid.programs, grid.C), dtype=torch.float32)
        dbias, dweight = x.new_empty((2, grid.C), dtype=torch.float32).unbind()
        dx, dafter = torch.empty_like(x), None if y is None else torch.empty_like(x)
        seen = x, x if y is None else y, mean, inverse, weight, bias
        with on(x.device):
            _count_back[(grid.programs,)](
                dy, *seen, *parts.unbind(), grid.M, ctx.slope, AFTER=y is not None, **grid.counting
            )
            programs, merging = grid.merging()
            _merge_back[programs](*parts.unbind(), dbias, dweight, grid.programs, **merging)
            programs, applying = grid.applying()
            _apply_back[programs](
                dy, *seen, dbias, dweight, dy if dtotal is None else dtotal, dx, dx if dafter is None else dafter,
                grid.M, ctx.slope, AFTER=y is not None, SUM=dtotal is not None, **applying,
            )  # fmt: skip
        return dx, dx if ctx.summed else None, dafter, dweight, dbias, *nothing


fused_norm: Callable[..., Any] = FusedNorm.apply


def _last(other: Tensor, x: Tensor) -> Tensor:
    """Laid out as x is, channels last, and of its type."""
    return other.to(x.dtype).contiguous(memory_format=torch.channels_last)
