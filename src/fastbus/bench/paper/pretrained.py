"""Weights that runs begin with: learnt once from their images without labels, and kept beside the checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fastbus.bench.paper.draw import Source, draw_task, num_classes
from fastbus.bench.paper.plan import MIRRORED, Job, Pretraining
from fastbus.bench.paper.sets import SETS
from fastbus.models.backbone import Backbone
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.image_run import ImageRun, views_of
from fastbus.training.pretrain import load_features, pretrained, pretraining


def pretrained_path(folder: Path, work: Pretraining) -> Path:
    return folder / f"pretrained-{work.fingerprint}.safetensors"


def pretraining_run(work: Pretraining, source: Source, device: str, compiled: bool) -> ImageRun:
    """The training without labels, of all images that the cell's weak labels speak of, kept back or not."""
    rows = draw_task(work.cell, source, work.seed).train.rows
    images = torch.from_numpy(source.images.train[rows])
    views = views_of(images, flip=work.cell.data in MIRRORED)
    return pretraining(_network(work), images, work.recipe, views, work.seed, device, compiled)


def write_pretrained(folder: Path, work: Pretraining, run: ImageRun) -> dict[str, Any]:
    facts = {"passes": run.epoch, "views": run.views_seen, "seconds": run.seconds, "fingerprint": work.fingerprint}
    write_checkpoint({"weights": pretrained(run), "facts": facts}, pretrained_path(folder, work))
    return facts


def first_network(job: Job, folder: Path) -> tuple[Backbone, dict[str, Any] | None]:
    """The network that a run begins with, and what is known of its pretraining."""
    network, work = _network(job), job.pretraining
    if work is None:
        return network, None
    state = read_checkpoint(pretrained_path(folder, work))
    load_features(network, state["weights"])
    return network, state["facts"]


def _network(work: Job | Pretraining) -> Backbone:
    """With random weights."""
    return work.recipe.network(SETS[work.cell.data].shape, num_classes(work.cell), work.seed)
