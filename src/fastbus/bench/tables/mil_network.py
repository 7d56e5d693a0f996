"""Many small networks as one, a column of outputs each, so that one fit trains all of them.

Column j of the logits (N, 2M) depends on the parameters of network j alone: M perceptrons with one hidden layer, then
M linear maps. What a column learns is up to its own weak labels; where these are missing it learns nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class ManyNetworks(nn.Module):
    """Rows (N, D) -> logits (N, 2M): M perceptrons with `hidden` units and dropout, M linear maps.

    start: the probability that every network begins near.
    """

    def __init__(self, num_inputs: int, copies: int, hidden: int, dropout: float, start: float, seed: int) -> None:
        super().__init__()
        self.copies = copies
        self.first = nn.Linear(num_inputs, copies * hidden)
        self.drop = nn.Dropout(dropout)
        self.second = nn.Parameter(torch.empty(copies, hidden))
        self.linear = nn.Linear(num_inputs, copies)
        self.bias = nn.Parameter(torch.full((2 * copies,), math.log(start / (1 - start))))
        generator = torch.Generator().manual_seed(seed)
        for weights, fan_in in ((self.first.weight, num_inputs), (self.first.bias, num_inputs), (self.second, hidden)):
            nn.init.uniform_(weights, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = squash(x)
        hidden = self.drop(self.first(x).relu()).unflatten(1, (self.copies, -1))  # (N, M, hidden)
        return torch.cat([(hidden * self.second).sum(-1), self.linear(x)], 1) + self.bias


def squash(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|), for heavy tails: the identity near 0; a value of 60 deviations becomes one of 4."""
    return x.sign() * x.abs().log1p()
