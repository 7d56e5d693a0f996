"""FastBUS: exact, batched, differentiable inference and training for every kind of weak label."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fastbus import oracle, testing
    from fastbus.bag_folds import BagKFold, bag_sequence, weak_accuracy
    from fastbus.bags import Bags
    from fastbus.crowds import CrowdLabels, aggregate_crowd
    from fastbus.data.weaken import weaken
    from fastbus.errors import (
        CouplingError,
        DataError,
        FastbusError,
        ImpossibleError,
        ImpossibleEvidenceWarning,
        InputError,
        NothingLearntWarning,
        SupervisionError,
        WeakLabelError,
    )
    from fastbus.inference.class_loop import ClassLoop
    from fastbus.inference.class_transition import ClassTransition
    from fastbus.inference.evolution import StateEvolution
    from fastbus.inference.evolution_build import build_evolution
    from fastbus.inference.infer import infer
    from fastbus.inference.posterior import Posterior
    from fastbus.inference.rank_report import lossless_rank, rank_error
    from fastbus.learner import WeakClassifier
    from fastbus.objective import WeakLoss, smoothing, unbiased_risk
    from fastbus.supervision import (
        ComplementaryLabel,
        ConfidenceDifference,
        CrowdLabel,
        LabelProportion,
        MultiInstance,
        NoisyLabel,
        PairComparison,
        PairSimilarity,
        PartialLabel,
        PositiveConfidence,
        PositiveUnlabeled,
        SemiSupervised,
        SimilarDissimilarUnlabeled,
        SimilarityConfidence,
        Supervision,
        UnlabeledUnlabeled,
        answers_from_table,
    )

__all__ = [
    "BagKFold",
    "Bags",
    "ClassLoop",
    "ClassTransition",
    "ComplementaryLabel",
    "ConfidenceDifference",
    "CouplingError",
    "CrowdLabel",
    "CrowdLabels",
    "DataError",
    "FastbusError",
    "ImpossibleError",
    "ImpossibleEvidenceWarning",
    "InputError",
    "LabelProportion",
    "MultiInstance",
    "NoisyLabel",
    "NothingLearntWarning",
    "PairComparison",
    "PairSimilarity",
    "PartialLabel",
    "PositiveConfidence",
    "PositiveUnlabeled",
    "Posterior",
    "SemiSupervised",
    "SimilarDissimilarUnlabeled",
    "SimilarityConfidence",
    "StateEvolution",
    "Supervision",
    "SupervisionError",
    "UnlabeledUnlabeled",
    "WeakClassifier",
    "WeakLabelError",
    "WeakLoss",
    "__version__",
    "aggregate_crowd",
    "answers_from_table",
    "bag_sequence",
    "build_evolution",
    "infer",
    "lossless_rank",
    "oracle",
    "rank_error",
    "smoothing",
    "testing",
    "unbiased_risk",
    "weak_accuracy",
    "weaken",
]

# where each public name lives; loaded on first use, so that `fastbus --help` need not wait for
# torch
_HOME = {
    "BagKFold": "bag_folds",
    "Bags": "bags",
    "CrowdLabels": "crowds",
    "aggregate_crowd": "crowds",
    "WeakClassifier": "learner",
    "bag_sequence": "bag_folds",
    "weak_accuracy": "bag_folds",
    "ClassLoop": "inference.class_loop",
    "ClassTransition": "inference.class_transition",
    "infer": "inference.infer",
    "Posterior": "inference.posterior",
    "StateEvolution": "inference.evolution",
    "build_evolution": "inference.evolution_build",
    "lossless_rank": "inference.rank_report",
    "rank_error": "inference.rank_report",
    "WeakLoss": "objective",
    "smoothing": "objective",
    "unbiased_risk": "objective",
    "weaken": "data.weaken",
}
_SUBMODULES = ("oracle", "testing")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fastbus' has no attribute {name!r}")
    if name in _SUBMODULES:
        return importlib.import_module(f"fastbus.{name}")
    home = _HOME.get(name, "errors" if name.endswith(("Error", "Warning")) else "supervision")
    value = getattr(importlib.import_module(f"fastbus.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
