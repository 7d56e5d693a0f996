"""Batch normalisation and the rectifier behind it, one layer, with a sum in front of or behind the normalisation.

Shapes: (N, C, H, W). Where `fuse` allows it, steps of training on a GPU take Triton kernels (gpu_norm.py) that read and
write each value once, and the plain operations are what those must equal.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MOST_CHANNELS = 1024  # of a kernel's tile


class RectifiedNorm(nn.BatchNorm2d):
    """slope: of the rectifier below 0; 0 for ReLU, 1 for none at all."""

    fused = False

    def __init__(self, channels: int, slope: float = 0.0) -> None:
        super().__init__(channels)
        self.slope = slope

    def forward(self, x: Tensor, after: Tensor | None = None) -> Tensor:
        """rectify(normalise(x) + after)."""
        if self._fuses(x):
            y: Tensor = self._kernels(x, None, after)
            return y
        out: Tensor = super().forward(x)
        return rectify(out if after is None else out + after, self.slope)

    def of_sum(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        """The sum x + before, and rectify(normalise(it))."""
        if before is not None and self._fuses(x):
            both: tuple[Tensor, Tensor] = self._kernels(x, before, None)
            return both
        total = x if before is None else torch.add(before, x)
        return total, self(total)

    def _kernels(self, x: Tensor, before: Tensor | None, after: Tensor | None) -> Any:
        from fastbus.models.gpu_norm import fused_norm

        assert self.running_mean is not None and self.running_var is not None
        statistics = self.running_mean, self.running_var, self.momentum, self.eps
        return fused_norm(x, before, after, self.weight, self.bias, *statistics, self.slope)

    def _fuses(self, x: Tensor) -> bool:
        """Whether kernels know this case: steps of training, channels that lie last, a power of two of them."""
        C = self.num_features
        return (
            self.fused
            and self.training
            and (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1")
            and self.momentum is not None
            and not torch.compiler.is_compiling()
            and C & (C - 1) == 0
            and C <= MOST_CHANNELS
            and x.numel() > C
            and x.is_contiguous(memory_format=torch.channels_last)
        )


def rectify(x: Tensor, slope: float) -> Tensor:
    """ReLU, leaky by `slope`; in place, for nothing else reads what batch norm returns."""
    if slope == 1:
        return x
    return F.leaky_relu(x, slope, inplace=True) if slope else F.relu(x, inplace=True)


def fuse(network: nn.Module) -> None:
    """Let a network's layers take the kernels, if Triton is there."""
    there = find_spec("triton") is not None
    for layer in network.modules():
        if isinstance(layer, RectifiedNorm):
            layer.fused = there
