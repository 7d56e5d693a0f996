"""Derivatives of what a kernel has solved: the slope of the log-likelihood is the posterior minus the prior.

The slope of the posterior itself is seldom asked for; the ordinary path is walked for it then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# logits to labels and log-likelihood, by plain differentiable steps
Ordinary = Callable[[Tensor], tuple[Tensor, Tensor]]
# the slope's factor of each bag (B,) to all its instances
Spread = Callable[[Tensor], Tensor]


class _Solved(torch.autograd.Function):
    @staticmethod
    def forward(
        logits: Tensor,
        solved: tuple[Tensor, Tensor],
        head: str,
        real: Tensor | None,
        spread: Spread,
        ordinary: Ordinary,
    ) -> tuple[Tensor, Tensor]:
        return solved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, _, ctx.head, real, ctx.spread, ctx.ordinary = inputs
        ctx.save_for_backward(logits, output[0], real)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad_labels: Tensor | None, grad_likelihood: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, labels, real = ctx.saved_tensors
        grad = None
        if grad_likelihood is not None:
            calm = logits if real is None else logits.masked_fill(~real, 0.0)
            prior = torch.softmax(calm, -1) if ctx.head == "softmax" else torch.sigmoid(calm)
            slope = labels - prior
            grad = ctx.spread(grad_likelihood)[..., None] * (slope if real is None else slope.masked_fill(~real, 0.0))
        if grad_labels is not None:
            _, pullback, *_ = torch.func.vjp(lambda x: ctx.ordinary(x)[0], logits)
            through: Tensor = pullback(grad_labels)[0]
            grad = through if grad is None else grad + through
        return grad, None, None, None, None, None


def differentiable(
    logits: Tensor,
    labels: Tensor,
    likelihood: Tensor,
    head: str,
    real: Tensor | None,
    spread: Spread,
    ordinary: Ordinary,
) -> tuple[Tensor, Tensor]:
    """Labels and log-likelihood that are solved already, with derivatives by the logits (..., C), all in float64.

    real: (..., 1), False where no instance stands; None if one stands everywhere.
    """
    answer: tuple[Tensor, Tensor] = _Solved.apply(logits, (labels, likelihood), head, real, spread, ordinary)  # type: ignore[no-untyped-call]
    return answer
