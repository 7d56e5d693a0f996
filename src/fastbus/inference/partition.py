"""The custom autograd of exact inference: the gradient of a log-likelihood is the posterior.

With log potentials u (N, K, Y), `log P(w | x) = log sum_y exp(sum_k u_k(y_k)) P(w | y)`, so its
gradient is P(y_k | x, w) itself: no graph through the messages, no NaN from impossible states. Only
a gradient of the posterior (joint training) needs the graph; it is rebuilt then, through the plain
differentiable path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fastbus.numerics import NEG_INF

# log potentials (N, K, Y) and the structure of the chains, to log posterior and log-likelihood
Solver = Callable[[Tensor, Any], tuple[Tensor, Tensor]]


class _Partition(torch.autograd.Function):
    """The structure's tensors are arguments of their own: function transforms lose track of captured ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        log_potential: Tensor,
        fast: Callable[..., tuple[Tensor, Tensor]],
        plain: Callable[..., tuple[Tensor, Tensor]],
        *structure: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return fast(log_potential, *structure)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        log_potential, _, ctx.plain, *structure = inputs
        ctx.save_for_backward(log_potential, output[0], *structure)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, grad_log_posterior: Tensor | None, grad_likelihood: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        log_potential, log_posterior, *structure = ctx.saved_tensors
        grad = None
        if grad_likelihood is not None:
            grad = grad_likelihood[:, None, None] * log_posterior.exp()
        if grad_log_posterior is not None:
            _, pullback, *_ = torch.func.vjp(lambda u: ctx.plain(u, *structure)[0], log_potential)
            through: Tensor = pullback(grad_log_posterior)[0]
            grad = through if grad is None else grad + through
        return grad, None, None, *(None for _ in structure)


def partition(
    log_potential: Tensor, lengths: Tensor, structure: tuple[Any, ...], fast: Solver, plain: Solver
) -> tuple[Tensor, Tensor]:
    """Log posterior (N, K, Y), -inf at padding, and log-likelihood (N,), differentiable in (N, K, Y).

    structure: nested tuples of tensors, handed to the solvers.
    """
    K = log_potential.shape[1]

    def masked(solver: Solver) -> Callable[..., tuple[Tensor, Tensor]]:
        def solve(u: Tensor, lengths: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
            log_posterior, log_likelihood = solver(u, _rebuilt(structure, iter(tensors)))
            padding = torch.arange(K, device=lengths.device) >= lengths[:, None]
            return log_posterior.masked_fill(padding[..., None], NEG_INF), log_likelihood

        return solve

    log_posterior, log_likelihood = _Partition.apply(  # type: ignore[no-untyped-call]
        log_potential, masked(fast), masked(plain), lengths, *_tensors(structure)
    )
    return log_posterior, log_likelihood


def _tensors(tree: object) -> list[Tensor]:
    """The tensors of nested tuples, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    return [tensor for part in tree for tensor in _tensors(part)] if isinstance(tree, tuple) else []


def _rebuilt(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The same nested tuples with other tensors."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if not isinstance(tree, tuple):
        return tree
    parts = [_rebuilt(part, tensors) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
