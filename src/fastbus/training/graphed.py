"""A whole training step as one CUDA graph: batch, views, network, objective, optimiser and average.

Images, batches and random numbers stay on the device, and nothing waits for it: the host only says "again".
Without a GPU the same step runs as ordinary operations, so that tests see what graphs replay.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.inference.fixed import Step
from fastbus.models.rectified_norm import fuse
from fastbus.training.batch_statistics import by_batch, count_statistics
from fastbus.training.packing import Packed
from fastbus.training.precision import computing
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepInputs, StepObjective
from fastbus.training.views import Views

AVERAGED_SHARE = 1 / 20  # of all steps that the average may look back on, so that it ends where training ends
COUNTED, COUNTED_AT_ONCE = 10_000, 125  # images whose statistics normalise the averaged network
EAGER_STEPS = 3  # taken as they are, so that libraries choose their algorithms before the step is captured


@contextmanager
def _trying_algorithms(on: bool) -> Iterator[None]:
    """cuDNN times what it can choose from. Its own `flags` would reset all others, and turn it off altogether."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = before or (on and not cudnn.deterministic)
    try:
        yield
    finally:
        cudnn.benchmark = before


class GraphedTraining:
    """Trains a network on images (N, C, H, W) bytes, one replay a step; `steps` in all set the schedule.

    compiled: let torch.compile fuse a network's operations, at the price of half a minute once; the residual networks
        of this package have kernels of their own for that, which need no such start.
    """

    def __init__(
        self,
        network: nn.Module,
        images: Tensor,
        objective: StepObjective,
        views: Views,
        recipe: Recipe,
        steps: int,
        seed: int,
        compiled: bool = False,
    ) -> None:
        self.device = images.device
        self.gpu = self.device.type == "cuda"
        network = network.to(self.device).train()
        self.network: nn.Module = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fuse(self.network)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(self.network) if compiled else self.network
        self.average: nn.Module = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.teach: Callable[[Tensor], Tensor] = torch.compile(self.average) if compiled else self.average
        self.images, self.objective, self.views = images, objective, views
        self.recipe, self.steps = recipe, steps
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        # what is frozen stays as it is, in the average too
        trained = [p.requires_grad for p in self.network.parameters()]
        self.averaged = [p for p, learns in zip(self.average.parameters(), trained, strict=True) if learns]
        self.own = list(objective.learned.values())
        self.own_rates = [objective.rates.get(name, 1.0) for name in objective.learned]
        self.velocity = [torch.zeros_like(p) for p in self.parameters]
        self.position = torch.zeros((), dtype=torch.long, device=self.device)  # of the step in its epoch
        self.count = torch.zeros((), dtype=torch.float64, device=self.device)  # of all steps
        self.loss = torch.zeros((), device=self.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.tables: tuple[Tensor, ...] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = 0  # steps taken without a graph
        self.counted = -1  # steps after which the averaged network's statistics were counted

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
            room = 2 * len(fresh[0]) + 2  # packing differs from epoch to epoch, by a factor of 2 at most
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
                continue
            with _trying_algorithms(self.gpu):  # shapes stay as they are, so that it pays
                self._step()
                self.eager += 1
                if self.gpu and self.objective.capturable and self.eager == EAGER_STEPS:
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
        x = self.images.index_select(0, rows)
        inputs = StepInputs(
            Step(rows, bags, starts, sizes),
            real,
            self.views.weak(x, self.generator),
            self.views.strong(x, self.generator),
            partial(self._apply, self.forward),
            partial(self._teach, self.teach),
            partial(self._apply, getattr(self.network, "features", self.network)),
            partial(self._teach, getattr(self.average, "features", self.average)),
            partial(self._apply, getattr(self.network, "classify", nn.Identity())),
            self.generator,
            self.count / self.steps,
        )
        loss = self.objective(inputs)
        # a network of the caller's may have parts that the loss does not reach
        grads = list(torch.autograd.grad(loss, self.parameters + self.own, materialize_grads=True))
        with torch.no_grad():
            self._descend(grads[: len(self.parameters)], grads[len(self.parameters) :])
            self.loss.copy_(loss.detach())
            self.position += 1
            self.count += 1

    def logits(self, x: Tensor, average: bool) -> Tensor:
        """Logits float32 of the averaged network, or of the one in training."""
        return self._apply(self.final() if average else self.network, x)

    @torch.no_grad()
    def final(self) -> nn.Module:
        """The averaged network, normalised by statistics of its own weights on views as they are trained on."""
        taken = int(self.count)
        if self.counted != taken:
            for mine, latest in zip(self.average.buffers(), self.network.buffers(), strict=True):
                mine.copy_(latest)
            count_statistics(self.average, partial(self._apply, self.average), self.changed_batches())
            self.counted = taken
        return self.average

    @torch.no_grad()
    def replace_average(self, weights: list[Tensor]) -> None:
        """Let others be the averaged weights, in the order of `averaged`."""
        for mine, other in zip(self.averaged, weights, strict=True):
            mine.copy_(other)
        self.counted = -1

    def changed_batches(self) -> Iterator[Tensor]:
        """Both views of images from the whole set, in batches of one size; the steps' own random numbers stay."""
        number = len(self.images)
        size = min(number, COUNTED_AT_ONCE)
        batches = min(number, COUNTED) // size
        # by lot: neighbours may be of one bag, and every other image the more positive one of its pair
        rows = torch.randperm(number, generator=torch.Generator().manual_seed(0))[: batches * size].to(self.device)
        generator = torch.Generator(self.device).manual_seed(0)
        for some in rows.split(size):
            x = self.images[some]
            yield torch.cat([self.views.weak(x, generator), self.views.strong(x, generator)])

    @torch.no_grad()
    def _teach(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """By the averaged weights, normalised by the batch."""
        with by_batch(self.average):
            return self._apply(network, x)

    def _apply(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        with computing(self.device, self.recipe):
            out = network(x)
        return out.float()

    def _descend(self, grads: list[Tensor], own_grads: list[Tensor]) -> None:
        recipe = self.recipe
        progress = (self.count / self.steps).clamp(max=1.0)
        rate = recipe.learning_rate * torch.ones_like(self.count)
        if recipe.schedule == "cosine":
            rate = rate * 0.5 * (1 + torch.cos(math.pi * progress))
        warmup = max(1, min(recipe.warmup, self.steps // 10))  # short runs would never reach the rate
        rate = (rate * ((self.count + 1) / warmup).clamp(max=1.0)).float()
        torch._foreach_add_(grads, self.parameters, alpha=recipe.weight_decay)
        torch._foreach_mul_(self.velocity, recipe.momentum)
        torch._foreach_add_(self.velocity, grads)
        torch._foreach_add_(grads, self.velocity, alpha=recipe.momentum)
        torch._foreach_mul_(grads, rate)
        torch._foreach_sub_(self.parameters, grads)
        for mine, grad, factor in zip(self.own, own_grads, self.own_rates, strict=True):
            mine.sub_(grad * (rate * factor))
        limit = min(recipe.decay, 1 - 1 / max(4.0, AVERAGED_SHARE * self.steps))
        keep = torch.clamp((1 + self.count) / (10 + self.count), max=limit).float()
        torch._foreach_mul_(self.averaged, keep)
        torch._foreach_add_(self.averaged, torch._foreach_mul(self.parameters, 1 - keep))

    # -- restart --------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Everything the next step depends on, between two epochs."""
        tensors = {f"network.{name}": x for name, x in self.network.state_dict().items()}
        tensors |= {f"average.{name}": x for name, x in self.average.state_dict().items()}
        tensors |= {f"velocity.{index}": x for index, x in enumerate(self.velocity)}
        tensors |= {f"objective.{name}": x for name, x in self.objective.state().items()}
        tensors |= {f"learned.{name}": x for name, x in self.objective.learned.items()}
        return tensors | {"count": self.count, "generator": self.generator.get_state()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from `state`; call it before the first step."""
        mine = self.state()
        if set(mine) != set(tensors) or any(x.shape != tensors[name].shape for name, x in mine.items()):
            raise InputError(
                "a state of other tensors; expected that of the same run on the same kind of device. Start anew, or "
                "keep recipe and device."
            )
        for name, x in mine.items():
            if name != "generator":
                x.copy_(tensors[name])
        self.generator.set_state(tensors["generator"].cpu())
        self.counted = -1
