"""A second network beside the trainer's: it takes the same kind of steps, inside of an objective.

One trainer then serves methods with two networks: the objective computes the second one's loss and asks it to
descend, all in operations that a captured step can hold.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from fastbus.models.backbone import Backbone
from fastbus.training.batch_statistics import count_statistics
from fastbus.training.graphed import AVERAGED_SHARE, GraphedTraining
from fastbus.training.pretrain import load_features
from fastbus.training.recipes import Recipe


def learning_rate(recipe: Recipe, progress: Tensor, steps: int) -> Tensor:
    """The rate of the step at this share of all steps, as the trainer has it."""
    rate = recipe.learning_rate * torch.ones_like(progress)
    if recipe.schedule == "cosine":
        rate = rate * 0.5 * (1 + torch.cos(math.pi * progress.clamp(max=1.0)))
    warmup = max(1, min(recipe.warmup, steps // 10))
    return (rate * ((progress * steps + 1) / warmup).clamp(max=1.0)).float()


def averaging_share(recipe: Recipe, progress: Tensor, steps: int) -> Tensor:
    """How much of an average is kept at this step, as the trainer keeps of its averaged network."""
    limit = min(recipe.decay, 1 - 1 / max(4.0, AVERAGED_SHARE * steps))
    count = progress * steps
    return torch.clamp((1 + count) / (10 + count), max=limit).float()


class SecondNetwork:
    """A network, its average and its velocity under Nesterov's momentum."""

    def __init__(self, network: Backbone, recipe: Recipe, steps: int, device: torch.device) -> None:
        moved = network.to(device).train()
        self.network: Backbone = moved.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.recipe, self.steps, self.device = recipe, steps, device
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.counted = -1  # steps after which the average's statistics were counted

    def __call__(self, images: Tensor) -> Tensor:
        """Logits float32, computed as the trainer computes those of its own network."""
        gpu = self.device.type == "cuda"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=gpu, cache_enabled=False):
            out: Tensor = self.network(images.to(memory_format=torch.channels_last))
        return out.float()

    @torch.no_grad()
    def averaged(self, images: Tensor, training: GraphedTraining) -> Tensor:
        """Logits float32 of the average, normalised by statistics of its own weights on changed views."""
        if self.counted != (taken := int(training.count)):
            count_statistics(self.average, self._at, training.changed_batches())
            self.counted = taken
        return self._at(images)

    def _at(self, images: Tensor) -> Tensor:
        gpu = self.device.type == "cuda"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=gpu, cache_enabled=False):
            out: Tensor = self.average(images.to(memory_format=torch.channels_last))
        return out.float()

    def begin_like(self, other: nn.Module) -> None:
        """Take over what another network of its kind has learnt without labels, before the first step."""
        if isinstance(other, Backbone) and other.config == self.network.config:
            load_features(self.network, other.state_dict())
            self.average.load_state_dict(self.network.state_dict())

    def descend(self, loss: Tensor, progress: Tensor) -> None:
        """One step down the loss."""
        grads = list(torch.autograd.grad(loss, self.parameters))
        recipe = self.recipe
        with torch.no_grad():
            torch._foreach_add_(grads, self.parameters, alpha=recipe.weight_decay)
            torch._foreach_mul_(self.velocity, recipe.momentum)
            torch._foreach_add_(self.velocity, grads)
            torch._foreach_add_(grads, self.velocity, alpha=recipe.momentum)
            torch._foreach_mul_(grads, learning_rate(recipe, progress, self.steps))
            torch._foreach_sub_(self.parameters, grads)
            keep = averaging_share(recipe, progress, self.steps)
            averaged = list(self.average.parameters())
            torch._foreach_mul_(averaged, keep)
            torch._foreach_add_(averaged, torch._foreach_mul(self.parameters, 1 - keep))

    def state(self) -> dict[str, Tensor]:
        """Everything its next step depends on."""
        tensors = {f"second.{name}": x for name, x in self.network.state_dict().items()}
        tensors |= {f"second_average.{name}": x for name, x in self.average.state_dict().items()}
        return tensors | {f"second_velocity.{index}": x for index, x in enumerate(self.velocity)}
