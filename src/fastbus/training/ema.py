"""A moving average of a module's weights: steadier than the last step.

That of the network predicts and may teach the posteriors; those of learned factors keep step with it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fastbus.objective import WeakLoss

FACTORS = ("class_loop", "evolution")  # parts of a loss that may be learned


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


class FactorAverages(nn.ModuleDict):
    """The averages of what a loss learns, by the name of the part; empty where there is nothing to average.

    A posterior of the averaged network needs factors of the same average: the last ones belong to the last weights.
    """

    def __init__(self, loss: WeakLoss, decay: float) -> None:
        parts = {name: getattr(loss, name) for name in FACTORS if decay and getattr(loss, name) is not None}
        learned = {name: part for name, part in parts.items() if any(p.requires_grad for p in part.parameters())}
        super().__init__({name: MovingAverage(part, decay) for name, part in learned.items()})

    def update_from(self, loss: WeakLoss) -> None:
        """Take in the factors after one step of training."""
        for name in self:
            self._average(name).update(getattr(loss, name))

    def of(self, loss: WeakLoss, name: str) -> Any:
        """A part of the loss as it is averaged, or its own where it is not."""
        return self._average(name).network if name in self else getattr(loss, name)

    def parameters_of(self, loss: WeakLoss) -> dict[str, Tensor]:
        """All parameters of the loss by name, averaged where they are."""
        found: dict[str, Tensor] = dict(loss.named_parameters())
        for part in self:
            found |= {f"{part}.{name}": x for name, x in self._average(part).network.named_parameters()}
        return found

    def hand_over(self, loss: WeakLoss) -> None:
        """Put the averages into the loss, once training has ended."""
        for name in self:
            getattr(loss, name).load_state_dict(self._average(name).network.state_dict())

    def _average(self, name: str) -> MovingAverage:
        average = self[name]
        assert isinstance(average, MovingAverage)
        return average
