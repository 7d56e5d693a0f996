"""How the weak labels of two classes go together in a set of bags: the moment estimate of a class loop's factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbus.bag_layout import read_tensor
from fastbus.errors import InputError, WeakLabelError
from fastbus.numerics import safe_log


def pair_log_odds(weak: Any, num_values: int, pseudo_count: float, noise: tuple[float, float] | None) -> Tensor:
    """log P(w_i, w_j) - log P(w_i) - log P(w_j) of labels (B, C), as (C, C, V, V); 0 for values never seen.

    A pair's table counts the bags where both labels are known, plus `pseudo_count` bags in which the two are
    independent.
    """
    if not pseudo_count >= 0:
        raise InputError(f"pseudo_count={pseudo_count!r}; expected a number of bags of at least 0.")
    seen = _one_hot(weak, num_values)  # (B, C, V)
    together = torch.einsum("biv,bjw->ijvw", seen, seen)
    bags = together.sum((-2, -1), keepdim=True)
    table = together / bags.clamp(min=1.0)
    if noise is not None:
        table = _without_noise(table, num_values, noise)
        # undoing a channel multiplies the sampling error of a table: so many clean bags would say as much
        bags = bags * (1 - sum(noise)) ** 4
    first, second = table.sum(-1, keepdim=True), table.sum(-2, keepdim=True)
    alone = first * second
    mixed = (bags * table + pseudo_count * alone) / (bags + pseudo_count).masked_fill(bags == 0, 1.0)
    unseen = (alone == 0) | (bags == 0)
    return safe_log(mixed).masked_fill(unseen, 0.0) - safe_log(alone).masked_fill(unseen, 0.0)


def _one_hot(weak: Any, num_values: int) -> Tensor:
    """Labels (B, C) as indicators (B, C, V), zeros where missing."""
    labels = read_tensor(
        weak, "bag labels", WeakLabelError, expected="numbers (B, C)", cure="Mark missing labels -1, or NaN in floats."
    )
    if labels.dim() != 2:
        raise WeakLabelError(
            f"bag labels of shape {tuple(labels.shape)}; expected (B, C). Give one label for every bag and class."
        )
    missing = labels.isnan() if labels.is_floating_point() else labels == -1
    values = labels.masked_fill(missing, 0) if labels.dtype != torch.bool else labels
    whole = values.long()
    bad = (whole != values) | (whole < 0) | (whole >= num_values)
    if bool(bad.any()):
        bag, column = torch.nonzero(bad)[0].tolist()
        raise WeakLabelError(
            f"bag label {labels[bag, column].item():g} of class {column}; expected whole numbers 0 to "
            f"{num_values - 1}; bag {bag}. Mark missing labels -1, or NaN in floats."
        )
    return torch.nn.functional.one_hot(whole, num_values).masked_fill(missing[..., None], 0).to(torch.float64)


def _without_noise(table: Tensor, num_values: int, noise: tuple[float, float]) -> Tensor:
    """Undo a channel that acts on both labels; negative shares, which are sampling error, become 0."""
    false_positive, false_negative = noise
    if num_values != 2 or not min(noise) >= 0 or not false_positive + false_negative < 1:
        raise InputError(
            f"noise={noise!r} for labels of {num_values} values; expected rates of 0/1 labels, not negative, that "
            "sum to less than 1. Labels with more noise than that say nothing."
        )
    rows = [[1 - false_positive, false_positive], [false_negative, 1 - false_negative]]
    channel = torch.tensor(rows, dtype=table.dtype, device=table.device)
    undo = torch.linalg.inv(channel)
    clean: Tensor = (undo.T @ table @ undo).clamp(min=0.0)
    total = clean.sum((-2, -1), keepdim=True)
    return clean / total.masked_fill(total == 0, 1.0)
