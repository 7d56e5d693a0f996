"""What every coupling returns for a group of bags."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Solution(NamedTuple):
    """Log posterior (n, K, labels...), log-likelihood (n,), convergence (n,) of iterative couplings."""

    log_posterior: Tensor
    log_likelihood: Tensor
    converged: Tensor
