"""A small convolutional network for images that LeNet-5 does not take and that need no residual network.

(N, channels, H, W) from 4×4 to 128 features: 3×3 convolutions of 32, 32 and 64 channels with ReLU, two max poolings,
averages over the quarters of the image, one dense layer. Nothing is normalised over a batch, so any batch will do.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastbus.models.backbone import Backbone, image_shape


class SmallCNN(Backbone):
    """(N, channels, H, W) to 128 features; 62,250 parameters for 10 classes of grey images."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        channels, height, width = image_shape(input_shape, "small_cnn", 4)
        super().__init__(input_shape, 128, num_outputs)
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2) if min(height, width) >= 8 else nn.Identity(),
            nn.AdaptiveAvgPool2d(2),  # (N, 64, 2, 2)
        )
        self.dense = nn.Sequential(nn.Linear(64 * 2 * 2, 128), nn.ReLU(inplace=True))

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        features: Tensor = self.dense(self.convolutions(x).flatten(1))
        return features
