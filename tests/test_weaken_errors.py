"""What weaken refuses: each complaint says what was got, what was expected and what to do."""

from typing import Any

import numpy as np
import pytest

import fastbus
from fastbus.supervision import Supervision

MAJORITY = Supervision.from_function(lambda y: sum(y) * 2 > len(y), bag_size=3, num_labels=2)
SUM = Supervision.from_function(lambda y: sum(y), bag_size=2, num_labels=3)
T = np.array([[0.7, 0.3, 0.0], [0.1, 0.8, 0.1], [0.0, 0.4, 0.6]])
Y = [0, 1, 1, 0]
COMPLAINTS: list[tuple[Any, dict[str, Any], str]] = [
    (fastbus.PartialLabel(), {"ratio": 0.3}, "no rng"),
    (fastbus.PartialLabel(), {"rng": 0}, "ratio"),
    (fastbus.PartialLabel(), {"rng": 0, "ratio": 30}, "not a percentage"),
    (fastbus.PartialLabel(), {"rng": 0, "ration": 0.3}, "option 'ration'; expected ratio"),
    (fastbus.PartialLabel(), {"rng": 0, "ratio": 0.3, "parts": []}, "combinations only"),
    (fastbus.PartialLabel(), {"rng": True, "ratio": 0.3}, "rng=True"),
    (fastbus.PartialLabel(), {"rng": np.random.RandomState(0), "ratio": 0.3}, "Generator"),
    (fastbus.PartialLabel(), {"rng": 0, "ratio": 0.3, "labels": np.eye(4)}, "exactly one class"),
    (fastbus.MultiInstance(), {"bags": [1, 1, 1, 1]}, "may be either"),
    (fastbus.MultiInstance(), {"bags": [2, 1]}, "sum to 4"),
    (fastbus.MultiInstance(), {"bags": ["a", None, "b", "b"]}, "missing bag id"),
    (fastbus.MultiInstance(), {"labels": ["cat", "dog"]}, "Encode classes"),
    (fastbus.MultiInstance(), {"labels": [0, -1]}, "label -1 in row 1"),
    (fastbus.MultiInstance(), {"labels": [0, 0.5]}, "label 0.5 in row 1"),
    (fastbus.MultiInstance(), {"labels": [0.0, float("nan")]}, "label nan in row 1"),
    (fastbus.MultiInstance(), {"labels": []}, "shape"),
    (fastbus.MultiInstance(), {"labels": [[0, 2], [1, 0]]}, "0 or 1 for every class"),
    (fastbus.MultiInstance(), {"num_classes": 1}, "num_classes=1"),
    (fastbus.MultiInstance(), {"missing": 0.5}, "no rng"),
    (fastbus.MultiInstance(), {"missing": 5, "rng": 0}, "missing=5"),
    (fastbus.PairSimilarity(), {}, "draw_pairs"),
    (fastbus.PairComparison(), {"labels": [0, 1, 2, 1], "bags": [2, 2]}, "binary_labels"),
    (fastbus.SimilarityConfidence(), {"bags": [2, 2]}, "calibrated model"),
    (fastbus.ConfidenceDifference(), {"bags": [2, 2], "probabilities": [2, 0, 0, 0]}, "row 0"),
    (fastbus.SimilarityConfidence(), {"bags": [2, 2], "probabilities": [0.1]}, r"shape \(1,\)"),
    (fastbus.PositiveConfidence(), {"bags": [2, 2], "probabilities": [0.1] * 4}, "single instances"),
    (fastbus.NoisyLabel(), {"rng": 0}, "neither of transition and rate"),
    (fastbus.NoisyLabel(rate=0.1), {"rng": 0, "rate": 0.2}, "more than one"),
    (fastbus.NoisyLabel(T), {"rng": 0}, "num_classes="),
    (fastbus.NoisyLabel(), {"rng": 0, "transition": [[1, 1], [0, 1]]}, "sum to 1"),
    (fastbus.CrowdLabel(rate=0.1), {"rng": 0}, "annotators"),
    (fastbus.CrowdLabel(rate=0.1), {"rng": 0, "annotators": 2, "answers": 3}, "answers=3"),
    (fastbus.ComplementaryLabel(), {"rng": 0, "excluded": 2}, "never excluded"),
    (fastbus.SemiSupervised(), {"rng": 0}, "labelled"),
    (fastbus.SemiSupervised(), {"rng": 0, "labelled": 9}, "labelled=9"),
    (fastbus.SemiSupervised(), {"rng": 0, "labelled": 4, "num_classes": 3}, "Ask for fewer"),
    (fastbus.PositiveUnlabeled(0.2), {"rng": 0, "missing": 0.1}, "labelled= instead"),
    (fastbus.PositiveUnlabeled(0.2), {"rng": 0, "labelled": 7}, "labelled=7"),
    (fastbus.UnlabeledUnlabeled((0.2, 0.5)), {"bags": [2, 2], "sets": [0, 2]}, "one a bag"),
    (fastbus.LabelProportion("interval"), {"rng": 0, "width": -1}, "width=-1"),
    (fastbus.LabelProportion("soft"), {"rng": 0, "spread": 0}, "spread=0"),
    (MAJORITY, {"bags": [2, 2]}, "bags of 3"),
    (SUM, {"bags": [2, 2]}, "num_classes=3"),
    (fastbus.MultiInstance() & fastbus.PartialLabel(), {"rng": 0, "parts": [{}]}, "parts of length 1"),
    (fastbus.MultiInstance() & fastbus.PartialLabel(), {"rng": 0, "rate": 1}, "option 'rate'"),
]


@pytest.mark.parametrize(("rule", "changes", "message"), COMPLAINTS)
def test_complaints_say_what_to_do(rule: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(fastbus.InputError, match=message) as caught:
        fastbus.weaken(rule, **({"labels": Y} | changes))
    assert "expected" in str(caught.value) and "\n" not in str(caught.value)


def test_reordered_bags_are_refused() -> None:
    bags = fastbus.Bags.from_ids(np.zeros((4, 1)), [0, 1, 0, 1])
    with pytest.raises(fastbus.InputError, match="bag id of every label"):
        fastbus.weaken(fastbus.MultiInstance(), Y, bags)
