"""The same answer by two ways: the numbers of one, the derivatives of the other.

Factors of a class loop that are ones change nothing, to the last bit, whichever way the chains were solved; but they
may be learned, and only the way through the loop knows their slope.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fastbus.inference.posterior import Posterior


class _Valued(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, derived: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def with_values_of(derived: Posterior, valued: Posterior) -> Posterior:
    """`derived` with the labels and log-likelihoods of `valued`, which it equals but for rounding."""

    def both(mine: Tensor, other: Tensor) -> Tensor:
        if not mine.requires_grad:
            return other.detach()
        answer: Tensor = _Valued.apply(mine, other.detach())  # type: ignore[no-untyped-call]
        return answer

    return replace(
        derived,
        labels=both(derived.labels, valued.labels),
        log_likelihood=both(derived.log_likelihood, valued.log_likelihood),
    )
