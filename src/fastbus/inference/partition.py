"""The custom autograd of exact inference: the gradient of a log-likelihood is the posterior.

With log potentials u (N, K, Y), `log P(w | x) = log sum_y exp(sum_k u_k(y_k)) P(w | y)`, so its
gradient is P(y_k | x, w) itself: no graph through the messages, no NaN from impossible states. Only
a gradient of the posterior (joint training) needs the graph; it is rebuilt then, through the plain
differentiable path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastbus.numerics import NEG_INF

Solver = Callable[[Tensor], tuple[Tensor, Tensor]]


class _Partition(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(log_potential: Tensor, fast: Solver, plain: Solver) -> tuple[Tensor, Tensor]:
        return fast(log_potential)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        log_potential, _, ctx.plain = inputs
        ctx.save_for_backward(log_potential, output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_log_posterior: Tensor | None, grad_likelihood: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        log_potential, log_posterior = ctx.saved_tensors
        grad = None
        if grad_likelihood is not None:
            grad = grad_likelihood[:, None, None] * log_posterior.exp()
        if grad_log_posterior is not None:
            through = _through_posterior(ctx.plain, log_potential, grad_log_posterior)
            grad = through if grad is None else grad + through
        return grad, None, None


def _through_posterior(plain: Solver, log_potential: Tensor, grad: Tensor) -> Tensor:
    _, pullback, *_ = torch.func.vjp(lambda u: plain(u)[0], log_potential)
    through: Tensor = pullback(grad)[0]
    return through


def partition(log_potential: Tensor, lengths: Tensor, fast: Solver, plain: Solver) -> tuple[Tensor, Tensor]:
    """Log posterior (N, K, Y), -inf at padding, and log-likelihood (N,), differentiable in (N, K, Y)."""
    K = log_potential.shape[1]
    padding = torch.arange(K, device=lengths.device) >= lengths[:, None]

    def masked(solver: Solver) -> Solver:
        def solve(u: Tensor) -> tuple[Tensor, Tensor]:
            log_posterior, log_likelihood = solver(u)
            return log_posterior.masked_fill(padding[..., None], NEG_INF), log_likelihood

        return solve

    log_posterior, log_likelihood = _Partition.apply(  # type: ignore[no-untyped-call]
        log_potential, masked(fast), masked(plain)
    )
    return log_posterior, log_likelihood
