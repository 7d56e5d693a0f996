"""Virtual adversarial training: predictions must not change in the direction that changes them most."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.training.step_objective import Network


def unit(x: Tensor) -> Tensor:
    """Each of (M, ...) scaled to Euclidean length 1."""
    norm: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=1e-30)
    return x / norm.reshape(-1, *[1] * (x.dim() - 1))


def divergence(log_p: Tensor, logits: Tensor) -> Tensor:
    """Mean KL(p || softmax(logits)) over rows."""
    return (log_p.exp() * (log_p - torch.log_softmax(logits, 1))).sum(1).mean()


def virtual_adversarial_loss(
    network: Network, x: Tensor, logits: Tensor, generator: torch.Generator, *, radius: float, probe: float
) -> Tensor:
    """KL between predictions at x and at distance `radius` in the worst direction.

    logits: of x, taken as they are. The direction is one power iteration from a random one, by a gradient at
    distance `probe`.
    """
    log_p = torch.log_softmax(logits.detach(), 1)
    direction = unit(torch.randn(x.shape, generator=generator, device=x.device))
    with torch.enable_grad():
        step = (probe * direction).requires_grad_()
        (slope,) = torch.autograd.grad(divergence(log_p, network(x + step)), step)
    return divergence(log_p, network(x + radius * unit(slope.detach())))
