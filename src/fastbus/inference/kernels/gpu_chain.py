"""The generic chain of few states on a GPU: forward and backward messages in one launch.

A program takes some chains and walks them in linear space, with labels' probabilities that sum to 1 and messages that
are normalised at every step, so that nothing grows. What underflows is below 1e-300 of all mass; a chain whose weak
label is nearly as improbable gets a status, and the ordinary path, which works in logs, decides.
Shapes as in `chain.py`: N chains, K labels, Y values, Z states, tables (M, L, Z, Y) of next states.
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbus.inference.kernels.gpu_launch import block_of, on

MOST_STATES = 32
MOST_LABELS = 256
CELLS = 512  # chains times states squared of a program
RARE = tl.constexpr(-500.0)  # log probability below which underflow might matter


@triton.jit
def _norm(potential, chain, k, known, K, Y, Y2: tl.constexpr):
    """The log of the sum of a position's potentials, (BN,); 0 where there is none."""
    label = tl.arange(0, Y2)
    place = (chain * K + k)[:, None] * Y + label[None, :]
    u = tl.load(potential + place, mask=known[:, None] & (label < Y)[None, :], other=float("-inf")).to(tl.float64)
    top = tl.max(u, 1)
    top = tl.where(top > float("-inf"), top, 0.0)
    total = tl.sum(tl.exp(u - top[:, None]), 1)
    return top + tl.log(tl.where(total > 0, total, 1.0))


@triton.jit
def _move(table, potential, chain, k, y, norm, known, state, chain_stride, step_stride, L, K, Y, Z):
    """Next states (BN, Z2) after label y, -1 where forbidden, and the label's probability (BN,)."""
    layer = chain * chain_stride + tl.minimum(k, L - 1) * step_stride
    place = layer[:, None] + (state * Y)[None, :] + y
    reached = tl.load(table + place, mask=known[:, None] & (state < Z)[None, :], other=-1).to(tl.int32)
    u = tl.load(potential + (chain * K + k) * Y + y, mask=known, other=float("-inf")).to(tl.float64)
    return tl.where(reached < Z, reached, -1), tl.exp(u - norm)


@triton.jit
def _solve(
    potential,  # (N, K, Y) logs
    table,  # (M, L, Z, Y) int64
    lengths,  # (N,) int64
    evidence,  # (N, Z) logs, float64
    ahead,  # (N, K, Z2) float64, forward messages
    posterior,  # (N, K, Y) logs
    likelihood,  # (N,) float64
    status,  # (N,) int32
    N,
    K,
    Y,
    Z,
    L,
    chain_stride,  # of the table; 0 if all chains share it
    step_stride,  # 0 if all steps do
    BN: tl.constexpr,
    Z2: tl.constexpr,
    Y2: tl.constexpr,
):
    chain = (tl.program_id(0) * BN + tl.arange(0, BN)).to(tl.int64)
    known = chain < N
    length = tl.load(lengths + chain, mask=known, other=0).to(tl.int32)
    state = tl.arange(0, Z2)
    label = tl.arange(0, Y2)
    alpha = tl.zeros((BN, Z2), tl.float64) + tl.where(state == 0, 1.0, 0.0)[None, :]
    level = tl.zeros((BN,), tl.float64)  # log of all that was divided out
    mass = tl.zeros((BN,), tl.float64)  # the part of it that was lost to forbidden moves
    k = 0
    while k < K:
        tl.store(ahead + (chain * K + k)[:, None] * Z2 + state[None, :], alpha, mask=known[:, None])
        going = k < length
        norm = _norm(potential, chain, k, known, K, Y, Y2)
        arrived = tl.zeros((BN, Z2), tl.float64)
        y = 0
        while y < Y:
            reached, p = _move(table, potential, chain, k, y, norm, known, state, chain_stride, step_stride, L, K, Y, Z)
            lands = reached[:, None, :] == state[None, :, None]
            arrived += p[:, None] * tl.sum(tl.where(lands, alpha[:, None, :], 0.0), 2)
            y += 1
        total = tl.sum(arrived, 1)
        possible = total > 0
        total = tl.where(possible, total, 1.0)
        alpha = tl.where(going[:, None], arrived / total[:, None], alpha)
        lost = tl.where(possible, tl.log(total), float("-inf"))
        mass += tl.where(going, lost, 0.0)
        level += tl.where(going, lost + norm, 0.0)
        k += 1
    log_weight = tl.load(
        evidence + chain[:, None] * Z + state[None, :],
        mask=known[:, None] & (state < Z)[None, :],
        other=float("-inf"),
    )
    top = tl.max(log_weight, 1)
    top = tl.where(top > float("-inf"), top, 0.0)
    beta = tl.exp(log_weight - top[:, None])
    total = tl.sum(alpha * beta, 1)
    possible = total > 0
    closing = tl.where(possible, tl.log(tl.where(possible, total, 1.0)), float("-inf"))
    tl.store(likelihood + chain, level + closing + top, mask=known)
    tl.store(status + chain, tl.where(mass + closing > RARE, 0, 1), mask=known)
    tl.debug_barrier()

    k = K - 1
    while k >= 0:
        going = k < length
        alpha = tl.load(ahead + (chain * K + k)[:, None] * Z2 + state[None, :], mask=known[:, None], other=0.0)
        norm = _norm(potential, chain, k, known, K, Y, Y2)
        earlier = tl.zeros((BN, Z2), tl.float64)
        belief = tl.zeros((BN, Y2), tl.float64)
        y = 0
        while y < Y:
            reached, p = _move(table, potential, chain, k, y, norm, known, state, chain_stride, step_stride, L, K, Y, Z)
            lands = reached[:, None, :] == state[None, :, None]
            later = tl.sum(tl.where(lands, beta[:, :, None], 0.0), 1)  # beta where y leads, (BN, Z2)
            earlier += p[:, None] * later
            belief = tl.where((label == y)[None, :], (p * tl.sum(alpha * later, 1))[:, None], belief)
            y += 1
        total = tl.sum(belief, 1)
        total = tl.where(total > 0, total, 1.0)
        seen = (belief > 0) & going[:, None]
        q = tl.where(seen, tl.log(tl.where(seen, belief, 1.0) / total[:, None]), float("-inf"))
        tl.store(
            posterior + (chain * K + k)[:, None] * Y + label[None, :], q, mask=known[:, None] & (label < Y)[None, :]
        )
        scale = tl.sum(earlier, 1)
        scale = tl.where(scale > 0, scale, 1.0)
        beta = tl.where(going[:, None], earlier / scale[:, None], beta)
        k -= 1


def fits(log_potential: Tensor, table: Tensor) -> bool:
    """Whether the kernel has room for these chains."""
    Y, Z = log_potential.shape[2], table.shape[2]
    return Z <= MOST_STATES and Y <= MOST_LABELS and log_potential.numel() > 0


def solve_chain(
    log_potential: Tensor, table: Tensor, lengths: Tensor, log_evidence: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Log posterior (N, K, Y), -inf at padding, log-likelihood (N,) float64, and status (N,)."""
    N, K, Y = log_potential.shape
    M, L, Z, _ = table.shape
    Z2, Y2 = block_of(Z, 1), block_of(Y, 1)
    BN = max(1, CELLS // (Z2 * max(Z2, Y2)))
    device = log_potential.device
    posterior = torch.empty_like(log_potential, memory_format=torch.contiguous_format)
    ahead = torch.empty(N * K * Z2, dtype=torch.float64, device=device)
    likelihood = torch.empty(N, dtype=torch.float64, device=device)
    status = torch.empty(N, dtype=torch.int32, device=device)
    launch: Any = _solve[(-(-N // BN),)]
    with on(log_potential.device):
        launch(
            log_potential.contiguous(),
            table.contiguous(),
            lengths,
            log_evidence.double().contiguous(),
            ahead,
            posterior,
            likelihood,
            status,
            N,
            K,
            Y,
            Z,
            L,
            0 if M == 1 else L * Z * Y,
            0 if L == 1 else Z * Y,
            BN=BN,
            Z2=Z2,
            Y2=Y2,
            num_warps=1 if Z2 < MOST_STATES else 4,
        )
    return posterior, likelihood, status
