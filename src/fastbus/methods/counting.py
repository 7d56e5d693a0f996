"""Counts of independent events in plain, differentiable operations of fixed shape.

Shapes: B bags, K places, G chains (one a class, or one for the positive class of two).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastbus.numerics import log1mexp, log_complement

RARE = -1e-8


def class_odds(logits: Tensor, chains: int) -> tuple[Tensor, Tensor]:
    """log p and log (1 - p), float64 (..., G), of each class against the rest; of class 1 where there is one chain."""
    if chains == 1:
        f = (logits[..., 1:2] - logits[..., 0:1]).double()
        return torch.nn.functional.logsigmoid(f), torch.nn.functional.logsigmoid(-f)
    log_p = torch.log_softmax(logits.double(), -1)
    return log_p, log_complement(log_p)


def log_count(log_yes: Tensor, log_no: Tensor, inside: Tensor, counts: Tensor) -> Tensor:
    """log P(as many events as counted), (B, G), from (B, K, G), places inside (B, K) and counts (B, G).

    State after state is added, so that no state is impossible and no gradient is a difference of infinities.
    """
    B, K, G = log_yes.shape
    state = log_yes.new_zeros(B, G, 1)
    for k in range(K):
        yes, no = log_yes[:, k, :, None], log_no[:, k, :, None]
        middle = torch.logaddexp(state[..., 1:] + no, state[..., :-1] + yes)
        grown = torch.cat([state[..., :1] + no, middle, state[..., -1:] + yes], -1)
        same = torch.cat([state, torch.zeros_like(state[..., :1])], -1)  # counts beyond the bag are never read
        state = torch.where(inside[:, k, None, None], grown, same)
    return state.gather(-1, counts[..., None]).squeeze(-1)


def log_any(log_yes: Tensor, log_no: Tensor, inside: Tensor, seen: Tensor) -> Tensor:
    """log P(there is an event or not, as seen), (B, G), from (B, K, G); seen (B, G) 0/1."""
    none = (log_no * inside[..., None]).sum(1)
    return torch.where(seen > 0, log_some(log_yes, none, inside, seen > 0), none)


def log_some(log_yes: Tensor, none: Tensor, inside: Tensor, wanted: Tensor) -> Tensor:
    """log P(an event) where wanted (B, G), of events log_yes (B, K, G) and `none`, log P(no event); else any number.

    Where events are so rare that `none` rounds to 0, the sum of their probabilities, in logs: their products are far
    below what float64 resolves.
    """
    rare = wanted & (none > RARE)
    several = log1mexp(torch.where(wanted & ~rare, none, -1.0))
    away = torch.where(inside[..., None], 0.0, -math.inf)
    return torch.where(rare, torch.logsumexp(torch.where(rare[:, None], log_yes + away, 0.0), 1), several)


def count_distribution(p: Tensor) -> Tensor:
    """P(s events), s = 0..n, of n independent ones with probabilities (n,), float64: errors of 1e-15 each.

    By the discrete Fourier transform at an odd number of angles, so that no factor vanishes.
    """
    p = p.double()
    n = len(p)
    nodes = n + 1 + n % 2
    angle = torch.arange(nodes // 2 + 1, device=p.device, dtype=torch.float64) * (2 * math.pi / nodes)
    real = 1 - p[:, None] + p[:, None] * torch.cos(angle)
    imaginary = p[:, None] * torch.sin(angle)
    size = torch.exp(0.5 * torch.log(real**2 + imaginary**2).sum(0))
    phase = torch.atan2(imaginary, real).sum(0)
    s = torch.arange(n + 1, device=p.device, dtype=torch.float64)
    twice = torch.where(torch.arange(len(angle), device=p.device) == 0, 1.0, 2.0)
    waves = torch.cos(phase - s[:, None] * angle) * (size * twice)
    return waves.sum(1) / nodes


def binomial_divergence(p: Tensor, prior: float) -> Tensor:
    """KL(count of events of p (n,) || Binomial(n, prior))."""
    n = len(p)
    s = torch.arange(n + 1, device=p.device, dtype=torch.float64)
    log_ways = math.lgamma(n + 1) - torch.lgamma(s + 1) - torch.lgamma(n - s + 1)
    log_binomial = log_ways + s * math.log(prior) + (n - s) * math.log1p(-prior)
    counts = count_distribution(p).clamp(min=1e-30)  # below the transform's own error of 1e-16
    return (counts * (counts.log() - log_binomial)).sum()
