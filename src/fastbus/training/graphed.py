"""A whole training step as one CUDA graph: batch, views, network, posterior, loss, optimiser and average.

Images, batches and random numbers stay on the device, and nothing waits for it: the host only says "again".
Without a GPU the same step runs as ordinary operations, so that tests see what graphs replay.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.inference.fixed import FixedPosterior, Step
from fastbus.training.packing import Packed
from fastbus.training.views import Views


@dataclass(frozen=True)
class Recipe:
    """How the weights move. steps: in all; the learning rate warms up, then falls as a cosine."""

    steps: int
    learning_rate: float = 0.03
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup: int = 100
    decay: float = 0.999  # of the averaged weights
    strong: float = 1.0  # weight of the strong view's loss
    teacher: bool = False  # posteriors from the averaged network


class GraphedTraining:
    """Trains a network on images (N, C, H, W) bytes, one replay a step."""

    def __init__(
        self,
        network: nn.Module,
        images: Tensor,
        posterior: FixedPosterior,
        views: Views,
        recipe: Recipe,
        seed: int,
    ) -> None:
        self.device = images.device
        self.gpu = self.device.type == "cuda"
        network = network.to(self.device).train()
        self.network: nn.Module = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.images, self.posterior, self.views, self.recipe = images, posterior, views, recipe
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.averaged = list(self.average.parameters())
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.position = torch.zeros((), dtype=torch.long, device=self.device)  # of the step in its epoch
        self.count = torch.zeros((), dtype=torch.float64, device=self.device)  # of all steps
        self.loss = torch.zeros((), device=self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.tables: tuple[Tensor, ...] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def load(self, epoch: Packed) -> int:
        """Put an epoch's batches onto the device; returns the number of its steps."""
        arrays = (epoch.rows, epoch.bags, epoch.starts, epoch.sizes, epoch.real)
        fresh = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        if self.tables is None or len(fresh[0]) > len(self.tables[0]):
            if self.graph is not None and self.tables is not None:
                raise InputError(
                    f"an epoch of {len(fresh[0])} steps; expected at most {len(self.tables[0])}, the room there is. "
                    "Load the longest epoch first."
                )
            room = len(fresh[0]) + len(fresh[0]) // 20 + 2  # packing differs from epoch to epoch
            self.tables = tuple(x.new_zeros(room, *x.shape[1:]).to(self.device) for x in fresh)
        for mine, theirs in zip(self.tables, fresh, strict=True):
            mine[: len(theirs)].copy_(theirs)
        self.position.zero_()
        return len(fresh[0])

    def run(self, steps: int) -> None:
        """Take so many steps of the epoch that was loaded."""
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()
                if self.gpu and int(self.count) == 3:
                    self._capture()

    def _capture(self) -> None:
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        for parameter in self.parameters:
            parameter.grad = None
        with torch.cuda.graph(self.graph):
            self._step()

    def _step(self) -> None:
        assert self.tables is not None
        rows, bags, starts, sizes, real = (table.index_select(0, self.position[None])[0] for table in self.tables)
        recipe, M = self.recipe, len(rows)
        x = self.images.index_select(0, rows)
        weak, strong = self.views.weak(x, self.generator), self.views.strong(x, self.generator)
        both = torch.cat([weak, strong]).to(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.gpu, cache_enabled=False):
            logits = self.network(both)
            with torch.no_grad():
                judged = self.average(weak) if recipe.teacher else logits[:M].detach()
        logits = logits.float()
        with torch.no_grad():
            q = self.posterior(judged.float(), Step(rows, bags, starts, sizes))
            weight = real.float()
        risk = -(q * torch.log_softmax(logits[:M], 1)).sum(1)
        risk = risk - recipe.strong * (q * torch.log_softmax(logits[M:], 1)).sum(1)
        loss = (torch.where(real, risk, 0.0) * weight).sum() / (weight.sum() * (1 + recipe.strong))
        grads = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            self._descend(list(grads))
            self.loss.copy_(loss.detach())
            self.position += 1
            self.count += 1

    def _descend(self, grads: list[Tensor]) -> None:
        recipe = self.recipe
        progress = self.count / recipe.steps
        rate = recipe.learning_rate * 0.5 * (1 + torch.cos(math.pi * progress.clamp(max=1.0)))
        rate = (rate * ((self.count + 1) / max(1, recipe.warmup)).clamp(max=1.0)).float()
        torch._foreach_add_(grads, self.parameters, alpha=recipe.weight_decay)
        torch._foreach_mul_(self.velocity, recipe.momentum)
        torch._foreach_add_(self.velocity, grads)
        torch._foreach_add_(grads, self.velocity, alpha=recipe.momentum)
        torch._foreach_mul_(grads, rate)
        torch._foreach_sub_(self.parameters, grads)
        keep = torch.clamp((1 + self.count) / (10 + self.count), max=recipe.decay).float()
        torch._foreach_mul_(self.averaged, keep)
        torch._foreach_add_(self.averaged, torch._foreach_mul(self.parameters, 1 - keep))
        for mine, theirs in zip(self.average.buffers(), self.network.buffers(), strict=True):
            mine.copy_(theirs)
