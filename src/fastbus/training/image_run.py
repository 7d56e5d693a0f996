"""A run of training on images: weak labels and a recipe in, a network out, epoch after epoch.

Everything lies on one device. The batches of an epoch are a function of (seed, epoch), views and weights of the
state, so that a run goes on from `state_dict` as if it had never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.inference.fixed_build import fixed_posterior, read_all
from fastbus.inference.infer import infer
from fastbus.supervision.base import Supervision
from fastbus.supervision.confusion import class_shares
from fastbus.supervision.imperfect import NoisyLabel
from fastbus.supervision.incomplete import PositiveUnlabeled, SemiSupervised
from fastbus.training.graphed import GraphedTraining
from fastbus.training.packing import Packed, pack_bags, pack_rows
from fastbus.training.recipes import Recipe
from fastbus.training.set_score import membership_score, sets_of
from fastbus.training.step_objective import AlignedConsistency, PosteriorRisk, Recall, StepObjective
from fastbus.training.views import Views, image_views

PREDICTED_AT_ONCE = 1000


class ImageRun:
    """Trains on images (N, C, H, W) bytes, bag after bag with sizes (B,), from weak labels.

    weak: (B, ...), or (N, ...) where labels belong to instances, as in a `BagSet`.
    views, network: None for those of the recipe; given views may want floats in [0, 1] for images, and with views of
        tables the images may be rows (N, D).
    compiled: let torch.compile fuse the network's operations, for long runs on a GPU.
    objective: None for posterior-weighted risk; or a function of the run that makes another one.
    """

    def __init__(
        self,
        supervision: Supervision,
        images: Tensor,
        sizes: Tensor,
        weak: Tensor,
        *,
        num_classes: int,
        recipe: Recipe,
        seed: int = 0,
        device: str = "cpu",
        flip: bool = True,
        views: Views | None = None,
        network: nn.Module | None = None,
        objective: Callable[[ImageRun], StepObjective] | None = None,
        compiled: bool = False,
    ) -> None:
        if (images.dim() != 4 or images.dtype != torch.uint8) and (views is None or images.dim() not in (2, 4)):
            raise InputError(
                f"images of shape {tuple(images.shape)} and type {images.dtype}; expected bytes (N, channels, height, "
                "width). Convert them, e.g. images.to(torch.uint8)."
            )
        if int(sizes.sum()) != len(images):
            raise InputError(
                f"bags of {int(sizes.sum())} images in all; expected {len(images)}. Give the size of every bag."
            )
        self.supervision, self.recipe, self.seed = supervision, recipe, seed
        self.device = torch.device(device)
        self.weak, self.sizes, self.num_classes = weak, sizes, num_classes
        self.labelled = _labelled(supervision, weak)
        shape = tuple(images.shape[1:])
        if views is None:
            views = views_of(images, flip)
        self.views = views
        if network is None:
            network = recipe.network(shape, num_classes, seed)
        self.network = network
        self.num_features: int | None = getattr(network, "num_features", None)
        self.steps_per_epoch = len(self._pack(0).rows)
        self.objective = (objective or default_objective)(self)
        self.training = GraphedTraining(
            network,
            images.to(self.device),
            self.objective,
            self.views,
            recipe,
            self.steps_per_epoch * recipe.epochs,
            seed,
            compiled,
        )
        self.epoch = 0
        self.seconds = 0.0
        self.views_seen = 0

    @property
    def done(self) -> bool:
        return self.epoch >= self.recipe.epochs

    def run_epoch(self) -> dict[str, float]:
        """One pass; its number, last loss and seconds."""
        start = time.perf_counter()
        with _own_numbers(self.device, self.seed, self.epoch):
            self.objective.start_epoch(self)
            packed = self._pack(self.epoch)
            steps = self.training.load(packed)
            self.training.run(steps)
            loss = float(self.training.loss)  # waits for the device
        seconds = time.perf_counter() - start
        self.epoch += 1
        self.seconds += seconds
        self.views_seen += 2 * packed.rows.size
        if self.done:
            self.objective.end(self)
        return {"epoch": self.epoch, "loss": loss, "seconds": seconds}

    @torch.no_grad()
    def logits(self, images: Tensor, average: bool = True, plain: bool = False) -> Tensor:
        """(M, C) on the CPU, by the averaged network or the last one; plain: whatever the objective makes of them."""
        training = self.training
        training.network.eval()
        parts = []
        for part in images.split(PREDICTED_AT_ONCE):
            x = self.views.plain(part.to(self.device))
            logits = training.logits(x, average)
            parts.append((logits if plain else self.objective.judged(self, x, logits, average)).cpu())
        training.network.train()
        return torch.cat(parts)

    def predict(self, images: Tensor, average: bool = True) -> Tensor:
        """Probabilities (M, C) on the CPU."""
        return self.logits(images, average).softmax(1)

    def weak_score(
        self, images: Tensor, sizes: Tensor, weak: Any, temperatures: Sequence[float] = (1.0,)
    ) -> float | None:
        """Mean log-likelihood of the weak labels of bags that were not trained on; of sets, that of membership.

        temperatures: that of the predictions divided by the one of these that suits best. None for predictions that are
        no numbers.
        """
        logits = self.logits(images)
        if not bool(logits.isfinite().all()):
            return None
        sets = sets_of(self.supervision, np.asarray(weak))
        if sets is not None:
            return max(membership_score((logits.double() / t).softmax(1).numpy(), *sets) for t in temperatures)
        posts = [
            infer(self.supervision, logits / t, weak, bag_sizes=sizes, on_impossible="ignore") for t in temperatures
        ]
        return max(float(post.log_likelihood[~post.ignored].mean()) for post in posts)

    def config(self) -> dict[str, Any]:
        """What decides the run, as plain numbers and names."""
        return {
            "supervision": repr(self.supervision),
            "images": len(self.training.images),
            "bags": len(self.sizes),
            "num_classes": self.num_classes,
            "steps_per_epoch": self.steps_per_epoch,
            **self.recipe.as_dict(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Tensors under "tensors", numbers beside them."""
        numbers = {"epoch": self.epoch, "seconds": self.seconds, "views_seen": self.views_seen}
        return {"tensors": {name: x.detach().cpu().clone() for name, x in self.training.state().items()}, **numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.training.restore(state["tensors"])
        self.epoch, self.views_seen = int(state["epoch"]), int(state["views_seen"])
        self.seconds = float(state["seconds"])

    def _pack(self, epoch: int) -> Packed:
        """The batches of an epoch."""
        rng = np.random.default_rng([self.seed, epoch])
        rows, labelled = self.recipe.rows, self.labelled
        if labelled is not None:
            few, many = np.flatnonzero(labelled), np.flatnonzero(~labelled)
            if isinstance(self.supervision, SemiSupervised):
                many = np.arange(len(labelled))  # labelled images serve without their labels, too
            part = self.recipe.rows_with_labels if len(few) else 0
            return pack_rows((few, many), (part, rows - part), rng)
        if int(self.sizes.max()) == 1:
            rows = min(rows, len(self.sizes))
            return pack_rows((np.arange(len(self.sizes)),), (rows,), rng)
        sizes = self.sizes.numpy()
        return pack_bags(sizes, max(rows, int(sizes.max())), max(1, round(rows / float(sizes.min()))), rng)


@contextmanager
def _own_numbers(device: torch.device, seed: int, epoch: int) -> Iterator[None]:
    """Dropout takes torch's global numbers: on a CPU let them be those of (seed, epoch); the caller gets back his."""
    if device.type != "cpu":  # a captured step has numbers of its own
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0]))
        yield


def views_of(images: Tensor, flip: bool = True) -> Views:
    """The views of images (N, C, H, W) bytes, normalised by their own means and deviations."""
    mean, std = _statistics(images)
    return image_views(tuple(images.shape[1:]), flip=flip, mean=mean, std=std)


def default_objective(run: ImageRun) -> StepObjective:
    """Posterior-weighted risk; for gold labels among many unlabelled images, consistency."""
    if isinstance(run.supervision, SemiSupervised) and run.labelled is not None:
        read_all(run.supervision, run.weak, run.sizes, run.num_classes)  # complains if need be
        labelled = torch.from_numpy(run.labelled).to(run.device)
        return AlignedConsistency(run.weak.to(run.device), labelled, run.num_classes, run.recipe, _recall(run))
    posterior = fixed_posterior(run.supervision, run.weak, run.sizes, run.num_classes, run.device, run.recipe.coupling)
    return PosteriorRisk(posterior, run.recipe, _known_shares(run), run.device, _recall(run))


def _recall(run: ImageRun) -> Recall | None:
    """The predictions of every image, where the recipe wants them kept."""
    keep, number = run.recipe.recall, int(run.sizes.sum())
    return Recall(number, run.num_classes, keep, run.device) if keep else None


def _known_shares(run: ImageRun) -> Tensor | None:
    """Shares of the classes (C,) among the images, where their weak labels tell them."""
    rule = run.supervision
    if not run.recipe.align or not isinstance(rule, NoisyLabel):
        return None
    return class_shares(run.weak, rule.matrix(run.num_classes)).float().to(run.device)


def _labelled(supervision: Supervision, weak: Tensor) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Which instances carry labels of their own while others carry none; None where that does not part them."""
    if isinstance(supervision, SemiSupervised):
        given = (weak >= 0).numpy()
    elif isinstance(supervision, PositiveUnlabeled):
        given = (weak == 1).numpy()
    else:
        return None
    return given if not given.all() else None


def _statistics(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel, in [0, 1]."""
    counts = torch.stack([torch.bincount(images[:, c].flatten(), minlength=256) for c in range(images.shape[1])])
    level = torch.arange(256, dtype=torch.float64) / 255
    total = counts.sum(1).double()
    mean = (counts * level).sum(1) / total
    std = ((counts * level**2).sum(1) / total - mean**2).clamp(min=1e-8).sqrt()
    return mean.tolist(), std.tolist()
