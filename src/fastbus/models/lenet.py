"""LeNet-5 (LeCun et al. 1998) as it is used today: full connections, ReLU, max pooling.

For 28×28 images (padded by 2, as the original did) and 32×32 ones, grey or colour; 61,706 parameters
for 10 classes of grey images.
"""

from __future__ import annotations

from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.models.backbone import Backbone


class LeNet5(Backbone):
    """(N, 1 or 3, 28 or 32, the same) to 84 features."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        if input_shape not in {(channels, side, side) for channels in (1, 3) for side in (28, 32)}:
            raise InputError(
                f"lenet5: input_shape={input_shape}; expected (1 or 3, 28, 28) or (1 or 3, 32, 32). "
                "Resize the images, or use 'resnet18' for larger ones and 'mlp' for smaller ones."
            )
        super().__init__(input_shape, 84, num_outputs)
        channels, side, _ = input_shape
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2 if side == 28 else 0),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),  # (N, 6, 14, 14)
            nn.Conv2d(6, 16, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),  # (N, 16, 5, 5)
        )
        self.dense = nn.Sequential(
            nn.Linear(16 * 5 * 5, 120), nn.ReLU(inplace=True), nn.Linear(120, 84), nn.ReLU(inplace=True)
        )

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        features: Tensor = self.dense(self.convolutions(x).flatten(1))
        return features
