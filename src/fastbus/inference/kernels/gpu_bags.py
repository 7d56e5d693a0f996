"""Bags of one-vs-rest chains on a GPU: a program takes one bag and a few of its classes, and one launch takes all.

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

from fastbus.inference.kernels.gpu_launch import APPROXIMATE, block_of, counters, on

LONGEST = 8192  # instances of a bag that a program can hold; larger bags take plain torch
WIDEST = 1 << 16  # classes; the last program of a bag holds the parts of all of them
SHAPES = ["B", "N", "C", "slot", "blocks"]  # numbers that no kernel is compiled anew for


class Tile(NamedTuple):
    """How a program is laid out: classes it takes, and its warps."""

    classes: int
    warps: int


@triton.jit
def place(starts, sizes, N, slot, blocks, PADDED: tl.constexpr):
    """Bag and class block of a program, the bag's first row, and its size: 0 where rows are not there."""
    bag = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    size = tl.load(sizes + bag)
    if PADDED:
        start = bag * slot  # logits need not wait for it
        size = tl.where((size >= 0) & (size <= slot), size, 0)
    else:
        start = tl.load(starts + bag)
        size = tl.where((start >= 0) & (size >= 0) & (size <= N - start), size, 0)
    return bag, block, start, size.to(tl.int32)


@triton.jit
def read(logits, start, size, row, there, cell, C, slot, PADDED: tl.constexpr):
    """The logits (K2, BC) of a program, and which of them there are; minus infinity elsewhere."""
    inside = (row < size)[:, None] & there[None, :]
    if PADDED:
        owned = (row < slot)[:, None] & there[None, :]
        given = tl.load(logits + start * C + cell, mask=owned, other=float("-inf"))
        given = tl.where(inside, given, float("-inf"))
    else:
        owned = inside
        given = tl.load(logits + start * C + cell, mask=inside, other=float("-inf"))
    return given, inside, owned


def launch(
    kernel: Any,
    tiles: dict[int, Tile],
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
    """Posterior (N, C), log-likelihood (B,) float64 and status (B,).

    longest: a bound on the sizes, at most `LONGEST`.
    padded: bag b owns the `longest` rows from row b * longest on, of which those after its size get zeros.
    rounded: log-likelihoods of the logits' type.
    """
    N, C = logits.shape
    B = sizes.shape[0]
    K2 = block_of(longest, 16)
    # beyond the table a thread keeps 16 positions of one class, and warps are added
    tile = tile or tiles.get(K2) or Tile(1, K2 // 512)
    BC = min(tile.classes, block_of(C, 1))
    blocks = -(-C // BC)
    logits, weak = logits.detach().contiguous(), weak.contiguous()
    padded = padded and B * longest == N
    posterior = torch.empty_like(logits) if padded else torch.zeros_like(logits)
    likelihood = torch.empty(B * (blocks + 1), dtype=torch.float64, device=logits.device)
    status = torch.empty(B * (blocks + 1), dtype=torch.int32, device=logits.device)
    answer = torch.empty(B, dtype=logits.dtype if rounded else torch.float64, device=logits.device)
    if not B or not C or longest > LONGEST or C > WIDEST:
        return posterior, answer.zero_(), torch.ones_like(status[:B])
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
            longest,
            blocks,
            K2=K2,
            BC=BC,
            BLOCKS2=block_of(blocks, 32),
            APPROX=APPROXIMATE,
            PADDED=padded,
            num_warps=tile.warps,
        )
    return posterior, answer, status[:B]
