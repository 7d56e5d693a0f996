"""Normalisation: mean and standard deviation of a channel or feature, measured and applied.

Batches are (N, C, H, W) images, bytes or floats in [0, 1], or (N, D) rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastbus.errors import InputError


@dataclass(frozen=True)
class Normalise:
    """(x − mean) / std over the first axis behind the batch; bytes count as x / 255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    # A copy to the device makes the host wait, so it is done once for each device and type.
    constants: dict[tuple[torch.device, torch.dtype, int], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def _on(self, x: Tensor, unit: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Shift and factor, shaped to broadcast against x, in `unit` parts of 1."""
        key = (x.device, dtype, unit)
        if key not in self.constants:
            shape = (-1,) + (1,) * (x.dim() - 2)
            shift = torch.tensor([unit * m for m in self.mean], device=x.device, dtype=dtype)
            factor = torch.tensor([1 / (unit * s) for s in self.std], device=x.device, dtype=dtype)
            self.constants[key] = shift.view(shape), factor.view(shape)
        return self.constants[key]

    def __call__(self, x: Tensor) -> Tensor:
        """A new float32 tensor; float64 is subtracted before it is cut, for columns far from zero."""
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        shift, factor = self._on(x, 255 if x.dtype == torch.uint8 else 1, dtype)
        return torch.sub(x, shift).mul_(factor).to(torch.float32)

    def in_place(self, x: Tensor) -> Tensor:
        """The same for float32 in [0, 1] that the caller owns."""
        shift, factor = self._on(x, 1, torch.float32)
        return x.sub_(shift).mul_(factor)


def read_normalise(
    mean: Sequence[float] | None, std: Sequence[float] | None, count: int, default: tuple[float, float]
) -> Normalise:
    """Check the mean and std of `count` channels or features; the default stands in for None."""
    means = [default[0]] * count if mean is None else [float(value) for value in mean]
    stds = [default[1]] * count if std is None else [float(value) for value in std]
    for name, values in (("mean", means), ("std", stds)):
        if len(values) != count:
            raise InputError(
                f"{name} of {len(values)} values; expected {count}, one a channel or feature. "
                "Compute it over the training data, e.g. with image_statistics."
            )
    if not all(math.isfinite(value) for value in means) or not all(0 < value < math.inf for value in stds):
        raise InputError(
            f"mean={means}, std={stds}; expected finite means and positive standard deviations. "
            "Give a constant channel or feature the standard deviation 1."
        )
    return Normalise(tuple(means), tuple(stds))


def image_statistics(images: Tensor, chunk: int = 4096) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of (N, C, H, W), bytes counted as x / 255.

    Works through `chunk` images at a time, so that bytes never exist as floats all at once. A
    constant channel has the standard deviation 1, which leaves it at zero.
    """
    if images.dim() != 4 or not len(images):
        raise InputError(
            f"images of shape {tuple(images.shape)}; expected (N, C, H, W) with N of 1 or more. "
            "Pass the training images as one batch."
        )
    total = torch.zeros(images.shape[1], dtype=torch.float64, device=images.device)
    squares = torch.zeros_like(total)
    for part in images.split(chunk):
        values = part.to(torch.float64)
        total += values.sum(dim=(0, 2, 3))
        squares += values.square_().sum(dim=(0, 2, 3))
    count = images.numel() // images.shape[1]
    unit = 255 if images.dtype == torch.uint8 else 1
    mean = total / count
    std = (squares / count - mean.square()).clamp_(min=0).sqrt_()
    std = torch.where(std > 1e-7 * unit, std, unit)
    return tuple((mean / unit).tolist()), tuple((std / unit).tolist())
