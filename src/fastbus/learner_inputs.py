"""Rows to inputs of the network: numbers learnt once that scale them, and views of them for training.

Rows (N, ...). Those of shape (C, H, W) are images: bytes or floats, scaled by channel; all others are scaled by
feature. Views of images are computed in [0, 1]: bytes / 255, floats as they are where they lie within, else
between the smallest and the largest of the training images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbus.errors import InputError
from fastbus.training.views import Strength, Views, build_views

PART = 4096  # images that exist as float64 at the same time


@dataclass(frozen=True)
class Scale:
    """(x - mean) / scale; both broadcast against a row."""

    mean: Tensor
    scale: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Inputs in float32, subtracted in double precision: far from 0, float32 would lose the differences."""
        if not is_image(tuple(rows.shape[1:])):
            return ((rows - self.mean) / self.scale).float()
        out = torch.empty(rows.shape, dtype=torch.float32)
        for start in range(0, len(rows), PART):
            out[start : start + PART] = (rows[start : start + PART] - self.mean) / self.scale
        return out


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether a row is an image (channels, height, width), not a small block of numbers."""
    return len(shape) == 3 and min(shape[1:]) >= 4


def in_known_layout(rows: NDArray[Any], backbone: Any) -> NDArray[Any]:
    """The rows, refused if they look like images that "auto" would take for tables: channels last, or without any.

    A network that was asked for by name or given knows what it reads.
    """
    shape = rows.shape[1:]
    if not isinstance(backbone, str) or backbone != "auto":
        return rows
    cure = None
    if len(shape) == 3 and shape[2] in (1, 3) and min(shape[:2]) >= 4 and not is_image(shape):
        looks, cure = "images with their channels last", "X.transpose(0, 3, 1, 2)"
    elif len(shape) == 2 and min(shape) >= 4 and (rows.dtype == np.uint8 or (shape[0] == shape[1] and min(shape) >= 8)):
        looks, cure = "grey images without an axis of channels", "X[:, None]"
    if cure is None:
        return rows
    raise InputError(
        f"X with rows of shape {shape}, which look like {looks}; expected images of shape (channels, height, width). "
        f'Pass {cure}, or backbone="mlp" for a network of flat rows.'
    )


def as_rows(rows: NDArray[Any]) -> Tensor:
    """A tensor of float64 for tables, of float32 or bytes for images; torch warns about arrays it must not write to."""
    kind = np.float64
    if is_image(rows.shape[1:]):
        kind = np.uint8 if rows.dtype == np.uint8 else np.float32  # type: ignore[assignment]
    return torch.from_numpy(np.require(rows, kind, ("C", "W")))


def learn_scale(rows: Tensor, weights: Tensor | None, standardize: bool) -> Scale:
    """Weighted mean and deviation of each channel or feature; 0 and 1 without `standardize`."""
    image = is_image(tuple(rows.shape[1:]))
    shape = (rows.shape[1], 1, 1) if image else tuple(rows.shape[1:])
    if not standardize:
        return Scale(torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64))
    weight = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights
    share = (weight / weight.sum()).reshape(-1, *[1] * (rows.dim() - 1))
    pixels = (2, 3)

    def mean_of(values: Tensor, part: Tensor) -> Tensor:
        return (part * (values.mean(pixels, keepdim=True) if image else values)).sum(0)

    parts = list(zip(rows.split(PART), share.split(PART), strict=True)) if image else [(rows, share)]
    zero = torch.zeros(shape, dtype=torch.float64)
    mean = sum((mean_of(x.double(), part) for x, part in parts), zero)
    scale = sum((mean_of((x - mean) ** 2, part) for x, part in parts), zero).sqrt()
    # a constant column has a deviation of rounding errors only
    largest = torch.stack([x.double().abs().amax((0, 2, 3) if image else 0) for x, _ in parts]).amax(0)
    return Scale(mean, scale.masked_fill(scale <= 1e-12 * largest.reshape(shape), 1.0))


def check_range(rows: NDArray[Any], scale: Scale) -> None:
    """Complain of images in [0, 1] after a fit on values up to 255, and the other way round."""
    if not is_image(rows.shape[1:]) or not rows.size:
        return
    mean, deviation, largest = float(scale.mean.max()), float(scale.scale.max()), float(rows.max())
    small = rows.dtype.kind == "f" and mean > 2 and 0 < largest <= 1 and float(rows.min()) >= 0
    if small or (mean <= 1 and deviation <= 1 and largest >= 16):
        raise InputError(
            f"images with values up to {largest:g}; expected the range of those fitted, whose mean was {mean:.3g}. "
            f"{'Multiply' if small else 'Divide'} them by 255."
        )


def training_inputs(rows: Tensor, scale: Scale, asked: Any, on: bool) -> tuple[Tensor, Views | None]:
    """What a network is trained on: scaled rows, or where views are on, rows and the views that scale them.

    asked: None, True, or a mapping with options of `build_views`.
    """
    if not on:
        return scale(rows), None
    options = _options(asked)
    shape = tuple(rows.shape[1:])
    if not is_image(shape):
        return scale(rows), build_views("table", shape, **options)
    low, span = 0.0, 255.0
    if rows.dtype != torch.uint8:
        low, high = float(rows.min()), float(rows.max())
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        span = (high - low) or 1.0
        rows = (rows - low) / span
    # the mirror of a digit or a letter is none; colour images show scenes
    options = {"flip": shape[0] == 3} | options
    mean = ((scale.mean - low) / span).flatten().tolist()
    return rows, build_views("image", shape, mean=mean, std=(scale.scale / span).flatten().tolist(), **options)


def _options(asked: Any) -> dict[str, Any]:
    if asked is not None and not isinstance(asked, (bool, dict)):
        raise InputError(f"views={asked!r}; expected True, False or a mapping of options. Pass e.g. {{'flip': False}}.")
    options = dict(asked) if isinstance(asked, dict) else {}
    for name in ("mean", "std"):
        if name in options:
            raise InputError(f"views with {name!r}; expected the classifier to learn it. Leave it out.")
    strength = options.get("strength")
    if isinstance(strength, dict):  # numbers, since a saved classifier keeps its options
        unknown = sorted(set(strength) - set(Strength.__dataclass_fields__))
        if unknown:
            raise InputError(
                f"views: strength with {unknown[0]!r}; expected {', '.join(Strength.__dataclass_fields__)}. Correct it."
            )
        options["strength"] = Strength(**strength)
    elif strength is not None:
        raise InputError(f"views: strength={strength!r}; expected a mapping. Pass e.g. {{'rotation': 10}}.")
    return options
