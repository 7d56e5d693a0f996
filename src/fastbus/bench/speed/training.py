"""What weak labels cost in training: seconds of a step with posteriors beside the same step with true labels.

Network, batches, both views, precision, optimiser and averages are the same; only the targets come from elsewhere.
On a CPU the step with posteriors is taken in bfloat16, too. On a GPU both steps are replays of a CUDA graph where the
posterior can be captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbus.bench.speed.graphs import replayed
from fastbus.bench.speed.timing import Timing, interleaved, summary, waiter
from fastbus.data.draws import draw_bags
from fastbus.data.images import load_images
from fastbus.data.weaken import weaken
from fastbus.inference.fixed import FixedPosterior, Step
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision
from fastbus.training.image_run import ImageRun, default_objective
from fastbus.training.packing import Packed, pack_bags
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import PosteriorRisk, StepObjective

Array = NDArray[Any]
# kind of weak label, number of bags, mean and deviation of their sizes
SETTINGS: dict[str, tuple[type[Supervision], int, float, float]] = {
    "label_proportion": (LabelProportion, 1200, 10, 2),
    "multi_instance": (MultiInstance, 800, 8, 1),
}
BACKBONE = {"cpu": "small_cnn", "cuda": "wrn_28_2"}
WARM_UP = 5  # steps before the clock: three of them precede the capture of a graph


class TrueLabels:
    """Takes the place of a posterior: the true classes, (N,), as targets."""

    capturable = True

    def __init__(self, labels: Tensor, num_classes: int) -> None:
        self.targets = torch.nn.functional.one_hot(labels, num_classes).float()

    def __call__(self, logits: Tensor, step: Step) -> Tensor:
        return self.targets[step.rows]


def measure_training(
    device: str, images: Path | None, quick: bool, seed: int, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """One record a kind of weak label."""
    pixels, labels, name = _images(images)
    for kind in SETTINGS:
        say(f"training from {kind}")
        yield _measure(kind, pixels, labels, name, device, quick, seed)


def _measure(kind: str, pixels: Array, labels: Array, name: str, device: str, quick: bool, seed: int) -> dict[str, Any]:
    rule, bags, mean, std = SETTINGS[kind]
    if quick:
        bags = min(bags, 120)
    supervision = rule()
    drawn = draw_bags(len(pixels), bags, mean, std, np.random.default_rng(seed))
    truth = labels[drawn.rows]
    num_classes = int(labels.max()) + 1
    weak = torch.from_numpy(np.asarray(weaken(supervision, truth, drawn.sizes, num_classes=num_classes)))
    chosen = torch.from_numpy(pixels[drawn.rows])
    sizes, recipe = torch.from_numpy(drawn.sizes), Recipe(backbone=BACKBONE[device], epochs=1)
    gold = torch.from_numpy(truth).to(device)

    def supervised(run: ImageRun) -> StepObjective:
        return PosteriorRisk(TrueLabels(gold, num_classes), recipe)

    def build(objective: Callable[[ImageRun], StepObjective], recipe: Recipe = recipe) -> ImageRun:
        return ImageRun(
            supervision, chosen, sizes, weak, num_classes=num_classes, recipe=recipe, seed=seed, device=device,
            flip=name == "cifar10", objective=objective,
        )  # fmt: skip

    runs = {"weak": build(default_objective), "supervised": build(supervised)}
    if device == "cpu":  # a GPU computes in nothing else
        runs["bf16"] = build(default_objective, recipe.replace(bf16=True))
    rounds, burst = (3, 2) if quick else (15, 20 if device == "cuda" else 3)
    seconds = _steps(runs, rounds, burst, device)
    seconds["posterior"], how = _posterior(runs["weak"], device, rounds * burst)
    return {
        "part": "training",
        "name": f"training/{kind}",
        "kind": kind,
        "network": recipe.backbone,
        "images": name,
        "rows": recipe.rows,
        "bags": bags,
        "seconds": {of: timing._asdict() for of, timing in seconds.items()},
        "posterior_by": how,
        "captured": {of: run.training.graph is not None for of, run in runs.items()},
    }


def _steps(runs: dict[str, ImageRun], rounds: int, burst: int, device: str) -> dict[str, Timing]:
    """Seconds a step, bursts of both in turn; batches are loaded before the clock starts."""
    wait = waiter(device)
    epoch = packed(runs["weak"])
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            training = run.training
            there = training.load(epoch)
            steps = min(there, WARM_UP if turn == 0 else burst)
            wait()
            start = time.perf_counter()
            training.run(steps)
            wait()
            if turn:
                taken[name].append((time.perf_counter() - start) / steps)
    return {name: summary(seconds) for name, seconds in taken.items()}


def packed(run: ImageRun) -> Packed:
    """The batches of an epoch, the same for both ways."""
    sizes, rows = run.sizes.numpy(), run.recipe.rows
    return pack_bags(sizes, rows, max(1, rows // int(sizes.min())), np.random.default_rng(run.seed))


def _posterior(run: ImageRun, device: str, times: int) -> tuple[Timing, str]:
    """Seconds of the E-step of the first batch alone, and how they were taken."""
    objective = run.training.objective
    assert isinstance(objective, PosteriorRisk)
    posterior: FixedPosterior = objective.posterior
    epoch = packed(run)
    arrays = (epoch.rows[0], epoch.bags[0], epoch.starts[0], epoch.sizes[0])
    step = Step(*(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays))
    with torch.no_grad():
        logits = run.training.logits(run.views.plain(run.training.images[step.rows]), average=False)
        if device == "cuda" and posterior.capturable:
            timing = replayed(lambda: posterior(logits, step))
            if isinstance(timing, Timing):
                return timing, "replays of a graph"
        call = {"posterior": lambda: posterior(logits, step)}
        return interleaved(call, max(5, times), waiter(device))["posterior"], "calls"


def _images(folder: Path | None) -> tuple[Array, Array, str]:
    """CIFAR-10 from a folder; without one the digits that scikit-learn brings along, as bytes (N, 1, 8, 8)."""
    if folder is not None:
        found = load_images("cifar10", folder, verify=False)
        return found.train_images, found.train_labels, "cifar10"
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64), "digits"
