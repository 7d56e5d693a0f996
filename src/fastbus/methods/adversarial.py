"""Virtual adversarial training: predictions must not change in the direction that changes them most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fastbus.training.step_objective import Network


@contextmanager
def unmoved_statistics(module: nn.Module) -> Iterator[None]:
    """Running batch statistics stay as they are while changed images pass."""
    layers = [layer for layer in module.modules() if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.momentum = momentum


def unit(x: Tensor) -> Tensor:
    """Each of (M, ...) scaled to Euclidean length 1."""
    ones = [1] * (x.dim() - 1)
    x = x / x.flatten(1).abs().amax(1).clamp(min=1e-30).reshape(-1, *ones)  # squares of tiny gradients would be 0
    norm: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=1e-30)
    return x / norm.reshape(-1, *ones)


def divergence(log_p: Tensor, logits: Tensor) -> Tensor:
    """Mean KL(p || softmax(logits)) over rows."""
    return (log_p.exp() * (log_p - torch.log_softmax(logits, 1))).sum(1).mean()


def virtual_adversarial_loss(
    network: Network, x: Tensor, logits: Tensor, generator: torch.Generator, *, radius: float, probe: float
) -> Tensor:
    """KL between predictions at x and at distance `radius` in the worst direction.

    logits: of x, taken as they are; from a pass of x alone, so that batch statistics are those of the changed x, too.
    The direction is one power iteration from a random one, by a gradient at
    distance `probe`.
    """
    log_p = torch.log_softmax(logits.detach(), 1)
    direction = unit(torch.randn(x.shape, generator=generator, device=x.device))
    with torch.enable_grad():
        step = (probe * direction).requires_grad_()
        (slope,) = torch.autograd.grad(divergence(log_p, network(x + step)), step)
    return divergence(log_p, network(x + radius * unit(slope.detach())))
