"""Networks for tables: a linear map and a multilayer perceptron.

Both flatten their inputs, (N, ...) to (N, D), so that they can be tried on images too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from fastbus.errors import InputError, choice
from fastbus.models.backbone import Backbone, dropout_rate, read_counts

NORMS: dict[str, type[nn.BatchNorm1d] | type[nn.LayerNorm]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


class Linear(Backbone):
    """Logistic regression: logits are linear in the inputs, which are the features."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__(input_shape, math.prod(input_shape), num_outputs)

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        return x.flatten(1)


def hidden_sizes(num_inputs: int, num_samples: int | None = None) -> tuple[int, ...]:
    """Widths of the hidden layers for (num_samples, num_inputs) data.

    Width grows with the square root of the data, from 32 to 512 in powers of two: a table of 200
    rows cannot feed more, one of 100,000 gains nothing from more. Few rows get one layer.
    """
    rows = 2_000 if num_samples is None else num_samples
    by_rows = 2 ** round(math.log2(4 * math.sqrt(max(rows, 1))))
    by_inputs = 2 ** math.ceil(math.log2(4 * num_inputs))
    width = max(32, min(512, by_rows, by_inputs))
    return (width,) if rows < 500 else (width, width)


class MLP(Backbone):
    """Multilayer perceptron: linear, normalisation, ReLU, dropout, for each hidden layer.

    `hidden` gives the widths; left out, `hidden_sizes` picks them from the width of the data and,
    where known, `num_samples`. Dropout draws from torch's global random numbers: it takes no others.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        *,
        hidden: Sequence[int] | None = None,
        num_samples: int | None = None,
        dropout: float = 0.0,
        norm: str | None = None,
    ) -> None:
        num_inputs = math.prod(input_shape)
        widths = hidden_sizes(num_inputs, num_samples) if hidden is None else _read_widths(hidden)
        rate = dropout_rate(dropout, "mlp")
        if norm is not None:
            choice(norm, NORMS, "mlp: norm", InputError)
        super().__init__(input_shape, widths[-1], num_outputs)
        self.norm = norm
        layers: list[nn.Module] = []
        for fan_in, width in zip((num_inputs, *widths), widths, strict=False):
            # A bias in front of batch norm is subtracted again, and would get no gradient.
            layers.append(nn.Linear(fan_in, width, bias=norm != "batch"))
            if norm is not None:
                layers.append(NORMS[norm](width))
            layers.append(nn.ReLU(inplace=True))
            if rate:
                layers.append(nn.Dropout(rate))
        self.body = nn.Sequential(*layers)

    def features(self, x: Tensor) -> Tensor:
        self.check(x)
        if self.norm == "batch" and self.training and x.shape[0] == 1:
            raise InputError(
                "mlp: a training batch of 1 instance; expected 2 or more, because norm='batch' has no spread "
                "to divide by. Use larger batches, or norm='layer'."
            )
        features: Tensor = self.body(x.flatten(1))
        return features


def _read_widths(hidden: object) -> tuple[int, ...]:
    widths = read_counts(hidden)
    if widths is None:
        raise InputError(
            f"mlp: hidden={hidden!r}; expected positive widths, one a hidden layer. "
            "Pass e.g. hidden=(128, 128), or use 'linear' for none."
        )
    return widths
