"""Logarithms that stay right at zero: sums of all-impossible terms are -inf, and their gradients 0.

Plain autograd through the log-sum-exp of nothing but -inf returns NaN; these functions do not, so
the differentiable path of every algorithm can be written once and used at the edges too.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEG_INF = float("-inf")


def message_dtype(device: torch.device) -> torch.dtype:
    """Messages are float64 wherever the device has it.

    The logarithm of an improbable event carries an absolute error of its size times the rounding
    unit, and the posterior inherits it: -1500 in float32 is already 1e-4.
    """
    return torch.float32 if device.type == "mps" else torch.float64


def logsumexp(x: Tensor, dim: int) -> Tensor:
    """Like `torch.logsumexp`, with gradient 0 where everything is -inf."""
    peak = x.detach().amax(dim, keepdim=True)
    peak = peak.masked_fill(peak == NEG_INF, 0.0)
    total = (x - peak).exp().sum(dim)
    nothing = total == 0
    return (total.masked_fill(nothing, 1.0).log() + peak.squeeze(dim)).masked_fill(nothing, NEG_INF)


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """Like `torch.logaddexp`, with gradient 0 where both are -inf."""
    if not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
        return torch.logaddexp(a, b)
    return logsumexp(torch.stack(torch.broadcast_tensors(a, b)), 0)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """Normalise over `dim`; a slice that is all -inf stays so instead of becoming NaN."""
    norm = logsumexp(x, dim).unsqueeze(dim)
    return x - norm.masked_fill(norm == NEG_INF, 0.0)


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x <= 0, accurate at both ends, -inf (gradient 0) at x = 0."""
    certain = x >= 0
    inside = x.masked_fill(certain, -1.0)
    near_zero = inside > -0.6931471805599453
    small = inside.masked_fill(~near_zero, -0.5)
    large = inside.masked_fill(near_zero, -1.0)
    value = torch.where(near_zero, torch.log(-torch.expm1(small)), torch.log1p(-torch.exp(large)))
    return value.masked_fill(certain, NEG_INF)


def safe_log(x: Tensor) -> Tensor:
    """log(x) with -inf and gradient 0 at x = 0."""
    zero = x <= 0
    return x.masked_fill(zero, 1.0).log().masked_fill(zero, NEG_INF)


def log_complement(log_prob: Tensor) -> Tensor:
    """log(1 - p) of every class of a distribution over the last axis, without cancellation.

    All classes but the largest have p <= 1/2, where log1mexp is exact enough; the largest one's
    complement is summed from the others.
    """
    top = log_prob.detach().argmax(dim=-1, keepdim=True)
    is_top = torch.zeros_like(log_prob, dtype=torch.bool).scatter(-1, top, True)
    others = logsumexp(log_prob.masked_fill(is_top, NEG_INF), -1).unsqueeze(-1)
    return torch.where(is_top, others, log1mexp(log_prob.masked_fill(is_top, -1.0)))


def scatter_logsumexp(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Sum exp(values) (N, E) into slots `index` (N, E); result (N, size), -inf where nothing lands."""
    peak = values.new_full((values.shape[0], size), NEG_INF)
    peak = peak.scatter_reduce(1, index, values.detach(), "amax", include_self=True)
    peak = peak.masked_fill(peak == NEG_INF, 0.0)
    terms = (values - peak.gather(1, index)).exp()
    total = torch.zeros_like(peak).scatter_add(1, index, terms)
    nothing = total == 0
    return (total.masked_fill(nothing, 1.0).log() + peak).masked_fill(nothing, NEG_INF)
