"""Mixing of inputs and targets with shares drawn from a Beta distribution, in operations of fixed shape."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

QUANTILES = 4096


class BetaShares:
    """Draws from Beta(alpha, alpha) on a device: quantiles at uniform places, so that no rejection is needed."""

    def __init__(self, alpha: float, device: torch.device) -> None:
        from scipy.stats import beta

        places = (np.arange(QUANTILES) + 0.5) / QUANTILES
        self.quantiles = torch.tensor(beta.ppf(places, alpha, alpha), dtype=torch.float32, device=device)

    def __call__(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, 1) shares."""
        device = self.quantiles.device
        place = torch.randint(QUANTILES, (count,), generator=generator, device=device)
        return self.quantiles.index_select(0, place)[:, None]

    def own(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, 1) shares of a row's own part: the larger one of the two, so that it stays the row it was."""
        share = self(count, generator)
        return torch.maximum(share, 1 - share)


def shuffled(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """A random order of the rows (count,)."""
    return torch.rand(count, generator=generator, device=device).argsort()


def mix(x: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """share * x + (1 - share) * x[partner]; share (M, 1), x (M, ...)."""
    weight = share.reshape(len(share), *[1] * (x.dim() - 1)).to(x.dtype)
    return weight * x + (1 - weight) * x.index_select(0, partner)


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """Probabilities (M, C) raised to 1 / temperature, normalised."""
    powered = probs ** (1 / temperature)
    return powered / powered.sum(1, keepdim=True)
