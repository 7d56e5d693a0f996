"""Random weak labels that some labelling of their bags satisfies, for the contract of a supervision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.supervision.base import Supervision, takes_position
from fastbus.supervision.combine import Combination


def example_weak(
    supervision: Supervision,
    head: str,
    classes: int,
    mask: Tensor,
    rng: np.random.Generator,
    weak_labels: Sequence[Any] | None = None,
) -> Any:
    """Weak labels (NumPy) of random true labels of bags with `mask` (B, K)."""
    truth = _true_labels(head, classes, mask, rng)
    return _weaken(supervision, truth, head, classes, mask.numpy(), rng, weak_labels)


def _true_labels(head: str, classes: int, mask: Tensor, rng: np.random.Generator) -> np.ndarray:
    """Class indices (B, K) for single-label heads, 0/1 (B, K, C) for sigmoid heads with C > 1."""
    shape = tuple(mask.shape)
    if head == "sigmoid" and classes > 1:
        return rng.integers(0, 2, (*shape, classes))
    return rng.integers(0, 2 if head == "sigmoid" else classes, shape)


def _weaken(
    supervision: Supervision,
    truth: np.ndarray,
    head: str,
    classes: int,
    mask: np.ndarray,
    rng: np.random.Generator,
    weak_labels: Sequence[Any] | None,
) -> Any:
    if isinstance(supervision, Combination):
        return tuple(_weaken(part, truth, head, classes, mask, rng, weak_labels) for part in supervision.parts)
    Y = 2 if head == "sigmoid" else classes
    B, K = mask.shape
    lead = (B, K)
    name = supervision.title
    if name == "partial_label":
        return ((rng.random((*lead, Y)) < 0.4) | (truth[..., None] == np.arange(Y))).astype(np.int64)
    if name == "complementary_label":
        return (truth + rng.integers(1, Y, lead)) % Y
    if name == "noisy_label":
        return rng.integers(0, Y, lead)
    if name == "crowd_label":
        given = getattr(supervision, "transitions", None)
        return rng.integers(-1, Y, (*lead, 3 if given is None else int(given.shape[0])))
    if name == "semi_supervised":
        return np.where(rng.random(truth.shape) < 0.5, truth, -1)
    if name == "positive_confidence":
        return rng.uniform(0.05, 1.0, B)
    if name == "similarity_confidence":
        return rng.uniform(0.0, 1.0, B)
    if name == "confidence_difference":
        return rng.uniform(-1.0, 1.0, B)
    if name == "positive_unlabeled":
        return np.where((truth == 1) & (rng.random(lead) < 0.5), 1, -1)
    if name == "unlabeled_unlabeled":
        return rng.integers(0, len(supervision.priors), B)  # type: ignore[attr-defined]
    if name == "label_proportion" and supervision.kind != "exact":  # type: ignore[attr-defined]
        return _vague_counts(supervision, truth, classes, mask, rng)
    if name == "label_proportion" and supervision.unit == "fraction":  # type: ignore[attr-defined]
        binary = _binary_labels(truth, classes)
        return (binary * mask[..., None]).sum(1) / mask.sum(1)[:, None]
    return _fold_and_draw(supervision, truth, classes, mask, rng, weak_labels)


def _binary_labels(truth: np.ndarray, classes: int) -> np.ndarray:
    """0/1 labels (B, K, C) of every class."""
    if truth.ndim == 3:
        return truth
    return truth[..., None] if classes == 1 else (truth[..., None] == np.arange(classes)).astype(int)


def _vague_counts(
    supervision: Supervision,
    truth: np.ndarray,
    classes: int,
    mask: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Intervals around the true counts, or distributions over counts of one class."""
    counts = (_binary_labels(truth, classes) * mask[..., None]).sum(1)  # (B, C)
    sizes = mask.sum(1)[:, None]
    if supervision.kind == "interval":  # type: ignore[attr-defined]
        low = np.maximum(counts - rng.integers(0, 2, counts.shape), 0)
        high = np.minimum(counts + rng.integers(0, 2, counts.shape), sizes)
        bounds = np.stack([low, high], -1)
        fraction = supervision.unit == "fraction"  # type: ignore[attr-defined]
        return bounds / sizes[..., None] if fraction else bounds
    weight = rng.random((*counts.shape, mask.shape[1] + 1))
    weight *= np.arange(mask.shape[1] + 1) <= sizes[..., None]
    weight /= weight.sum(-1, keepdims=True)
    if truth.ndim == 2 and classes > 1:
        # under a softmax head one class of a bag may carry a distribution
        weight[:, 1:] = np.nan
    return weight


def _fold_and_draw(
    supervision: Supervision,
    truth: np.ndarray,
    classes: int,
    mask: np.ndarray,
    rng: np.random.Generator,
    weak_labels: Sequence[Any] | None,
) -> np.ndarray:
    """Fold the rule over the true labels and draw a weak label from the evidence of its last state."""
    B, K = mask.shape
    known = weak_labels if weak_labels is not None else supervision.weak_labels(K)
    if known is None:
        raise SupervisionError(
            f"{supervision.title}: the weak labels are not known; expected a finite set. Pass weak_labels= "
            "to check_supervision, or give the rule a method weak_labels(bag_size)."
        )
    per_class = supervision.labels == "per_class" and not supervision.binary
    if supervision.labels == "categorical" or not per_class:
        labels = truth[..., None]
    else:
        labels = _binary_labels(truth, classes)
    weak = np.empty((B, labels.shape[-1]), dtype=np.asarray(list(known)).dtype)
    for bag in range(B):
        size = int(mask[bag].sum())
        choices = list(weak_labels if weak_labels is not None else supervision.weak_labels(size) or ())
        for column in range(labels.shape[-1]):
            given = _last_evidence(supervision, labels[bag, :size, column], choices)
            weak[bag, column] = choices[rng.choice(len(choices), p=given / given.sum())]
    return weak if per_class and labels.shape[-1] > 1 else weak[:, 0]


def _last_evidence(supervision: Supervision, labels: np.ndarray, choices: list[Any]) -> np.ndarray:
    size = len(labels)
    state = torch.tensor(0)
    for position, label in enumerate(labels.tolist()):
        options = {"position": position} if takes_position(supervision) else {}
        state = supervision.step(state, torch.tensor(label), **options)
    Z = max(supervision.num_states(size), int(state) + 1)
    rows = [supervision.evidence(torch.arange(Z), torch.tensor([[choice]]))[0, int(state)] for choice in choices]
    return np.array([float(value) for value in rows])
