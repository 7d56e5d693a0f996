"""ResNet-18 and PreAct-ResNet-18 (He et al. 2016 a, b) with a 3×3 stem for small images.

(N, channels, H, W) to 512 features. There is no pooling behind the stem. At 32×32 the stages run at
32, 16, 8 and 4; images over 64 pixels get a stem of stride 2, so that 96×96 ends at 6×6.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.models.backbone import Backbone, image_shape
from fastbus.models.rectified_norm import RectifiedNorm

WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


def conv3x3(fan_in: int, fan_out: int, stride: int = 1) -> nn.Conv2d:
    """A 3×3 convolution; normalisation follows or precedes it, so it has no bias."""
    return nn.Conv2d(fan_in, fan_out, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """conv-BN-ReLU-conv-BN, added to the (projected) input, then ReLU."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(fan_in, fan_out, stride)
        self.bn1 = RectifiedNorm(fan_out)
        self.conv2 = conv3x3(fan_out, fan_out)
        self.bn2 = RectifiedNorm(fan_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or fan_in != fan_out:
            self.shortcut.append(nn.Conv2d(fan_in, fan_out, 1, stride, bias=False))
            self.shortcut.append(RectifiedNorm(fan_out, slope=1.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x))), after=self.shortcut(x))
        return out


class PreActBlock(nn.Module):
    """BN-ReLU-conv-BN-ReLU-conv, added to the input; a projection sees the activated input."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = RectifiedNorm(fan_in)
        self.conv1 = conv3x3(fan_in, fan_out, stride)
        self.bn2 = RectifiedNorm(fan_out)
        self.conv2 = conv3x3(fan_out, fan_out)
        plain = stride == 1 and fan_in == fan_out
        self.shortcut = None if plain else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.bn1(x)
        carried = x if self.shortcut is None else self.shortcut(active)
        return torch.add(carried, self.conv2(self.bn2(self.conv1(active))))


class _Stages(Backbone):
    """A stem and four stages of two blocks, averaged over positions."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        block: type[BasicBlock] | type[PreActBlock],
        stem_stride: int | None,
        name: str,
    ) -> None:
        channels, height, width = image_shape(input_shape, name, smallest=8)
        if stem_stride is None:
            stem_stride = 1 if max(height, width) <= 64 else 2
        if stem_stride not in (1, 2):
            raise InputError(f"{name}: stem_stride={stem_stride!r}; expected 1 or 2. Leave it out to pick it by size.")
        super().__init__(input_shape, WIDTHS[-1], num_outputs)
        self.stem = conv3x3(channels, WIDTHS[0], stem_stride)
        blocks = []
        fan_in = WIDTHS[0]
        for stage, fan_out in enumerate(WIDTHS):
            for index in range(BLOCKS_PER_STAGE):
                blocks.append(block(fan_in, fan_out, stride=2 if stage and not index else 1))
                fan_in = fan_out
        self.blocks = nn.Sequential(*blocks)


class ResNet18(_Stages):
    """11,173,962 parameters for 10 classes of colour images."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, *, stem_stride: int | None = None) -> None:
        super().__init__(input_shape, num_outputs, BasicBlock, stem_stride, "resnet18")
        self.bn = RectifiedNorm(WIDTHS[0])

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        out: Tensor = self.blocks(self.bn(self.stem(x)))
        return out.mean(dim=(2, 3))


class PreActResNet18(_Stages):
    """11,172,170 parameters for 10 classes of colour images; normalised once more at the end."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, *, stem_stride: int | None = None) -> None:
        super().__init__(input_shape, num_outputs, PreActBlock, stem_stride, "preact_resnet18")
        self.bn = RectifiedNorm(WIDTHS[-1])

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        out: Tensor = self.bn(self.blocks(self.stem(x)))
        return out.mean(dim=(2, 3))
