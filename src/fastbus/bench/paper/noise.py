"""The confusion matrix of a run on noisy labels: estimated once, before the training, and kept with its checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbus.bench.paper.draw import supervision_of
from fastbus.bench.paper.methods import SUPERVISED
from fastbus.bench.paper.plan import MIRRORED, Job
from fastbus.models.backbone import Backbone
from fastbus.supervision.base import Supervision
from fastbus.supervision.imperfect import NoisyLabel
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.image_noise import with_known_confusions
from fastbus.training.noise import needs_estimate


def noise_path(job: Job, folder: Path) -> Path:
    """The same for all methods: it stays when one of them is done."""
    return folder / f"{job.data_fingerprint}-{job.seed}-noise.safetensors"


def unknown_noise(job: Job) -> bool:
    """Whether a confusion matrix is to be estimated for it."""
    return job.method != SUPERVISED and needs_estimate(supervision_of(job.cell))


def _write_first(state: dict[str, Any], path: Path) -> None:
    """Unless another process was quicker: all runs of a cell, and those that are resumed, go by the same matrix."""
    mine = path.with_name(f".{path.name}.{os.getpid()}")
    write_checkpoint(state, mine)
    try:
        os.link(mine, path)
    except FileExistsError:
        pass
    finally:
        mine.unlink()


def known_noise(
    job: Job, rule: Supervision, images: Tensor, weak: Tensor, network: Backbone, folder: Path, device: str
) -> tuple[Supervision, dict[str, Any], float]:
    """The rule to train with, what was estimated, and the seconds that took; any other rule as it is."""
    if not needs_estimate(rule):
        return rule, {}, 0.0
    path, num_classes = noise_path(job, folder), network.num_outputs
    if not path.is_file():
        start = time.perf_counter()
        found = with_known_confusions(
            rule, images, weak, num_classes=num_classes, recipe=job.recipe, seed=job.seed, device=device,
            flip=job.cell.data in MIRRORED, network=network,
        )  # fmt: skip
        assert isinstance(found, NoisyLabel) and isinstance(found.transition, Tensor)
        seconds = time.perf_counter() - start
        _write_first({"transition": found.transition.detach().cpu(), "seconds": seconds}, path)
    state = read_checkpoint(path)
    matrix = state["transition"]
    shares = torch.bincount(weak, minlength=num_classes).double() / len(weak)
    true_shares = torch.linalg.lstsq(matrix.double().T, shares).solution
    wrong = float(1 - (true_shares * matrix.double().diagonal()).sum())
    # least squares may differ in the last bit from call to call
    return NoisyLabel(matrix), {"estimated share of wrong labels": round(wrong, 6)}, state["seconds"]
