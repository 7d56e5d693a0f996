"""train_images: a recipe's run from its first epoch to its last, kept in a folder and resumed from there."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastbus.errors import InputError
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import read_checkpoint, remove_parts, write_atomically, write_checkpoint
from fastbus.training.fit import CHECKPOINT, METRICS, TrainResult
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe
from fastbus.training.step_objective import StepObjective
from fastbus.training.views import Views

SAVED_EVERY = 20.0  # seconds at least between two checkpoints; an epoch may last less than one


def train_images(
    network: nn.Module,
    data: BagSet,
    recipe: Recipe,
    views: Views,
    *,
    num_classes: int,
    seed: int,
    device: str,
    objective: Callable[[ImageRun], StepObjective] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
) -> TrainResult:
    """Train `network` by a recipe; the averaged network on the CPU, and what was seen on the way.

    objective: None for posterior-weighted risk, or that of a competing method.
    """
    place = None if folder is None else Path(folder)
    run = ImageRun(
        data.supervision, data.instances, data.sizes, data.weak, num_classes=num_classes, recipe=recipe, seed=seed,
        device=device, views=views, network=network, objective=objective,
    )  # fmt: skip
    history: list[dict[str, float]] = []
    known = {"recipe": run.config(), "data": data.fingerprint(), "seed": seed}
    known |= {"objective": type(run.objective).__name__}
    if place is not None:
        remove_parts(place)
        if resume:
            history = _resumed(run, known, place)
    saved = time.monotonic()
    while not run.done:
        history.append(run.run_epoch())
        if place is not None and (run.done or time.monotonic() - saved > SAVED_EVERY):
            write_checkpoint({"image_run": known | {"history": history} | run.state_dict()}, place / CHECKPOINT)
            lines = "".join(json.dumps(row) + "\n" for row in history)
            write_atomically(lines.encode(), place / METRICS)
            saved = time.monotonic()
    final = copy.deepcopy(run.training.final()).cpu()
    final = final.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return TrainResult(final.eval(), history, run.epoch, False)


def _resumed(run: ImageRun, known: dict[str, Any], place: Path) -> list[dict[str, float]]:
    state = read_checkpoint(place / CHECKPOINT).get("image_run")
    if state is None:
        raise InputError(
            f"{place / CHECKPOINT}: a checkpoint of another way to train; expected one of a recipe. Pass recipe=False "
            "to go on, or start a new run."
        )
    check_same(known, state, place / CHECKPOINT)
    run.load_state_dict(state)
    return list(state["history"])


def check_same(known: dict[str, Any], state: dict[str, Any], path: Path) -> None:
    """Refuse to go on with the state of a file where anything that decides the run is another."""
    for name, value in known.items():
        before = state.get(name)
        if before != value:
            differ = [name]
            if isinstance(value, dict) and isinstance(before, dict):
                differ = [key for key in value | before if before.get(key) != value.get(key)]
            raise InputError(
                f"resume with {', '.join(differ)} other than before; expected those of the run in {path}. Pass the "
                "same, or start a new run."
            )
