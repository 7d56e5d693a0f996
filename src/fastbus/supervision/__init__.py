"""Kinds of weak labels: their rules, their evidence, their validation."""

from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import REGISTRY, Supervision, resolve
from fastbus.supervision.combine import Combination
from fastbus.supervision.compress import CompressedRule
from fastbus.supervision.imperfect import (
    ComplementaryLabel,
    CrowdLabel,
    NoisyLabel,
    PartialLabel,
    answers_from_table,
)
from fastbus.supervision.incomplete import (
    PositiveConfidence,
    PositiveUnlabeled,
    SemiSupervised,
    SimilarDissimilarUnlabeled,
    UnlabeledUnlabeled,
)
from fastbus.supervision.pairwise import (
    ConfidenceDifference,
    PairComparison,
    PairSimilarity,
    SimilarityConfidence,
)

__all__ = [
    "REGISTRY",
    "Combination",
    "ComplementaryLabel",
    "CompressedRule",
    "ConfidenceDifference",
    "CrowdLabel",
    "LabelProportion",
    "MultiInstance",
    "NoisyLabel",
    "PairComparison",
    "PairSimilarity",
    "PartialLabel",
    "PositiveConfidence",
    "PositiveUnlabeled",
    "SemiSupervised",
    "SimilarDissimilarUnlabeled",
    "SimilarityConfidence",
    "Supervision",
    "UnlabeledUnlabeled",
    "answers_from_table",
    "resolve",
]
