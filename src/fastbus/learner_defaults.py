"""What WeakClassifier chooses where the caller leaves it open: network, batches, epochs, views, consistency, device."""

from __future__ import annotations

from dataclasses import fields
from numbers import Integral
from typing import Any

import numpy as np
import torch

from fastbus.errors import InputError, choice
from fastbus.learner_inputs import is_image
from fastbus.learner_plugs import batch_of_sets
from fastbus.prediction_queue import usual_size
from fastbus.supervision.incomplete import SemiSupervised
from fastbus.training.bag_set import BagSet
from fastbus.training.config import TrainConfig

ACCELERATORS = {"cpu": "cpu", "cuda": "gpu", "mps": "mps", "auto": "auto"}
STEPS = 1500  # optimiser steps of a fit whose epochs are left open
# kinds that leave so much open that a network learns what is accidental by heart; `fastbus.bench.default_selection`
# finds the weak labels of unseen rows more probable with more dropout
LOOSE_LABELS = ("noisy_label", "crowd_label", "complementary_label", "pair_comparison")
# what a parameter of WeakClassifier sets, under another name where it has one
OWN = {"max_bags": "batch_bags", "seed": "random_state"}
OWN |= {name: name for name in ("epochs", "learning_rate", "weight_decay", "ema", "held_out", "patience", "views")}
OWN["consistency"] = "consistency"


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have, before anything is computed."""
    choice(device, ACCELERATORS, "device", InputError)
    missing = (device == "cuda" and not torch.cuda.is_available()) or (
        device == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise InputError(
            f'device="{device}" without one; expected a machine and a build of torch that have it. '
            'Pass device="cpu", or "auto" for the best there is.'
        )


def device_of(name: str) -> torch.device:
    """Where predictions are computed: a classifier of another machine falls back to the CPU."""
    if name in ("cuda", "auto") and torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if name == "mps" and torch.backends.mps.is_available() else "cpu")


def backbone_options(
    asked: str, input_shape: tuple[int, ...], num_rows: int, loose_labels: bool, dropout: float | None
) -> tuple[str, dict[str, Any]]:
    """Name and options of the network: "auto" chooses by shape and number of rows.

    loose_labels: whether labels say little or may be wrong, which a network without dropout learns by heart.
    """
    name = asked.replace("-", "_")
    if name == "auto" and is_image(input_shape):
        channels, height, width = input_shape
        if height == width and height in (28, 32) and channels == 1:
            name = "lenet5"
        else:
            name = "wrn_28_2" if channels == 3 and min(height, width) >= 24 else "small_cnn"
    elif name == "auto":
        name = "linear" if num_rows < 100 else "mlp"
    if name != "mlp":
        return name, {}
    rate = (0.5 if loose_labels else 0.2) if dropout is None else dropout
    return name, {"num_samples": num_rows, "dropout": rate}


def wants_views(asked: Any, input_shape: tuple[int, ...]) -> bool:
    """Whether a strong view joins the weak one: for images, unless told otherwise."""
    if asked is None:
        return is_image(input_shape)
    return bool(asked) or isinstance(asked, dict)


def queue_size(asked: int | None, data: BagSet) -> int | None:
    """Predictions that join a set of known prior: at most an eighth of the rows, so that none is long out of date."""
    return min(usual_size(data.supervision), len(data.instances) // 8) if asked is None else asked


def consistency_weight(asked: float | None, data: BagSet) -> float:
    """1 where some rows have gold labels and others none; 0 elsewhere, and for rows that have no views.

    Held-out accuracy without and with it, ten seeds each: digits with 40 labels 79.9 and 88.0, breast cancer with 10
    91.8 and 93.8, wine with 15 93.3 and 96.5, iris with 9 83.3 and 82.2.
    """
    if asked is not None:
        return asked
    shape = tuple(data.instances.shape[1:])
    if not isinstance(data.supervision, SemiSupervised) or not (is_image(shape) or len(shape) == 1):
        return 0.0
    return 1.0 if bool((data.weak == -1).any()) else 0.0


def train_config(parameters: dict[str, Any], data: BagSet, seed: int, views: bool, consistency: float) -> TrainConfig:
    """About 1,500 steps of some 64 instances: more passes for small sets, larger batches for large ones."""
    count, largest = len(data), int(data.sizes.max())
    batch, epochs, rate = (parameters[name] for name in ("batch_bags", "epochs", "learning_rate"))
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, Integral) or batch < 1):
        raise InputError(f"batch_bags={batch!r}; expected a whole number from 1. Pass e.g. 64, or leave it out.")
    held_out = parameters["held_out"]
    if held_out == 0 and (parameters["patience"] or parameters["calibrate"]):
        held_out = 0.2
    if batch is None and largest == 1 and data.is_set and parameters["evolution"] is not None:
        batch = batch_of_sets(data, held_out)  # no queue joins them
    elif batch is None and largest == 1:
        batch = min(256, max(16, count // 20))
    elif batch is None:
        typical = max(1, round(len(data.instances) / count))
        batch = max(1, min(max(8, 64 // typical), max(4, count // 10)))
    steps = max(1, count // batch)
    more = read_train_options(parameters["train_options"])
    return TrainConfig(
        **{"max_instances": max(4096, largest)}
        | more
        | {
            "epochs": int(np.clip(STEPS // steps, 10, 200)) if epochs is None else epochs,
            "max_bags": batch,
            "learning_rate": 3e-3 if rate is None else rate,
            "weight_decay": parameters["weight_decay"],
            "ema": parameters["ema"],
            "held_out": held_out,
            "patience": parameters["patience"],
            "views": views,
            "consistency": consistency,
            "seed": seed,
        }
    )


def read_train_options(given: Any) -> dict[str, Any]:
    """The caller's further options of TrainConfig."""
    if given is None:
        return {}
    known = [field.name for field in fields(TrainConfig) if field.name not in OWN]
    if not isinstance(given, dict):
        raise InputError(f"train_options={given!r}; expected a mapping of {', '.join(known)}. Pass e.g. a dict.")
    for name in given:
        if name in OWN:
            raise InputError(f"train_options with {name!r}; expected it as a parameter. Pass {OWN[name]}= instead.")
        choice(name, known, "an entry of train_options", InputError)
    return given
