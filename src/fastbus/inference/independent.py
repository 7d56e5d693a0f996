"""One-vs-rest chains under a softmax head, renormalised over classes: the paper's way, and the peers'.

Treats the classes of one instance as independent, so its likelihood is composite and its posterior
is not exact.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastbus.inference.solution import Solution
from fastbus.numerics import NEG_INF, log_complement, log_softmax, logsumexp

ChainSolver = Callable[[Tensor], tuple[Tensor, Tensor]]


def solve_independent(log_potential: Tensor, mask: Tensor, chains: ChainSolver) -> Solution:
    """Posterior of n bags; `chains` solves the binary chains (n, K, C, 2)."""
    norm = logsumexp(log_potential, -1).masked_fill(~mask, 0.0)
    log_prob = log_softmax(log_potential, -1)
    binary = torch.stack([log_complement(log_prob), log_prob], -1)
    binary = binary.masked_fill(~mask[..., None, None], 0.0)
    log_chain, likelihood = chains(binary)
    log_positive = log_chain[..., 1]
    # an instance that every chain rules out keeps its prediction
    nothing = (log_positive == NEG_INF).all(-1, keepdim=True)
    log_posterior = log_softmax(torch.where(nothing, log_prob, log_positive), -1)
    converged = torch.ones(mask.shape[0], dtype=torch.bool, device=mask.device)
    return Solution(log_posterior, likelihood.sum(1) + norm.sum(1), converged)
