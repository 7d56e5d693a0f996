"""Wide residual networks (Zagoruyko and Komodakis 2016), the definition for CIFAR.

(N, channels, H, W) to 64·width features: a 3×3 stem of 16 channels, three stages of (depth − 4) / 6
blocks with 16, 32 and 64 times `width` channels, normalised and averaged over positions.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fastbus.errors import InputError
from fastbus.models.backbone import Backbone, dropout_rate, image_shape
from fastbus.models.rectified_norm import RectifiedNorm
from fastbus.models.resnet import conv3x3


class WideBlock(nn.Module):
    """BN-ReLU-conv-BN-ReLU-(dropout)-conv, added to the input; a projection sees the activated input.

    Blocks take and return the two parts of a sum, which the next normalisation adds up.
    """

    def __init__(self, fan_in: int, fan_out: int, stride: int, slope: float, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.bn1 = RectifiedNorm(fan_in, slope)
        self.conv1 = conv3x3(fan_in, fan_out, stride)
        self.bn2 = RectifiedNorm(fan_out, slope)
        self.conv2 = conv3x3(fan_out, fan_out)
        # As in the original, by channels alone: width 1 has no projection in its first stage.
        self.shortcut = None if fan_in == fan_out else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, out: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor]:
        x, active = self.bn1.of_sum(out, carried)
        out = self.bn2(self.conv1(active))
        if self.dropout:
            out = F.dropout(out, self.dropout, self.training)
        return self.conv2(out), x if self.shortcut is None else self.shortcut(active)


class WideResNet(Backbone):
    """WRN-depth-width: 1,467,610 parameters for WRN-28-2 with 10 classes of colour images.

    slope: of the leaky rectifier, 0 for ReLU (the original); 0.1 is the custom in semi-supervised
    learning. dropout: between the convolutions of a block; it draws from torch's global random
    numbers, for it takes no others.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        *,
        depth: int,
        width: int,
        slope: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        name = f"wrn_{depth}_{width}"
        channels, *_ = image_shape(input_shape, name, smallest=8)
        if depth < 10 or (depth - 4) % 6:
            raise InputError(f"{name}: depth={depth}; expected 6·n + 4, at least 10. Use 16, 28, 34 or 40.")
        rate = dropout_rate(dropout, name)
        super().__init__(input_shape, 64 * width, num_outputs, slope)
        self.stem = conv3x3(channels, 16)
        blocks = []
        fan_in = 16
        for stage, base in enumerate((16, 32, 64)):
            for index in range((depth - 4) // 6):
                stride = 2 if stage and not index else 1
                blocks.append(WideBlock(fan_in, base * width, stride, self.slope, rate))
                fan_in = base * width
        self.blocks = nn.ModuleList(blocks)
        self.bn = RectifiedNorm(fan_in, self.slope)

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        out, carried = self.stem(x), None
        for block in self.blocks:
            out, carried = block(out, carried)
        return self.bn.of_sum(out, carried)[1].mean(dim=(2, 3))
