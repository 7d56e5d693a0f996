"""Pairwise supervision: a statement about two instances, hard or as a confidence.

The first state after one label is that label (Z1 = y1): "similar to the first" alone is not a fold.
Ordered pairs:  0 start, 1 + y1 after the first label, 3 + 2*y1 + y2 after the second.
Similar pairs:  0 start, 3 + y1 after the first label, then 1 different or 2 similar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fastbus.errors import SupervisionError, choice
from fastbus.numerics import safe_log
from fastbus.supervision.aggregate import flipped
from fastbus.supervision.base import Supervision
from fastbus.supervision.evidence import Evidence, Rule, Soft
from fastbus.supervision.options import flip_channel
from fastbus.supervision.reading import WeakReader

DIFFERENT, SIMILAR = 1, 2


class OrderedPair(Supervision):
    """Two binary instances, both labels remembered."""

    bag_size = 2
    binary = True

    def num_states(self, bag_size: int) -> int:
        return 7

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        second = 3 + 2 * (state - 1) + label
        return torch.where(state == 0, 1 + label, torch.where(state <= 2, second, state))

    def first_and_second(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """The two labels a last state stands for."""
        pair = (state - 3).clamp(min=0)
        return pair // 2, pair % 2


class PairComparison(OrderedPair):
    """w = 1: the first instance is the more positive one.

    pairs="sorted": two independent draws were put in order, so ties are told either way with
        probability 1/2.
    pairs="labelled": w = 1[y1 >= y2], so w = 0 says the second is strictly more positive.
    """

    name = "pair_comparison"

    def __init__(
        self,
        *,
        pairs: Literal["sorted", "labelled"] = "sorted",
        noise: tuple[float, float] | None = None,
    ) -> None:
        choice(pairs, ("sorted", "labelled"), f"{self.name}: pairs", SupervisionError)
        self.pairs = pairs
        self.noise = flip_channel(noise, self.name)

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        first, second = self.first_and_second(state)
        if self.pairs == "sorted":
            first_wins = 0.5 + 0.5 * (first - second).to(torch.float64)
        else:
            first_wins = (first >= second).to(torch.float64)
        return flipped(first_wins, weak, self.noise)

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        values = reader.per_bag(weak).unsqueeze(1)
        reader.bag_size(2, "pairs")
        values, observed = reader.integers(values, 1, "comparisons")
        rule = self.rule(values, observed, reader.binary_class(), reader)
        return Evidence(rules=(rule,), names=(self.title,))


class ConfidenceDifference(OrderedPair):
    """d = P(y2 = 1) - P(y1 = 1): the nearest distribution to the prediction with that mean."""

    name = "confidence_difference"

    @property
    def applies_last(self) -> bool:
        return True

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return None

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        values = reader.per_bag(weak).unsqueeze(1)
        reader.bag_size(2, "pairs")
        target, active = reader.fractions(values, -1.0, 1.0, "confidence differences")
        Z = self.num_states(2)
        first, second = self.first_and_second(torch.arange(Z, device=reader.device))
        value = (second - first).to(reader.dtype)
        none = torch.zeros(reader.B, 1, Z, dtype=reader.dtype, device=reader.device)
        soft = Soft("mean", target, active, value)
        rule = Rule(self, none, torch.zeros_like(active), reader.binary_class(), soft)
        return Evidence(rules=(rule,), names=(self.title,))


class SimilarPair(Supervision):
    """Two instances of any number of classes; the state ends at "different" or "similar"."""

    labels = "categorical"
    fold = "similar"
    bag_size = 2

    def num_states(self, bag_size: int, num_labels: int = 2) -> int:
        return 3 + num_labels

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        agrees = torch.where(label == state - 3, SIMILAR, DIFFERENT)
        return torch.where(state == 0, 3 + label, torch.where(state >= 3, agrees, state))

    def pair_rule(
        self,
        log_different: Tensor,
        log_similar: Tensor,
        observed: Tensor,
        reader: WeakReader,
        soft: Soft | None = None,
    ) -> Rule:
        """The fold with log evidence (B,) of its two last states."""
        Z = self.num_states(2, reader.num_labels)
        log_evidence = torch.zeros(reader.B, 1, Z, dtype=reader.dtype, device=reader.device)
        log_evidence[:, 0, DIFFERENT] = log_different
        log_evidence[:, 0, SIMILAR] = log_similar
        log_evidence = log_evidence.masked_fill(~observed[:, None, None], 0.0)
        return Rule(self, log_evidence, observed[:, None], None, soft)


class PairSimilarity(SimilarPair):
    """w = 1: both instances have the same class. Names the classes only up to a permutation."""

    name = "pair_similarity"

    def __init__(self, *, noise: tuple[float, float] | None = None) -> None:
        self.noise = flip_channel(noise, self.name)

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        return flipped(state == SIMILAR, weak, self.noise)

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        reader.single_label()
        values = reader.per_bag(weak)
        reader.bag_size(2, "pairs")
        values, observed = reader.integers(values, 1, "similarities")
        ends = torch.tensor([DIFFERENT, SIMILAR], device=reader.device)
        log_ends = safe_log(self.evidence(ends, values[:, None]).to(reader.dtype))
        rule = self.pair_rule(log_ends[:, 0], log_ends[:, 1], observed, reader)
        return Evidence(rules=(rule,), names=(self.title,))


class SimilarityConfidence(SimilarPair):
    """s = P(same class), by Jeffrey's rule; soft="virtual" reads s : 1 - s as a likelihood ratio."""

    name = "similarity_confidence"

    def __init__(self, *, soft: Literal["jeffrey", "virtual"] = "jeffrey") -> None:
        choice(soft, ("jeffrey", "virtual"), f"{self.name}: soft", SupervisionError)
        self.soft = soft

    @property
    def applies_last(self) -> bool:
        return self.soft == "jeffrey"

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return None

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        reader.single_label()
        values = reader.per_bag(weak)
        reader.bag_size(2, "pairs")
        similar, present = reader.fractions(values, 0.0, 1.0, "similarity confidences")
        if self.soft == "virtual":
            rule = self.pair_rule(safe_log(1 - similar), safe_log(similar), present, reader)
            return Evidence(rules=(rule,), names=(self.title,))
        target = torch.zeros(reader.B, 1, self.num_states(2, reader.num_labels), dtype=reader.dtype).to(reader.device)
        target[:, 0, DIFFERENT] = 1 - similar
        target[:, 0, SIMILAR] = similar
        none = torch.zeros_like(similar)
        soft = Soft("jeffrey", target, present[:, None])
        rule = self.pair_rule(none, none, torch.zeros_like(present), reader, soft)
        return Evidence(rules=(rule,), names=(self.title,))
