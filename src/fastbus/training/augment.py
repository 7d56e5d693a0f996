"""Changes of image batches, each image by parameters of its own: pure tensor operations.

Images are (N, C, H, W), parameters (N,) or (N, 2); rows come before columns. Nothing here draws random
numbers or reads a value back from the device. Names that end in `_` work in place on floats in [0, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

LUMA = (0.299, 0.587, 0.114)  # grey of red, green and blue, ITU-R BT.601
EDGES = {"reflect": "reflection", "border": "border"}
"""What lies beyond the image: its mirror at the edge pixels, or the edge pixels repeated."""


def _inside(index: Tensor, size: int, edge: str) -> Tensor:
    """Positions outside 0..size−1, by up to size − 1, brought inside as `edge` says."""
    if edge == "border":
        return index.clamp(0, size - 1)
    index = index.abs()
    return torch.minimum(index, 2 * (size - 1) - index)


def crop_flip(images: Tensor, shift: Tensor, flip: Tensor | None, edge: str) -> Tensor:
    """Pad, cut out at an offset and mirror, in one gather and in the images' own type.

    shift (N, 2) integers from −pad to pad: what lies at the centre of the result; flip (N,) bool.
    """
    N, C, height, width = images.shape
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device).expand(N, width)
    if flip is not None:
        column = torch.where(flip[:, None], width - 1 - column, column)
    rows = _inside(row + shift[:, :1], height, edge)  # (N, H)
    columns = _inside(column + shift[:, 1:], width, edge)  # (N, W)
    pixels = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)[:, None]  # (N, 1, H·W)
    return images.flatten(2).gather(2, pixels.expand(N, C, -1)).view_as(images)


def affine_matrix(angle: Tensor, shear: Tensor, scale: Tensor) -> Tensor:
    """(N, 2, 2) from target to source offsets (x, y): an anticlockwise turn by `angle`
    radians, a shear, `scale` times larger."""
    cos, sin = angle.cos() / scale, angle.sin() / scale
    # A rotation times [[1, shear], [0, 1]].
    rows = [torch.stack((cos, cos * shear - sin), dim=-1), torch.stack((sin, sin * shear + cos), dim=-1)]
    return torch.stack(rows, dim=-2)


def warp(images: Tensor, matrix: Tensor, shift: Tensor, flip: Tensor | None, edge: str) -> Tensor:
    """Crop, mirror and affine map in one bilinear sampling of float images.

    matrix (N, 2, 2) acts on offsets (x, y) from the centre in pixels; flip and shift (N, 2) (rows,
    columns), here any real numbers, follow as in `crop_flip`, which is what the identity gives.
    """
    height, width = images.shape[2:]
    half_x, half_y = (width - 1) / 2, (height - 1) / 2
    x = torch.arange(width, device=images.device, dtype=torch.float32) - half_x
    y = torch.arange(height, device=images.device, dtype=torch.float32) - half_y
    to_x, to_y = matrix[:, 0] / half_x, matrix[:, 1] / half_y  # (N, 2) each
    if flip is not None:
        to_x = torch.where(flip[:, None], -to_x, to_x)
    steps = torch.stack((to_x, to_y), dim=1)  # (N, to x or y, from x or y)
    start = torch.stack((shift[:, 1] / half_x, shift[:, 0] / half_y), dim=1)  # (N, 2)
    across = steps[:, :, :1] * x  # (N, 2, W)
    down = torch.addcmul(start[:, :, None], steps[:, :, 1:], y)  # (N, 2, H)
    # Sums rather than torch's affine_grid, whose matrix product is rounded under autocast and TF32; all x
    # before all y, because adding along an inner axis of two is slow.
    grid = (across[:, :, None, :] + down[:, :, :, None]).permute(0, 2, 3, 1)  # (N, H, W, 2)
    # With aligned corners the mirror stands at the edge pixels, as in `crop_flip`.
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=EDGES[edge], align_corners=True)


def colour_(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Scale RGB images, their distance to the mean grey, and that to the grey of each pixel; 1 = as is."""
    red, green, blue = images.unbind(1)
    grey = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])  # (N, H, W)
    mean = grey.mean(dim=(1, 2))  # (N,); saturation leaves it alone
    gain = brightness * contrast
    # b·(m + c·(g + s·(x − g) − m)) multiplied out: x is read and written once for all three.
    grey.mul_(((1 - saturation) * gain)[:, None, None])
    grey.add_((brightness * (1 - contrast) * mean)[:, None, None])
    return images.mul_((saturation * gain)[:, None, None, None]).add_(grey[:, None]).clamp_(0, 1)


def posterize_(images: Tensor, bits: Tensor, chosen: Tensor) -> Tensor:
    """Keep the first `bits` (N,) of 8 bits of each value in the images `chosen` (N,) bool."""
    levels = (2.0**bits)[:, None, None, None]
    # 8-bit value v becomes v rounded down to a multiple of 256 / levels.
    coarse = (images * (255 / 256) * levels).floor_().mul_(256 / 255 / levels)
    return torch.where(chosen[:, None, None, None], coarse, images, out=images)


def solarize_(images: Tensor, threshold: Tensor, chosen: Tensor) -> Tensor:
    """Invert the values from `threshold` (N,) up in the images `chosen` (N,) bool."""
    bright = (images >= threshold[:, None, None, None]).logical_and_(chosen[:, None, None, None])
    return torch.where(bright, 1 - images, images, out=images)


def cutout_(images: Tensor, centre: Tensor, size: int) -> Tensor:
    """Zero a square of side `size` around `centre` (N, 2), clipped at the edges; zero is the mean colour
    of normalised images."""
    height, width = images.shape[2:]
    first = centre - size // 2
    row = torch.arange(height, device=images.device) - first[:, :1]  # (N, H)
    column = torch.arange(width, device=images.device) - first[:, 1:]  # (N, W)
    outside_rows = ((row < 0) | (row >= size)).to(images.dtype)
    outside_columns = ((column < 0) | (column >= size)).to(images.dtype)
    # On the CPU this product is seven times as fast as masked_fill_ with a broadcast mask.
    return images.mul_(torch.maximum(outside_rows[:, :, None], outside_columns[:, None, :])[:, None])
