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
from fastbus.models.build import build_backbone
from fastbus.training.batch_statistics import count_statistics
from fastbus.training.graphed import AVERAGED_SHARE, GraphedTraining
from fastbus.training.precision import computing
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


def fresh_network(network: nn.Module, seed: int) -> nn.Module:
    """A network of the same architecture with weights of its own.

    Of a caller's network all that is trained is drawn anew where a module has `reset_parameters`; what is frozen, and
    what has no such way, is copied.
    """
    if isinstance(network, Backbone) and network.config and all(p.requires_grad for p in network.parameters()):
        return build_backbone(**network.config, seed=seed)
    other = copy.deepcopy(network)
    with torch.random.fork_rng(devices=[]):  # modules draw from torch's global numbers
        torch.manual_seed(seed)
        for module in other.modules():
            own = list(module.parameters(recurse=False))
            reset = getattr(module, "reset_parameters", None)
            if callable(reset) and own and all(p.requires_grad for p in own):
                reset()
    return other


class SecondNetwork:
    """A network, its average and its velocity under Nesterov's momentum."""

    def __init__(self, network: nn.Module, recipe: Recipe, steps: int, device: torch.device) -> None:
        moved = network.to(device).train()
        self.network: nn.Module = moved.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.recipe, self.steps, self.device = recipe, steps, device
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        # what is frozen stays as it is, in the average too
        trained = [p.requires_grad for p in self.network.parameters()]
        self.averaged_parameters = [p for p, learns in zip(self.average.parameters(), trained, strict=True) if learns]
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.counted = -1  # steps after which the average's statistics were counted

    def __call__(self, images: Tensor) -> Tensor:
        """Logits float32, computed as the trainer computes those of its own network."""
        return self._apply(self.network, images)

    @torch.no_grad()
    def averaged(self, images: Tensor, training: GraphedTraining) -> Tensor:
        """Logits float32 of the average, normalised by statistics of its own weights on changed views."""
        if self.counted != (taken := int(training.count)):
            count_statistics(self.average, self._at, training.changed_batches())
            self.counted = taken
        return self._at(images)

    def _at(self, images: Tensor) -> Tensor:
        return self._apply(self.average, images)

    def _apply(self, network: nn.Module, images: Tensor) -> Tensor:
        if images.dim() == 4:  # rows of a table have no channels
            images = images.to(memory_format=torch.channels_last)
        with computing(self.device, self.recipe):
            out: Tensor = network(images)
        return out.float()

    def begin_like(self, other: nn.Module) -> None:
        """Take over what another network of its kind has learnt without labels, before the first step."""
        mine = self.network
        if isinstance(other, Backbone) and isinstance(mine, Backbone) and other.config == mine.config:
            load_features(mine, other.state_dict())
            self.average.load_state_dict(mine.state_dict())

    def descend(self, loss: Tensor, progress: Tensor) -> None:
        """One step down the loss."""
        # a network of the caller's may have parts that the loss does not reach
        grads = list(torch.autograd.grad(loss, self.parameters, materialize_grads=True))
        recipe = self.recipe
        with torch.no_grad():
            torch._foreach_add_(grads, self.parameters, alpha=recipe.weight_decay)
            torch._foreach_mul_(self.velocity, recipe.momentum)
            torch._foreach_add_(self.velocity, grads)
            torch._foreach_add_(grads, self.velocity, alpha=recipe.momentum)
            torch._foreach_mul_(grads, learning_rate(recipe, progress, self.steps))
            torch._foreach_sub_(self.parameters, grads)
            keep = averaging_share(recipe, progress, self.steps)
            torch._foreach_mul_(self.averaged_parameters, keep)
            torch._foreach_add_(self.averaged_parameters, torch._foreach_mul(self.parameters, 1 - keep))

    def state(self) -> dict[str, Tensor]:
        """Everything its next step depends on."""
        tensors = {f"second.{name}": x for name, x in self.network.state_dict().items()}
        tensors |= {f"second_average.{name}": x for name, x in self.average.state_dict().items()}
        return tensors | {f"second_velocity.{index}": x for index, x in enumerate(self.velocity)}
