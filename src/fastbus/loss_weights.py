"""Weights of a loss: of bags, instances and classes, read from the caller and checked.

Shapes: B bags, C classes; instances in the caller's layout, padded (B, K) or flat (N,).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.bag_layout import BagLayout, read_tensor
from fastbus.errors import InputError


def weights_of_bags(layout: BagLayout, bag_weights: object) -> Tensor:
    """One weight a bag (B,)."""
    ones = torch.ones(layout.num_bags, device=layout.sizes.device, dtype=torch.float64)
    if bag_weights is None:
        return ones
    return _given(bag_weights, "bag_weights", torch.ones_like(ones, dtype=torch.bool))


def weights_of_instances(layout: BagLayout, bags: Tensor, sample_weights: object) -> Tensor:
    """One weight an instance, in the caller's layout."""
    weight = layout.spread(bags)
    if sample_weights is None:
        return weight
    return weight * _given(sample_weights, "sample_weights", layout.restore(layout.mask, False))


def _given(weights: object, what: str, real: Tensor) -> Tensor:
    """The caller's weights, checked where something real stands and 0 elsewhere."""
    values = _weights(weights, what, real.device, torch.float64)
    if values.shape != real.shape:
        raise InputError(
            f"{what} of shape {tuple(values.shape)}; expected {tuple(real.shape)}. Give one weight for each."
        )
    return _non_negative(values.masked_fill(~real, 0.0), what)


def weights_of_classes(weights: object) -> Tensor:
    """One weight a class (C,), in the precision of parameters, which a buffer follows."""
    values = _weights(weights, "class_weights")
    return _non_negative(values if values.is_floating_point() else values.float(), "class_weights")


def _weights(
    weights: object, what: str, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    return read_tensor(
        weights,
        what,
        InputError,
        expected="weights of at least 0",
        cure="Give one weight for each.",
        device=device,
        dtype=dtype,
    )


def _non_negative(weights: Tensor, what: str) -> Tensor:
    if bool((weights < 0).any()) or not bool(weights.isfinite().all()):
        raise InputError(
            f"{what} with negative, infinite or NaN entries; expected weights of at least 0. Correct them."
        )
    return weights


def sum_per_bag(terms: Tensor, layout: BagLayout) -> Tensor:
    """Sum of the terms of each bag, (B,)."""
    per_instance = terms.reshape(*layout.shape, -1).sum(-1)
    if not layout.flat:
        return per_instance.sum(1)
    bag = layout.spread(torch.arange(layout.num_bags, device=terms.device))
    return per_instance.new_zeros(layout.num_bags).index_add(0, bag, per_instance)
