"""Networks by name: `build_backbone("wrn_28_2", (3, 32, 32), 10, seed=0)`.

| name | inputs | options |
|---|---|---|
| linear | any, flattened | |
| mlp | any, flattened | hidden, num_samples, dropout, norm=None, "batch" or "layer" |
| lenet5 | 28×28 or 32×32, 1 or 3 channels | |
| small_cnn | images from 4×4 | |
| resnet18, preact_resnet18 | images from 8×8 | stem_stride |
| wrn_28_2, wrn_28_8, wrn_34_10 | images from 8×8 | slope, dropout |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fastbus.errors import InputError, choice
from fastbus.models.backbone import Backbone, initialise, read_count, read_counts
from fastbus.models.lenet import LeNet5
from fastbus.models.resnet import PreActResNet18, ResNet18
from fastbus.models.small_cnn import SmallCNN
from fastbus.models.tables import MLP, Linear
from fastbus.models.wide_resnet import WideResNet

_MAKERS: dict[str, Callable[..., Backbone]] = {
    "linear": Linear,
    "mlp": MLP,
    "lenet5": LeNet5,
    "small_cnn": SmallCNN,
    "resnet18": ResNet18,
    "preact_resnet18": PreActResNet18,
    "wrn_28_2": partial(WideResNet, depth=28, width=2),
    "wrn_28_8": partial(WideResNet, depth=28, width=8),
    "wrn_34_10": partial(WideResNet, depth=34, width=10),
}
BACKBONES = tuple(_MAKERS)
"""The names that `build_backbone` knows."""


def build_backbone(
    name: str,
    input_shape: Sequence[int],
    num_outputs: int,
    *,
    seed: int = 0,
    generator: torch.Generator | None = None,
    **options: Any,
) -> Backbone:
    """A network (N, *input_shape) -> (N, num_outputs) on the CPU, its weights drawn from `seed`.

    A `generator` replaces the seed. The global random numbers are neither used nor moved, and one
    seed gives the same weights on every machine.
    """
    choice(name, BACKBONES, "backbone", InputError)
    shape = read_counts(input_shape)
    if shape is None:
        raise InputError(
            f"input_shape={input_shape!r}; expected the positive sizes of one input without the batch axis. "
            "Pass (features,) for tables or (channels, height, width) for images."
        )
    outputs = read_count(num_outputs)
    if outputs is None:
        raise InputError(
            f"num_outputs={num_outputs!r}; expected a positive integer. Pass the number of classes "
            "(1 for a binary sigmoid head)."
        )
    maker = _MAKERS[name]
    _check_options(name, maker, options)
    if generator is None:
        generator = torch.Generator().manual_seed(seed)
    elif generator.device.type != "cpu":
        raise InputError(
            f"generator on {generator.device}; expected one on the CPU, where weights are drawn. "
            "Pass seed=, or torch.Generator()."
        )
    # Layers draw weights from the global random numbers as they are made, except on this device.
    with torch.device("meta"):
        model = maker(shape, outputs, **options)
    model = model.to_empty(device="cpu")
    initialise(model, generator)
    model.config = {"name": name, "input_shape": shape, "num_outputs": outputs, **options}
    return model


def describe(model: Backbone) -> str:
    """One line on a network: name, input, features, outputs, number of parameters."""
    count = sum(parameter.numel() for parameter in model.parameters())
    name = model.config.get("name", type(model).__name__)
    size = "×".join(str(side) for side in model.input_shape)
    return f"{name}: {size} -> {model.num_features} features -> {model.num_outputs}, {count:,} parameters"


def _check_options(name: str, maker: Callable[..., Backbone], options: dict[str, Any]) -> None:
    fixed = maker.keywords if isinstance(maker, partial) else {}
    parameters = inspect.signature(maker).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in fixed]
    for option in options:
        if option not in known:
            has = f"one of {', '.join(known)}" if known else "no options"
            raise InputError(f"{name}: option {option!r}; expected {has}. Remove it or correct its name.")
