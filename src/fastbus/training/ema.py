"""A moving average of a network's weights: steadier than the last step, and the teacher of the posteriors."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class MovingAverage(nn.Module):
    """Keeps average = decay * average + (1 - decay) * weights; buffers are copied.

    The decay warms up, (1 + n) / (10 + n) after n updates at most, so that early averages forget their start.
    """

    updates: Tensor

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.register_buffer("updates", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the weights after one step of training."""
        self.updates += 1
        warm = (1 + self.updates) / (10 + self.updates)
        decay = torch.clamp(warm, max=self.decay)
        for mine, theirs in zip(self.network.parameters(), network.parameters(), strict=True):
            mine.lerp_(theirs.to(mine.dtype), (1 - decay).to(mine.dtype))
        for kept, fresh in zip(self.network.buffers(), network.buffers(), strict=True):
            kept.copy_(fresh)

    def train(self, mode: bool = True) -> MovingAverage:
        """The average is never trained; its network stays in evaluation mode."""
        super().train(mode)
        self.network.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x)
        return logits
