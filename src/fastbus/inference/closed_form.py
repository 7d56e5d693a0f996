"""Closed forms: rules whose posterior needs no recursion. Each equals the generic chain on its rule.

any positive:  P(none) = prod(1 - p),  P(y_k = 1, w) = p_k P(w | some)
similar pair:  P(same) = sum_c p_1c p_2c
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.inference.ending import Ending, close
from fastbus.numerics import NEG_INF, log1mexp, log_complement, log_softmax, logsumexp


def _normalised(log_potential: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities, and the log of what was divided out of each label."""
    norm = logsumexp(log_potential, -1)
    return log_potential - norm.masked_fill(norm == NEG_INF, 0.0)[..., None], norm


def solve_free(log_potential: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing known of the last state: independent labels. Log potentials (N, K, Y)."""
    K = log_potential.shape[1]
    real = torch.arange(K, device=lengths.device) < lengths[:, None]
    likelihood = logsumexp(log_potential, -1).masked_fill(~real, 0.0).sum(1)
    log_posterior = log_softmax(log_potential, -1)
    return log_posterior.masked_fill(~real[..., None], NEG_INF), likelihood


def solve_any(log_potential: Tensor, lengths: Tensor, ending: Ending) -> tuple[Tensor, Tensor]:
    """Is there a positive? Log potentials (N, K, 2), last states (none, some)."""
    K = log_potential.shape[1]
    real = torch.arange(K, device=lengths.device) < lengths[:, None]
    log_prob, norm = _normalised(log_potential)
    negative = log_prob[..., 0].masked_fill(~real, 0.0)
    positive = log_prob[..., 1].masked_fill(~real, NEG_INF)
    none_so_far = negative.cumsum(1)
    none = none_so_far[:, -1]
    none_before = torch.cat([torch.zeros_like(none)[:, None], none_so_far[:, :-1]], 1)
    # summing over the first positive has no cancellation, unlike 1 - P(none)
    some = logsumexp(none_before + positive, 1)
    scale = norm.masked_fill(~real, 0.0).sum(1)
    weight, log_likelihood = close(torch.stack([none, some], 1) + scale[:, None], ending)
    total = logsumexp(weight + torch.stack([none, some], 1), 1)
    total = total.masked_fill(total == NEG_INF, 0.0)
    yes = (positive + (weight[:, 1] - total)[:, None]).clamp(max=0.0)
    return torch.stack([log1mexp(yes), yes], -1), log_likelihood


def solve_similar(log_potential: Tensor, lengths: Tensor, ending: Ending) -> tuple[Tensor, Tensor]:
    """Do the two agree? Log potentials (N, 2, C); states as in supervision.pairwise."""
    log_prob, norm = _normalised(log_potential)
    first, second = log_prob[:, 0], log_prob[:, 1]
    not_first, not_second = log_complement(first), log_complement(second)
    same = logsumexp(first + second, -1)
    different = logsumexp(first + not_second, -1)
    never = torch.full_like(ending.log_evidence, NEG_INF)
    last = torch.cat([never[:, :1], different[:, None], same[:, None], never[:, 3:]], 1)
    weight, log_likelihood = close(last + norm.sum(1)[:, None], ending)
    if_different, if_same = weight[:, 1, None], weight[:, 2, None]
    to_first = torch.logaddexp(if_same + second, if_different + not_second)
    to_second = torch.logaddexp(if_same + first, if_different + not_first)
    log_posterior = log_softmax(torch.stack([first + to_first, second + to_second], 1), -1)
    return log_posterior, log_likelihood
