"""Confusion matrices that the caller does not know, estimated from out-of-fold predictions.

A network that saw a noisy label foretells it, so the bags are dealt into folds: a network trained on the labels
as they are (of a crowd: on the majority of its answers) predicts the fold it did not see, and the matrices are
counted there. The classifier is then trained with the matrices held fixed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination
from fastbus.supervision.imperfect import CrowdLabel, NoisyLabel
from fastbus.supervision.incomplete import SemiSupervised
from fastbus.training.bag_set import BagSet

FOLDS = 3
Predict = Callable[[BagSet, Tensor], Tensor]  # (training set, rows to predict) -> their logits


def with_known_noise(data: BagSet, num_classes: int, seed: int, predict: Predict) -> Supervision:
    """The supervision of `data`, its unknown confusion matrices estimated; itself where all are known."""
    parts = []
    for part, weak in zip(data.parts, data.parts_of(data.weak), strict=True):
        if isinstance(part, NoisyLabel) and part.transition is None and part.rate is None:
            part = NoisyLabel.estimate(_out_of_fold(data, weak, seed, predict), weak)
        elif isinstance(part, CrowdLabel) and part.transitions is None and part.rate is None:
            part = CrowdLabel.estimate(_out_of_fold(data, majority(weak, num_classes), seed, predict), weak)
        parts.append(part)
    if all(new is old for new, old in zip(parts, data.parts, strict=True)):
        return data.supervision
    return Combination(*parts) if isinstance(data.supervision, Combination) else parts[0]


def majority(answers: Tensor, num_classes: int) -> Tensor:
    """The most frequent answer (N,) of (N, A), the first of equals, -1 where nobody answered."""
    given = answers >= 0
    votes = (one_hot(answers.clamp(min=0), num_classes) * given[..., None]).sum(1)
    return votes.argmax(-1).masked_fill(~given.any(1), -1)


def _out_of_fold(data: BagSet, labels: Tensor, seed: int, predict: Predict) -> Tensor:
    """Logits (N, C) of every instance by a network that did not see its bag."""
    plain = BagSet(SemiSupervised(), data.instances, data.sizes, labels, data.bag_weights, data.sample_weights)
    folds = min(FOLDS, len(data))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    fold = torch.empty(len(data), dtype=torch.long)
    fold[order] = torch.arange(len(data)) % folds
    logits: Tensor | None = None
    for number in range(folds):
        rows = data.rows(torch.nonzero(fold == number).flatten())
        kept = torch.nonzero(fold != number).flatten()
        part = predict(plain.subset(kept if len(kept) else torch.arange(len(data))), data.instances[rows])
        logits = part.new_zeros(len(data.instances), part.shape[1]) if logits is None else logits
        logits[rows] = part
    assert logits is not None
    return logits
