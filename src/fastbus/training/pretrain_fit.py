"""pretrain_images: a recipe's passes without labels, kept in a folder and resumed from there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.models.backbone import Backbone
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import read_checkpoint, remove_parts, write_checkpoint
from fastbus.training.fingerprint import network_shape
from fastbus.training.fit import CHECKPOINT
from fastbus.training.image_fit import SAVED_EVERY, check_same
from fastbus.training.pretrain import load_features, pretrained, pretraining
from fastbus.training.recipes import Recipe
from fastbus.training.views import Views

PRETRAINED = "pretrained.safetensors"


def pretrain_images(
    network: nn.Module,
    data: BagSet,
    recipe: Recipe,
    views: Views,
    *,
    seed: int,
    device: str,
    folder: str | Path | None = None,
    resume: bool = False,
) -> nn.Module:
    """`network`, all but its last layer learnt from the instances alone for the recipe's `pretrain` passes.

    Only networks of `fastbus.models` are pretrained, since of others nobody knows the features; they stay as they are.
    folder: where the run is kept, and at its end the weights. resume: go on from there, if there is something.
    """
    if not recipe.pretrain or not isinstance(network, Backbone):
        return network
    if len(data.instances) < 2:  # no other to tell it from
        return network
    place = None if folder is None else Path(folder)
    known = {"recipe": recipe.as_dict(), "data": data.fingerprint(), "seed": seed, "network": network_shape(network)}
    state: dict[str, Any] | None = None
    if place is not None:
        remove_parts(place)
        if not resume:  # nor may a later resume find what an older fit has left
            for path in (place / CHECKPOINT, place / PRETRAINED):
                if path.is_file():
                    path.unlink()
        elif (place / PRETRAINED).is_file():
            state = _kept(place / PRETRAINED, known)
    weights = None if state is None else state.get("weights")
    if weights is None:
        weights = _learnt(network, data, recipe, views, seed, device, place, known, state)
    load_features(network, weights)
    return network


def _learnt(
    network: Backbone,
    data: BagSet,
    recipe: Recipe,
    views: Views,
    seed: int,
    device: str,
    place: Path | None,
    known: dict[str, Any],
    state: dict[str, Any] | None,
) -> dict[str, Tensor]:
    """The weights after all passes, from the first one or from a kept state."""
    run = pretraining(network, data.instances, recipe, views, seed, device)
    if state is not None:
        run.load_state_dict(state)
    saved = time.monotonic()
    while not run.done:
        run.run_epoch()
        if place is not None and not run.done and time.monotonic() - saved > SAVED_EVERY:
            write_checkpoint({"pretraining": known | run.state_dict()}, place / PRETRAINED)
            saved = time.monotonic()
    weights = pretrained(run)
    if place is not None:
        write_checkpoint({"pretraining": known | {"weights": weights}}, place / PRETRAINED)
    return weights


def _kept(path: Path, known: dict[str, Any]) -> dict[str, Any]:
    state = read_checkpoint(path).get("pretraining")
    if not isinstance(state, dict):
        raise InputError(
            f"{path}: no pretraining of a run; expected the file as fit wrote it. Start a new run, or restore the file."
        )
    check_same(known, state, path)
    return state
