"""Confusion matrices and shares of positives that the caller does not know, estimated from out-of-fold predictions.

A network that saw a noisy label foretells it, so the bags are dealt into folds: a network trained on the labels
as they are (of a crowd: on the majority of its answers) predicts the fold it did not see, and the matrices are
counted there. The classifier is then trained with the matrices held fixed.
Where some positives are known, the network tells them from all others, and its ranks show how many of these are like
them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fastbus.errors import InputError
from fastbus.inference.fixed_build import read_all
from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination
from fastbus.supervision.imperfect import CrowdLabel, NoisyLabel
from fastbus.supervision.incomplete import PositiveUnlabeled, SemiSupervised
from fastbus.training.bag_set import BagSet

FOLDS = 3
Predict = Callable[[BagSet, Tensor], Tensor]  # (training set, rows to predict) -> their logits


def needs_estimate(supervision: Supervision) -> bool:
    """Whether a confusion matrix or a share of positives of it, or of one of its parts, is not known."""
    if isinstance(supervision, Combination):
        return any(needs_estimate(part) for part in supervision.parts)
    if isinstance(supervision, NoisyLabel):
        return supervision.transition is None and supervision.rate is None
    if isinstance(supervision, CrowdLabel):
        return supervision.transitions is None and supervision.rate is None
    return isinstance(supervision, PositiveUnlabeled) and supervision.prior is None


def with_known_noise(data: BagSet, num_classes: int, seed: int, predict: Predict) -> Supervision:
    """The supervision of `data`, its unknown matrices and shares estimated; itself where all are known."""
    if not needs_estimate(data.supervision):
        return data.supervision
    parts = []
    for part, weak in zip(data.parts, data.parts_of(data.weak), strict=True):
        if needs_estimate(part):
            if isinstance(part, PositiveUnlabeled):
                part = _with_prior(part, data, weak, seed, predict)
            elif isinstance(part, CrowdLabel):
                part = CrowdLabel.estimate(_out_of_fold(data, majority(weak, num_classes), seed, predict), weak)
            else:
                part = NoisyLabel.estimate(_out_of_fold(data, weak, seed, predict), weak)
        parts.append(part)
    return Combination(*parts) if isinstance(data.supervision, Combination) else parts[0]


def readable(supervision: Supervision) -> Supervision:
    """The supervision with some prior or rate where none is known, so that its weak labels can be read and checked.

    The rate leaves nothing impossible, so that whatever a matrix still to be estimated may allow is accepted.
    """
    if isinstance(supervision, Combination):
        return Combination(*(readable(part) for part in supervision.parts))
    if isinstance(supervision, PositiveUnlabeled) and supervision.prior is None:
        return PositiveUnlabeled(0.5, constraint=supervision.constraint)
    if isinstance(supervision, (NoisyLabel, CrowdLabel)) and needs_estimate(supervision):
        return type(supervision)(rate=0.5)
    return supervision


def fold_of(labels: Tensor, folds: int, seed: int) -> Tensor:
    """A fold 0..folds-1 for each entry of labels (N,), every label dealt evenly."""
    fold = torch.empty(len(labels), dtype=torch.long)
    for label in labels.unique().tolist():
        rows = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        fold[rows[order]] = torch.arange(len(rows)) % folds
    return fold


def known_positives(weak: Tensor, folds: int) -> Tensor:
    """Which instances are known positives, from labels (N,); each fold must get some of them, and some others."""
    read_all(PositiveUnlabeled(0.5), weak, torch.ones(len(weak), dtype=torch.long), 2)  # complains of other labels
    positive = weak == 1
    known = int(positive.sum())
    if known < folds or len(positive) - known < folds:
        raise InputError(
            f"positive_unlabeled: {known} known positives and {len(positive) - known} unlabelled instances to estimate "
            f"the prior from; expected {folds} or more of each. Pass prior=."
        )
    return positive


def _with_prior(rule: PositiveUnlabeled, data: BagSet, weak: Tensor, seed: int, predict: Predict) -> PositiveUnlabeled:
    """Positives against unlabelled instances, both together weighing the same."""
    positive = known_positives(weak, FOLDS)
    fold = fold_of(positive.long(), FOLDS, seed)
    rare = (~positive).sum() / positive.sum()
    weight = torch.where(positive, rare, 1.0).to(torch.float32)
    weight = weight if data.sample_weights is None else weight * data.sample_weights
    ones = torch.ones(len(positive), dtype=torch.long)
    plain = BagSet(SemiSupervised(), data.instances, ones, positive.long(), None, weight)
    logits = torch.zeros(len(positive), 2)
    for number in range(FOLDS):
        seen, mine = (torch.nonzero(x).flatten() for x in (fold != number, fold == number))
        logits[mine] = predict(plain.subset(seen), data.instances[mine]).float()
    return PositiveUnlabeled.estimate(logits, weak, fold, constraint=rule.constraint)


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
