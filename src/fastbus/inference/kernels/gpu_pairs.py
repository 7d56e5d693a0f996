"""Pairs on a GPU: comparisons, similarities, and both as confidences, one launch for the whole E-step.

Probabilities are kept as logarithms, or relative to the largest of those that still compete, so that none is lost
however sure the predictions are. With x, y the log odds of the first and the second instance:
    binary     equal labels are (1,1) with probability sigmoid(x + y), unequal ones are (0,1) with sigmoid(y - x);
               what is left is to weigh equal labels, (0,1) and (1,0) against each other
    similar    of any number of classes; what a class leaves to all others is at least a half and may be subtracted,
               except for the likeliest class, whose others are summed
Shapes: N instances in all, C classes, B pairs.
"""

# Kernels are compiled by Triton, whose language has types of its own.
# mypy: disable-error-code="import-not-found,no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbus.inference.kernels import WIDEST_PAIRS
from fastbus.inference.kernels.gpu_launch import block_of, on

LONGEST = 2**31  # whatever is no pair has a status of its own
PAIRS = 32  # of two classes, those of a program: one for each thread
CELLS = 64  # of more classes, pairs times classes of a warp: two for each thread, which spares registers
WARPS = 16  # at most
LARGEST = tl.constexpr(1e100)  # logits whose sums are finite
LOG_HALF = tl.constexpr(-0.6931471805599453)
# by kind, the lowest weak label; the highest is 1
LOWEST = {
    "sorted": 0.0,  # 1: the first is the more positive one, ties told either way
    "labelled": 0.0,  # 1: the first is at least as positive
    "similar": 0.0,  # 1: the same class
    "similarity": 0.0,  # the probability of that
    "difference": -1.0,  # the mean of second minus first
}
SIMILAR = ("similar", "similarity")


@triton.jit
def _two(log_odds):
    """Probabilities of label 0 and label 1, and minus the logarithm of the larger one."""
    doubt = tl.exp(-tl.abs(log_odds))
    large = 1.0 / (1.0 + doubt)
    small = doubt * large
    up = log_odds > 0
    return tl.where(up, small, large), tl.where(up, large, small), tl.log(1.0 + doubt)


@triton.jit
def _tilt(d, odds, slack):
    """log t for a mean of d under weights t of (0,1) and 1/t of (1,0), whose probabilities are equal.

    Equal labels are e^G as probable. For d > 0, t is the positive root of (1-d) t^2 - d e^G t - (1+d); -d turns it
    around.
    """
    G = 0.5 * tl.abs(odds) + slack
    u = tl.exp(-G)
    size = tl.abs(d)
    root = size + tl.sqrt(size * size + 4.0 * (1.0 - size) * (1.0 + size) * u * u)
    grown = G + tl.log(tl.where(root > 0, root, 1.0) / (2.0 * (1.0 - size)))
    return tl.where(d > 0, grown, tl.where(d < 0, -grown, 0.0))


@triton.jit
def _binary(x, y, w, missing, KIND: tl.constexpr):
    """Posteriors of label 0 and 1 of the first, of 0 and 1 of the second, and the log-likelihood, for log odds."""
    never: tl.constexpr = float("-inf")
    x_over, x_under = tl.maximum(x, 0.0), tl.minimum(x, 0.0)
    y_over, y_under = tl.maximum(y, 0.0), tl.minimum(y, 0.0)
    a0, a1, x_slack = _two(x)
    b0, b1, y_slack = _two(y)
    none, both, even_slack = _two(x + y)
    fall, rise, odd_slack = _two(y - x)
    # logarithms, all of them up to x_slack + y_slack
    log_even = tl.maximum(-x_over - y_over, x_under + y_under) + even_slack
    log_rise, log_fall = y_under - x_over, x_under - y_over
    if KIND == "similar" or KIND == "similarity":
        even, up, down = w, (1.0 - w) * rise, (1.0 - w) * fall
        level = w * log_even + (1.0 - w) * (tl.maximum(log_rise, log_fall) + odd_slack)
    else:
        extra = tl.zeros_like(w)
        if KIND == "sorted":
            log_even += LOG_HALF
            log_rise = tl.where(w > 0, never, log_rise)
            log_fall = tl.where(w > 0, log_fall, never)
        elif KIND == "labelled":
            log_even = tl.where(w > 0, log_even, never)
            log_rise = tl.where(w > 0, never, log_rise)
            log_fall = tl.where(w > 0, log_fall, never)
        else:
            inner = tl.abs(w) < 1
            d = tl.where(inner, w, 0.0)
            tilt = _tilt(d, x + y, even_slack) + 0.5 * (x - y)
            extra = d * tilt
            log_even = tl.where(inner, log_even, never)
            log_rise = tl.where(inner, log_rise + tilt, tl.where(w > 0, log_rise, never))
            log_fall = tl.where(inner, log_fall - tilt, tl.where(w > 0, never, log_fall))
        peak = tl.maximum(tl.maximum(log_rise, log_fall), log_even)
        even, up, down = tl.exp(log_even - peak), tl.exp(log_rise - peak), tl.exp(log_fall - peak)
        total = even + up + down
        even, up, down = even / total, up / total, down / total
        level = peak + tl.log(total) - extra
    none, both = even * none, even * both
    level = tl.where(missing, 0.0, level - x_slack - y_slack)
    return (
        tl.where(missing, a0, none + up),
        tl.where(missing, a1, down + both),
        tl.where(missing, b0, none + down),
        tl.where(missing, b1, up + both),
        level,
    )


@triton.jit
def _peaks(x, column, WIDTH: tl.constexpr):
    """The likeliest class, and logits relative to its own."""
    top = tl.max(x, 1)
    best = tl.min(tl.where(x == top[:, None], column[None, :], WIDTH - 1), 1)
    return column[None, :] == best[:, None], best, x - top[:, None]


@triton.jit
def _parts(x, best, lift):
    """Weights of the classes and of what they leave to the others, below e^lift for all but the likeliest.

    And the sum of all weights.
    """
    low = tl.exp(lift)
    weight = tl.where(best, 0.0, tl.exp(tl.where(best, 0.0, x - lift[:, None])))
    rest = tl.sum(weight, 1)
    others = tl.where(best, rest[:, None], 1.0 + (rest[:, None] - weight) * low[:, None])
    return tl.where(best, 1.0, weight), others, 1.0 + rest * low


@triton.jit
def _several(x, y, column, w, missing, WIDTH: tl.constexpr):
    """Posteriors (BLOCK, WIDTH) of both and the log-likelihood, for logits, -inf beyond the last class."""
    x_best, x_name, x = _peaks(x, column, WIDTH)
    y_best, y_name, y = _peaks(y, column, WIDTH)
    # alike in the likeliest class, only the second likeliest ones tell them apart
    x_next, y_next = tl.max(tl.where(x_best, float("-inf"), x), 1), tl.max(tl.where(y_best, float("-inf"), y), 1)
    lift = tl.where(x_name == y_name, tl.maximum(x_next, y_next), 0.0)
    a, not_a, a_sum = _parts(x, x_best, lift)
    b, not_b, b_sum = _parts(y, y_best, lift)
    together = x + y
    top = tl.max(together, 1)
    same = tl.exp(together - top[:, None])
    same_sum = tl.sum(same, 1)
    differ = a * not_b
    differ_sum = tl.sum(differ, 1)
    level = w * (top + tl.log(same_sum)) + (1.0 - w) * (lift + tl.log(differ_sum)) - tl.log(a_sum) - tl.log(b_sum)
    keep, change = (w / same_sum)[:, None], ((1.0 - w) / differ_sum)[:, None]
    low, unknown = tl.exp(lift)[:, None], missing[:, None]
    prior_a = a * tl.where(x_best, 1.0, low) / a_sum[:, None]
    prior_b = b * tl.where(y_best, 1.0, low) / b_sum[:, None]
    first = tl.where(unknown, prior_a, keep * same + change * differ)
    second = tl.where(unknown, prior_b, keep * same + change * b * not_a)
    return first, second, tl.where(missing, 0.0, level)


@triton.jit
def _write(place, value, stored):
    tl.store(place, tl.minimum(value, 1.0).to(place.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["B", "N", "C", "slot"])
def _solve(
    logits,  # (N, C)
    starts,  # (B,) int64
    sizes,  # (B,) int64
    weak,  # (B,)
    posterior,  # (N, C)
    likelihood,  # (B,)
    status,  # (B,) int32
    B,
    N,
    C,
    slot,  # rows that each pair owns, should it be none; 0 for those of its size
    KIND: tl.constexpr,
    LOWEST_LABEL: tl.constexpr,
    WHOLE: tl.constexpr,  # weak labels are integers
    WIDTH: tl.constexpr,  # 1, 2, or a power of two that holds C
    BLOCK: tl.constexpr,
):
    pair = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = pair < B
    start = tl.load(starts + pair, mask=real, other=0)
    size = tl.load(sizes + pair, mask=real, other=0)
    given = tl.load(weak + pair, mask=real, other=0)
    w = given.to(tl.float64)
    missing = (w == -1) if WHOLE else (w != w)
    inside = (start >= 0) & (start + 2 <= N)
    strange = (size != 2) | ~inside
    strange = strange | ~(missing | ((w >= LOWEST_LABEL) & (w <= 1.0)))
    if KIND != "similarity" and KIND != "difference":
        strange = strange | ~(missing | (w == 0) | (w == 1))
    read = real & inside & (size == 2)
    stored = real & inside & ((size == 2) | (slot >= 2))
    w = tl.where(strange | missing, 0.0, w)
    one = logits + start * C
    out = posterior + start * C
    if WIDTH <= 2:
        x = tl.load(one + C - 1, mask=read, other=0.0).to(tl.float64)
        y = tl.load(one + 2 * C - 1, mask=read, other=0.0).to(tl.float64)
        bad = ~((tl.abs(x) <= LARGEST) & (tl.abs(y) <= LARGEST))
        if WIDTH == 2:
            x0 = tl.load(one, mask=read, other=0.0).to(tl.float64)
            y0 = tl.load(one + 2, mask=read, other=0.0).to(tl.float64)
            bad = bad | ~((tl.abs(x0) <= LARGEST) & (tl.abs(y0) <= LARGEST))
            x, y = tl.where(bad, 0.0, x) - tl.where(bad, 0.0, x0), tl.where(bad, 0.0, y) - tl.where(bad, 0.0, y0)
        else:
            x, y = tl.where(bad, 0.0, x), tl.where(bad, 0.0, y)
        first0, first1, second0, second1, level = _binary(x, y, w, missing, KIND)
        _write(out + C - 1, tl.where(read, first1, 0.0), stored)
        _write(out + 2 * C - 1, tl.where(read, second1, 0.0), stored)
        if WIDTH == 2:
            _write(out, tl.where(read, first0, 0.0), stored)
            _write(out + 2, tl.where(read, second0, 0.0), stored)
    else:
        column = tl.arange(0, WIDTH)
        there = (column < C)[None, :]
        cell = one[:, None] + column[None, :]
        x = tl.load(cell, mask=read[:, None] & there, other=0.0).to(tl.float64)
        y = tl.load(cell + C, mask=read[:, None] & there, other=0.0).to(tl.float64)
        wrong = ~((tl.abs(x) <= LARGEST) & (tl.abs(y) <= LARGEST))
        bad = tl.max(wrong.to(tl.int32), 1) > 0
        x = tl.where(there, tl.where(wrong, 0.0, x), float("-inf"))
        y = tl.where(there, tl.where(wrong, 0.0, y), float("-inf"))
        first, second, level = _several(x, y, column, w, missing, WIDTH)
        place, kept = out[:, None] + column[None, :], stored[:, None] & there
        _write(place, tl.where(read[:, None], first, 0.0), kept)
        _write(place + C, tl.where(read[:, None], second, 0.0), kept)
    tl.store(likelihood + pair, level.to(likelihood.dtype.element_ty), mask=real)
    strange = strange | bad | ~(tl.abs(level) < float("inf"))
    tl.store(status + pair, strange.to(tl.int32), mask=real)


def solve_pairs(
    logits: Tensor,
    starts: Tensor,
    sizes: Tensor,
    weak: Tensor,
    *,
    kind: str,
    longest: int = 2,
    padded: bool = False,
    rounded: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Posterior (N, C) of the logits' type, log-likelihood (B,) float64 and status (B,), 0 where all is well.

    logits (N, C), C = 1 for a sigmoid; starts, sizes (B,): the rows of each pair; weak (B,) as `kind` of `LOWEST` says
    it, -1 where missing among integers, NaN among floats.
    padded: every pair owns `longest` rows from its start on, and together they are all rows.
    rounded: log-likelihoods of the logits' type.
    """
    N, C = logits.shape
    B = sizes.shape[0]
    logits, weak = logits.detach().contiguous(), weak.contiguous()
    # rows of nobody, and those after a pair, are zero
    filled = padded and longest == 2
    posterior = torch.empty_like(logits) if filled else torch.zeros_like(logits)
    likelihood = torch.empty(B, dtype=logits.dtype if rounded else torch.float64, device=logits.device)
    status = torch.empty(B, dtype=torch.int32, device=logits.device)
    if not B or not 0 < C <= WIDEST_PAIRS or (C > 2 and kind not in SIMILAR):
        return posterior, likelihood, torch.ones_like(status)
    WIDTH = block_of(C, 1)
    BLOCK = PAIRS if C <= 2 else max(CELLS // WIDTH, 1)
    with on(logits.device):
        _solve[(-(-B // BLOCK),)](
            logits,
            starts,
            sizes,
            weak.long() if weak.dtype == torch.bool else weak,
            posterior,
            likelihood,
            status,
            B,
            N,
            C,
            longest if padded else 0,
            KIND=kind,
            LOWEST_LABEL=LOWEST[kind],
            WHOLE=not weak.is_floating_point(),
            WIDTH=WIDTH,
            BLOCK=BLOCK,
            num_warps=min(max(WIDTH // CELLS, 1), WARPS),
        )
    return posterior, likelihood, status
