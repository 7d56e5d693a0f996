"""Views of a batch on its own device: plain, weakly and strongly changed, normalised for the network.

| | images (N, C, H, W), bytes or floats in [0, 1] | tables (N, D) |
|---|---|---|
| plain | | |
| weak | pad and crop, mirror | Gaussian jitter, none by default |
| strong | weak, affine map, colour (RGB only), cutout | more jitter, some features at their mean |

Every image has random parameters of its own, drawn from the generator passed; the global random
numbers are not touched, the batch is not changed, and nothing waits for the device.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fastbus.errors import InputError, choice
from fastbus.training import augment
from fastbus.training.normalise import Normalise, read_normalise


class View(Protocol):
    """A batch (N, ...) to float32 inputs of the network, of the same shape."""

    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor: ...


class Views(NamedTuple):
    """The three views of one kind of data; `plain` needs no generator."""

    weak: View
    strong: View
    plain: View


@dataclass(frozen=True)
class Strength:
    """How far the strong view of images goes; each image draws uniformly up to these limits.

    rotation in degrees, translation as a share of the side, shear as a slope, scale as a share
    (0.2: from 1/1.2 to 1.2 times), zoom likewise but closer only (0.2: from 1 to 1.2 times); brightness,
    contrast and saturation as shares (0.4: 0.6 to 1.4 times); posterize, solarize and grey (no colour
    left) are the shares of images they happen to. Zero leaves a part out.
    """

    rotation: float = 20.0
    translation: float = 0.125
    shear: float = 0.2
    scale: float = 0.2
    zoom: float = 0.0
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.4
    posterize: float = 0.0
    solarize: float = 0.0
    grey: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            limit = {"rotation": 180.0, **dict.fromkeys(("scale", "zoom", "shear"), math.inf)}.get(name, 1.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= limit:
                raise InputError(
                    f"Strength: {name}={value!r}; expected a number in [0, {limit:g}]. "
                    "Give degrees for the rotation, shares for the rest, 0 to leave it out."
                )


@dataclass(frozen=True)
class _View:
    """Shape and scaling, common to all views; calling it gives the plain one."""

    input_shape: tuple[int, ...]
    normalise: Normalise

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        self._check(x)
        return self.normalise(x)

    def _check(self, x: Tensor) -> None:
        if tuple(x.shape[1:]) != self.input_shape or x.dim() != 1 + len(self.input_shape):
            expected = ", ".join(str(size) for size in self.input_shape)
            raise InputError(
                f"views of a batch of shape {tuple(x.shape)}; expected (N, {expected}). "
                "Reshape it, or build the views with its input_shape."
            )
        if len(self.input_shape) == 3 and x.dtype != torch.uint8 and not x.is_floating_point():
            raise InputError(
                f"images of type {x.dtype}; expected bytes (torch.uint8) or floats in [0, 1]. "
                "Convert them, e.g. images.to(torch.uint8)."
            )

    def _numbers(self, x: Tensor, count: int, generator: torch.Generator | None) -> tuple[Tensor, ...]:
        """`count` draws (N,) from [0, 1), all in one call."""
        source = _require(generator, x)
        draws = torch.rand((count, x.shape[0]), generator=source, device=x.device, dtype=torch.float32)
        return draws.unbind(0)


@dataclass(frozen=True)
class _WeakImages(_View):
    """Random crop out of the padded image, mirrored left to right half of the time."""

    pad: int
    flip: bool
    edge: str

    def _placing(self, row: Tensor, column: Tensor, mirror: Tensor) -> tuple[Tensor, Tensor | None]:
        """Uniform draws (N,) to whole shifts (N, 2) from −pad to pad and flags (N,)."""
        span = 2 * self.pad + 1
        # A draw just below 1 may round up to the next whole number.
        shift = (torch.stack((row, column), dim=1) * span).long().clamp_(max=span - 1) - self.pad
        return shift, mirror < 0.5 if self.flip else None

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        self._check(x)
        shift, flip = self._placing(*self._numbers(x, 3, generator))
        return self.normalise(augment.crop_flip(x, shift, flip, self.edge))


@dataclass(frozen=True)
class _StrongImages(_WeakImages):
    """The weak view's crop and mirror, then affine map, colour and cutout; its pixels are read once."""

    strength: Strength
    cutout: int

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        self._check(x)
        height, width = self.input_shape[1:]
        limit = self.strength
        draws = self._numbers(x, 17, generator)
        angle, shear, scale, down, right, bright, contrast, saturation = (2 * u - 1 for u in draws[3:11])
        shift, flip = self._placing(*draws[:3])
        moved = torch.stack((down * (limit.translation * height), right * (limit.translation * width)), dim=1)
        size = (1 + limit.scale) ** scale * (1 + limit.zoom) ** ((1 + scale) / 2)
        matrix = augment.affine_matrix(angle * math.radians(limit.rotation), shear * limit.shear, size)
        out = augment.warp(x.to(torch.float32), matrix, shift + moved, flip, self.edge)
        if x.dtype == torch.uint8:
            out.mul_(1 / 255)
        if self.input_shape[0] == 3:
            if limit.brightness or limit.contrast or limit.saturation or limit.grey:
                factors = (
                    1 + bright * limit.brightness,
                    1 + contrast * limit.contrast,
                    self._saturation(1 + saturation * limit.saturation, x, generator),
                )
                augment.colour_(out, *factors)
            if limit.posterize:
                augment.posterize_(out, 4 + (4 * draws[11]).floor(), draws[12] < limit.posterize)
            if limit.solarize:
                augment.solarize_(out, 0.25 + 0.75 * draws[13], draws[14] < limit.solarize)
        self.normalise.in_place(out)
        if self.cutout:
            centre = torch.stack((draws[15] * height, draws[16] * width), dim=1).long()
            augment.cutout_(out, centre, self.cutout)
        return out

    def _saturation(self, factor: Tensor, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Factors (N,), of which some are 0; a call of its own, so that views without are drawn as ever."""
        if not self.strength.grey:
            return factor
        (draw,) = self._numbers(x, 1, generator)
        return torch.where(draw < self.strength.grey, 0.0, factor)


@dataclass(frozen=True)
class _Rows(_View):
    """Normalised rows with Gaussian jitter; each feature is at its mean with probability `dropout`."""

    jitter: float
    dropout: float

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        self._check(x)
        out = self.normalise(x)
        if not self.jitter and not self.dropout:
            return out
        source = _require(generator, x)
        if self.jitter:
            noise = torch.randn(out.shape, generator=source, device=x.device, dtype=torch.float32)
            out.add_(noise, alpha=self.jitter)
        if self.dropout:
            draws = torch.rand(out.shape, generator=source, device=x.device, dtype=torch.float32)
            out.masked_fill_(draws < self.dropout, 0)
        return out


def _require(generator: torch.Generator | None, x: Tensor) -> torch.Generator:
    """The generator, if it lives where the batch does."""
    if generator is None:
        got = "no generator"
    elif generator.device.type != x.device.type:
        got = f"a generator on {generator.device}"
    else:
        return generator
    raise InputError(
        f"{got}; expected one on {x.device}, where the batch is. "
        f"Pass generator=torch.Generator({str(x.device)!r}).manual_seed(seed)."
    )


def image_views(
    input_shape: tuple[int, ...],
    *,
    flip: bool = True,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pad: int | None = None,
    edge: str | None = None,
    cutout: int | None = None,
    strength: Strength | None = None,
) -> Views:
    """Views of images (C, H, W); `flip=False` for digits and letters, whose mirror is no other sample.

    mean, std (C,): of the training images in [0, 1], see `image_statistics`; else 0.5 and 0.25.
    pad: pixels the crop may move by, an eighth of the side by default (4 at 32). edge: what lies beyond
    the image, "reflect" or "border"; the latter for grey images, whose plain ground shows no seam but
    whose mirrored strokes look like parts of a digit. cutout: side of the square, half the side of the
    image by default (16 at 32), 0 for none.
    """
    if len(input_shape) != 3 or min(input_shape) < 1 or min(input_shape[1:]) < 2:
        raise InputError(
            f"views of images with input_shape={input_shape!r}; expected (channels, height, width), sides of "
            "2 or more. Pass the shape of one image, or kind='table'."
        )
    channels, *sides = input_shape
    side = min(sides)
    pad = round(side / 8) if pad is None else pad
    if not isinstance(pad, int) or not 0 <= pad < side:
        raise InputError(
            f"pad={pad!r}; expected a whole number from 0 to {side - 1}, because an image of side {side} "
            "mirrors no further. Use a smaller pad."
        )
    edge = ("border" if channels == 1 else "reflect") if edge is None else edge
    choice(edge, augment.EDGES, "edge", InputError)
    cutout = side // 2 if cutout is None else cutout
    if not isinstance(cutout, int) or cutout < 0:
        raise InputError(f"cutout={cutout!r}; expected a side in pixels, 0 or more. Pass 0 for none.")
    normalise = read_normalise(mean, std, channels, default=(0.5, 0.25))
    weak = _WeakImages(input_shape, normalise, pad, bool(flip), edge)
    strong = _StrongImages(input_shape, normalise, pad, bool(flip), edge, strength or Strength(), cutout)
    return Views(weak, strong, _View(input_shape, normalise))


# What makes a view of the same image hard to tell by anything but what it shows: size, place and colours differ.
CONTRASTING = Strength(rotation=0, translation=0.15, shear=0, scale=0, zoom=1.0, saturation=0.8, grey=0.2)


def contrasting(views: Views) -> View:
    """The view by which images are told apart without labels; of tables and views of the caller, the strong one."""
    if isinstance(views.strong, _StrongImages):
        return replace(views.strong, strength=CONTRASTING, cutout=0)
    return views.strong


def table_views(
    input_shape: tuple[int, ...],
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    jitter: float = 0.0,
    strong_jitter: float = 0.1,
    dropout: float = 0.1,
) -> Views:
    """Views of rows (D,); mean, std (D,) of the training rows, left out where rows are standardised.

    jitter, strong_jitter: standard deviations of the noise in the weak and the strong view, in units
    of a standardised feature. dropout: share of features that the strong view sets to their mean.
    """
    if len(input_shape) != 1 or input_shape[0] < 1:
        raise InputError(
            f"views of a table with input_shape={input_shape!r}; expected (features,). "
            "Flatten the rows, or use kind='image'."
        )
    for name, value in (("jitter", jitter), ("strong_jitter", strong_jitter)):
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise InputError(f"{name}={value!r}; expected a standard deviation, 0 or more. Pass 0 for none.")
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"dropout={dropout!r}; expected a share in [0, 1). Give a share, not a percentage.")
    normalise = read_normalise(mean, std, input_shape[0], default=(0.0, 1.0))
    weak = _Rows(input_shape, normalise, jitter, 0.0)
    strong = _Rows(input_shape, normalise, strong_jitter, dropout)
    return Views(weak, strong, _View(input_shape, normalise))


_KINDS: dict[str, Callable[..., Views]] = {"image": image_views, "table": table_views}


def build_views(kind: str, input_shape: Sequence[int], **options: Any) -> Views:
    """Views of a kind of data, "image" (C, H, W) or "table" (D,), with that kind's options."""
    choice(kind, _KINDS, "kind", InputError)
    maker = _KINDS[kind]
    known = [name for name in inspect.signature(maker).parameters if name != "input_shape"]
    for option in options:
        if option not in known:
            raise InputError(
                f"views of kind {kind!r}: option {option!r}; expected one of {', '.join(known)}. "
                "Remove it or correct its name."
            )
    return maker(tuple(input_shape), **options)
