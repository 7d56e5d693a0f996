"""What every built-in network has in common: its interface, its checks, its initial weights.

Shapes: inputs (N, *input_shape), features (N, E), logits (N, C).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from fastbus.errors import InputError


class Backbone(nn.Module):
    """A network whose last layer, `classifier`, is a linear map of its `features`.

    `slope` is that of the (leaky) rectifiers in front of its convolutions; the initial weights
    depend on it. `config` holds the arguments of `build_backbone` that make this network again.
    """

    def __init__(self, input_shape: tuple[int, ...], num_features: int, num_outputs: int, slope: float = 0.0) -> None:
        super().__init__()
        if isinstance(slope, bool) or not isinstance(slope, (int, float)) or not 0 <= slope < 1:
            raise InputError(
                f"slope={slope!r}; expected a number in [0, 1). Pass 0 for ReLU or, say, 0.1 for a leaky one."
            )
        self.input_shape = input_shape
        self.num_features = num_features
        self.num_outputs = num_outputs
        self.slope = float(slope)
        self.config: dict[str, Any] = {}
        self.classifier = nn.Linear(num_features, num_outputs)

    def features(self, x: Tensor) -> Tensor:
        """Inputs (N, *input_shape) to features (N, E)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (N, *input_shape) to logits (N, C)."""
        return self.classify(self.features(x))

    def classify(self, features: Tensor) -> Tensor:
        """Features (N, E) to logits (N, C)."""
        logits: Tensor = self.classifier(features)
        return logits

    def check(self, x: Tensor) -> None:
        """Refuse inputs of another shape or type; looks at no value, so nothing waits for a device."""
        if tuple(x.shape[1:]) != self.input_shape or x.dim() != 1 + len(self.input_shape):
            expected = ", ".join(str(size) for size in self.input_shape)
            raise InputError(
                f"inputs of shape {tuple(x.shape)}; expected (N, {expected}). "
                f"Reshape the inputs, or build the network with their input_shape{_axes_hint(x, self)}."
            )
        if not x.is_floating_point():
            raise InputError(
                f"inputs of type {x.dtype}; expected floating point. Normalise them first, "
                "e.g. with the `plain` view, or x.float() / 255 for bytes."
            )


def _axes_hint(x: Tensor, model: Backbone) -> str:
    """A word on the two slips seen most: one image without its batch axis, channels at the end."""
    shape, wanted = tuple(x.shape), model.input_shape
    if shape == wanted:
        return "; a single input needs a batch axis, x[None]"
    if len(wanted) == 3 and shape[1:] == (*wanted[1:], wanted[0]):
        return "; channels come first, x.permute(0, 3, 1, 2)"
    return ""


@torch.no_grad()
def initialise(model: Backbone, generator: torch.Generator) -> None:
    """Fill every parameter and buffer of a network that may hold arbitrary memory.

    He's normal weights (fan out for convolutions, fan in for hidden linear layers), identity
    normalisation, and a sixth of He's variance for the classifier: no class is preferred strongly
    before training, yet the classes differ, which label-blind evidence such as similarity needs.
    """
    gain = 2 / (1 + model.slope**2)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            module.weight.normal_(0, math.sqrt(gain / fan_out), generator=generator)
        elif isinstance(module, nn.Linear):
            numerator = 1 / 3 if module is model.classifier else gain
            module.weight.normal_(0, math.sqrt(numerator / module.in_features), generator=generator)
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            module.reset_running_stats()
            module.weight.fill_(1)
        elif isinstance(module, nn.LayerNorm):
            module.weight.fill_(1)
        elif next(module.parameters(recurse=False), None) is not None:
            raise AssertionError(f"no initial weights are defined for {type(module).__name__}")
        bias = getattr(module, "bias", None)
        if isinstance(bias, Tensor):
            bias.zero_()


def image_shape(input_shape: tuple[int, ...], name: str, smallest: int) -> tuple[int, int, int]:
    """Check that a network for images is built for (channels, height, width) it can take."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise InputError(
            f"{name}: input_shape={input_shape}; expected (channels, height, width) of at least "
            f"{smallest}×{smallest}. Use 'mlp' or 'linear' for tables, and enlarge smaller images."
        )
    channels, height, width = input_shape
    return channels, height, width


def dropout_rate(rate: object, name: str) -> float:
    """Check a share of units to drop."""
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise InputError(f"{name}: dropout={rate!r}; expected a share in [0, 1). Give a share, not a percentage.")
    return float(rate)


def read_count(value: object) -> int | None:
    """A positive integer, None where it is none."""
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0:
        return int(value)
    return None


def read_counts(values: object) -> tuple[int, ...] | None:
    """A sequence of one or more positive integers, None where it is none."""
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        return None
    counts = tuple(count for count in map(read_count, values) if count is not None)
    return counts if len(counts) == len(values) else None
