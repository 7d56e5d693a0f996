"""From the caller's predictions to log probabilities of labels, checked, in message precision.

softmax head: (B, K, C) to log probabilities (B, K, C). sigmoid head: to (B, K, C, 2), negative and
positive.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fastbus.bag_layout import BagLayout, read_tensor
from fastbus.errors import InputError, choice, first_entry, quoted, reject
from fastbus.numerics import NEG_INF, log1mexp, log_softmax, message_dtype, safe_log

HEADS = ("softmax", "sigmoid")
INPUTS = ("logits", "probs", "log_probs")


def as_predictions(predictions: object, head: str, inputs: str) -> Tensor:
    """The predictions as a floating tensor of at least two axes."""
    choice(head, HEADS, "head", InputError)
    choice(inputs, INPUTS, "inputs", InputError)
    x = read_tensor(
        predictions,
        "predictions",
        InputError,
        expected="a tensor or array (B, K, C)",
        cure="Stack the bags, or pass flat rows with bag_sizes.",
    )
    if not x.is_floating_point():
        raise InputError(
            f"predictions of dtype {x.dtype}; expected float32, float64, bfloat16 or float16. "
            "Convert them with .float()."
        )
    if x.dim() not in (2, 3):
        raise InputError(
            f"predictions of shape {tuple(x.shape)}; expected (B, K, C), or (N, C) with bag_sizes. "
            "Add the missing axis, e.g. logits.unsqueeze(1) for bags of one instance."
        )
    if x.shape[-1] == 0 or (head == "softmax" and x.shape[-1] < 2):
        raise InputError(
            f"{x.shape[-1]} classes with a {head} head; expected at least "
            f'{2 if head == "softmax" else 1}. Use head="sigmoid" for one binary output; where the weak labels show '
            "a single class, label rows of others, or name all with classes=."
        )
    return x


def log_probabilities(predictions: Tensor, layout: BagLayout, head: str, inputs: str, validate: bool) -> Tensor:
    """Compact log probabilities, zeros at padding: (B, K, C), or (B, K, C, 2) for sigmoid heads."""
    x = layout.compact(predictions).to(message_dtype(predictions.device))
    # padding is overwritten before anything else, so that NaN there never meets a gradient
    x = x.masked_fill(~layout.mask[..., None], 0.5 if inputs == "probs" else -1.0)
    if validate:
        _check(x.detach(), layout, head, inputs)
    log_prob = _sigmoid(x, inputs) if head == "sigmoid" else _softmax(x, inputs)
    padding = ~layout.mask.reshape(layout.mask.shape + (1,) * (log_prob.dim() - 2))
    return log_prob.masked_fill(padding, 0.0)


def _sigmoid(x: Tensor, inputs: str) -> Tensor:
    if inputs == "logits":
        return torch.stack([logsigmoid(-x), logsigmoid(x)], -1)
    if inputs == "probs":
        return torch.stack([safe_log(1 - x), safe_log(x)], -1)
    return torch.stack([log1mexp(x), x], -1)


def _softmax(x: Tensor, inputs: str) -> Tensor:
    if inputs == "probs":
        x = safe_log(x)
    return log_softmax(settled(x), -1)


def settled(x: Tensor) -> Tensor:
    """Logits (..., C) where a +inf, which is certainty, has become 0 and the rest of its row -inf."""
    certain = x == float("inf")
    sure = torch.where(certain, 0.0, NEG_INF).to(x.dtype)
    return torch.where(certain.any(-1, keepdim=True), sure, x)


def _check(x: Tensor, layout: BagLayout, head: str, inputs: str) -> None:
    """x: compact (B, K, C) with harmless padding."""
    bad = x.isnan()
    if bool(bad.any()):
        reject(
            InputError,
            bad,
            got=f"NaN in the {inputs}",
            expected="numbers",
            cure="Look for a diverged model or missing features; mask instances out if need be.",
        )
    if inputs == "logits":
        return _check_infinite(x, head)
    low, high = (0.0, 1.0) if inputs == "probs" else (NEG_INF, 0.0)
    slack = 1e-6
    bad = (x < low) | (x > high + slack)
    if bool(bad.any()):
        reject(
            InputError,
            bad,
            got=f"{inputs} with the value {quoted(first_entry(x, bad))}",
            expected=f"values in [{low:g}, {high:g}]",
            cure='Pass inputs="logits" for unnormalised scores.',
        )
    if head == "softmax":
        total = x.sum(-1) if inputs == "probs" else x.exp().sum(-1)
        bad = layout.mask & ((total - 1).abs() > 2e-2)
        if bool(bad.any()):
            reject(
                InputError,
                bad,
                got=f"{inputs} whose rows sum to {first_entry(total, bad):.4g}",
                expected="rows that sum to 1 under a softmax head",
                cure='Normalise them, or pass head="sigmoid" for independent classes.',
            )


def _check_infinite(x: Tensor, head: str) -> None:
    if head == "sigmoid":
        return
    certain = (x == float("inf")).sum(-1)
    bad = (certain > 1) | (x == NEG_INF).all(-1)
    if bool(bad.any()):
        reject(
            InputError,
            bad,
            got="logits of an instance with several +inf, or nothing but -inf",
            expected="at most one certain class and at least one possible class",
            cure="Replace the infinities by large finite logits.",
        )
