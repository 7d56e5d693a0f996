"""What launches share: the sum over a bag's class blocks, counters for it, block sizes."""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

# the interpreter has no assembler
APPROXIMATE = os.environ.get("TRITON_INTERPRET") != "1"
RESERVE = 2**20  # counters for launches recorded in graphs
_counters: dict[tuple[int | None, int], Tensor] = {}
_reserves: dict[int | None, Tensor] = {}


@triton.jit
def publish(
    bag,
    block,
    log_chance,
    strange,
    counter,  # (B,) int32
    likelihood,  # float64: after room for (B,) a place for every program
    status,  # (B,) int32, and the same
    B,
    blocks,
):
    """Lay down a program's part of its bag; how many of the bag's programs did so before."""
    own = B + bag * blocks
    tl.store(likelihood + own + block, log_chance)
    tl.store(status + own + block, strange)
    tl.debug_barrier()
    return tl.atomic_add(counter + bag, 1, sem="acq_rel")


@triton.jit
def collect(bag, before, counter, likelihood, status, answer, B, blocks, BLOCKS2: tl.constexpr):
    """Add up the parts of a bag, by the last of its programs and in a fixed order; the counter returns to zero."""
    if before == blocks - 1:
        own = B + bag * blocks
        each = tl.arange(0, BLOCKS2)
        parts = tl.load(likelihood + own + each, mask=each < blocks, other=0.0, cache_modifier=".cg")
        marks = tl.load(status + own + each, mask=each < blocks, other=0, cache_modifier=".cg")
        tl.store(answer + bag, tl.sum(parts, 0).to(answer.dtype.element_ty))
        tl.store(status + bag, tl.max(marks, 0))
        tl.store(counter + bag, 0)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Launches go to the current device, which need not be that of the tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def block_of(count: int, least: int) -> int:
    """The power of two that holds a count."""
    return max(least, 1 << (count - 1).bit_length() if count > 1 else 1)


def counters(B: int, device: torch.device) -> Tensor:
    """Zeros (B,) or more for `finish`, which leaves them so.

    Launches of one stream take turns and share theirs. A launch recorded in a graph gets its own for good, from a
    reserve that is filled before; where there is none, zeros that the graph fills whenever it runs.
    """
    if device.type != "cuda":
        return torch.zeros(B, dtype=torch.int32, device=device)
    if torch.cuda.is_current_stream_capturing():
        reserve = _reserves.get(device.index)
        if reserve is None or len(reserve) < B:
            return torch.zeros(B, dtype=torch.int32, device=device)
        # whole lines: kernels are compiled for pointers that are aligned
        _reserves[device.index] = reserve[-(-B // 32) * 32 :]
        return reserve[:B]
    key = (device.index, torch.cuda.current_stream(device).cuda_stream)
    kept = _counters.get(key)
    if kept is None or len(kept) < B:
        kept = _counters[key] = torch.zeros(block_of(B, 1024), dtype=torch.int32, device=device)
        if device.index not in _reserves:
            _reserves[device.index] = torch.zeros(RESERVE, dtype=torch.int32, device=device)
    return kept
