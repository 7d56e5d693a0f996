"""Facts and beliefs in one combination: what is told of an instance rules out what is believed of its bag.

A distribution that Jeffrey's rule is to set must give no weight to what other parts rule out, or no
labelling satisfies both. So beliefs are conditioned on the facts told beside them: soft counts on the
labels that gold, candidate and complementary labels leave, confidences dropped where these settle one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastbus.data.weaken_inputs import Array
from fastbus.data.weaken_truth import Truth
from fastbus.supervision.aggregate import LabelProportion
from fastbus.supervision.base import Supervision
from fastbus.supervision.imperfect import ComplementaryLabel, PartialLabel
from fastbus.supervision.incomplete import PositiveConfidence, SemiSupervised
from fastbus.supervision.pairwise import ConfidenceDifference, SimilarityConfidence


def reconcile(truth: Truth, parts: Sequence[Supervision], weak: Sequence[Any]) -> tuple[Any, ...]:
    """The weak labels of all parts, beliefs among them conditioned on the facts."""
    possible = np.ones((len(truth.labels), truth.num_classes, 2), dtype=bool)  # label 0 or 1 of each class
    for part, told in zip(parts, weak, strict=True):
        _rule_out(possible, truth, part, told)
    return tuple(_conditioned(truth, part, told, possible) for part, told in zip(parts, weak, strict=True))


def _rule_out(possible: Array, truth: Truth, part: Supervision, told: Array) -> None:
    if not isinstance(part, (SemiSupervised, PartialLabel, ComplementaryLabel)):
        return
    rows = told[truth.group, truth.slot] if truth.padded else told
    if truth.multi_label:  # gold labels 0/1/-1 of every class
        possible[..., 1] &= rows != 0
        possible[..., 0] &= rows != 1
        return
    classes = np.arange(truth.num_classes)
    if rows.ndim == 1:
        same = rows[:, None] == classes
        left = ~same if isinstance(part, ComplementaryLabel) else same
        left = left | (rows == -1)[:, None]
    else:
        left = (rows == 0) if isinstance(part, ComplementaryLabel) else (rows == 1)
        left = left | (rows == -1)
    possible[..., 1] &= left
    # a class is certain once no other is left
    only = possible[..., 1] & (possible[..., 1].sum(axis=1) == 1)[:, None]
    possible[..., 0] &= ~only


def _conditioned(truth: Truth, part: Supervision, told: Any, possible: Array) -> Any:
    if not part.applies_last:
        return told
    if isinstance(part, LabelProportion):
        chains = possible[:, 1:] if truth.binary else possible
        low = truth.bag_sums((~chains[..., 0]).astype(np.int64))[..., None]  # (B, G, 1)
        high = truth.bag_sums(chains[..., 1].astype(np.int64))[..., None]
        soft = told[:, None] if truth.binary else told
        states = np.arange(soft.shape[-1])
        soft = soft * ((states >= low) & (states <= high))
        soft = soft / soft.sum(axis=-1, keepdims=True)
        return soft[:, 0] if truth.binary else soft
    if isinstance(part, (SimilarityConfidence, ConfidenceDifference, PositiveConfidence)):
        touched = np.asarray(~possible.all(axis=(1, 2)), dtype=np.int64)
        return np.where(truth.bag_sums(touched) > 0, np.nan, told)
    return told
