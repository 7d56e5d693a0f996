"""Two kernels that measure a GPU and solve nothing: one that does nothing, one that only multiplies and adds."""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

WIDTH = 256  # numbers a program holds in each of its eight registers


@triton.jit
def _empty(place):
    pass


@triton.jit
def _multiply_add(place, rounds, width: tl.constexpr):
    index = tl.program_id(0) * width + tl.arange(0, width)
    a = tl.load(place + index)
    # eight sums that do not wait for each other
    x0, x1, x2, x3 = a, a + 1, a + 2, a + 3
    x4, x5, x6, x7 = a + 4, a + 5, a + 6, a + 7
    i = 0
    while i < rounds:
        x0 = x0 * a + a
        x1 = x1 * a + a
        x2 = x2 * a + a
        x3 = x3 * a + a
        x4 = x4 * a + a
        x5 = x5 * a + a
        x6 = x6 * a + a
        x7 = x7 * a + a
        i += 1
    tl.store(place + index, x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7)


def launch_empty(place: Tensor) -> None:
    launch: Any = _empty[(1,)]
    launch(place)


def launch_multiply_add(place: Tensor, rounds: int) -> int:
    """Multiply and add on all numbers of `place`, a multiple of WIDTH; returns the operations done."""
    launch: Any = _multiply_add[(len(place) // WIDTH,)]
    launch(place, rounds, width=WIDTH, num_warps=8)
    return len(place) * 8 * 2 * rounds
