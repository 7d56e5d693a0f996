"""Weak data of tables for WeakClassifier: bags with their ids, weak labels keyed by them, names of classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastbus.bags import Bags
from fastbus.data.dataset import WeakData
from fastbus.learner import WeakClassifier
from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination
from fastbus.training.inputs import CLASS_VALUED, parts_of
from fastbus.training.noise import needs_estimate


def rows_and_weak(supervision: Supervision, data: WeakData) -> tuple[Bags, Any]:
    """Bags and weak labels as `WeakClassifier.fit` takes them, so that complaints name the bags of the table."""
    bags = replace(data.bags, order=np.arange(data.bags.num_instances))
    fitted = data.fit_weak(supervision)
    given = fitted if isinstance(supervision, Combination) else (fitted,)
    weak = tuple(_keyed(part, entry, data) for part, entry in zip(parts_of(supervision), given, strict=True))
    return bags, weak if isinstance(supervision, Combination) else weak[0]


def _keyed(part: Supervision, weak: Any, data: WeakData) -> Any:
    if part.level == "bag":
        return dict(zip(data.bags.ids.tolist(), weak, strict=True))
    codes = part.title in CLASS_VALUED and (weak.ndim == 1 or part.title == "crowd_label")
    if codes and data.classes is not None:
        return np.asarray([*data.classes, ""])[weak]  # -1, missing, is the last
    return weak


def fit_resumably(
    classifier: WeakClassifier, supervision: Supervision, data: WeakData, run: Path, progress: bool
) -> None:
    """Fit with the folder of a run; where it has a checkpoint, go on from there."""
    bags, weak = rows_and_weak(supervision, data)
    classifier.set_params(folder=str(run), resume=True, verbose=int(progress))
    classifier.fit(bags, weak)
    classifier.set_params(folder=None, resume=False, verbose=0)  # a saved classifier knows no paths


def report(classifier: WeakClassifier, supervision: Supervision, data: WeakData, run: Path) -> str:
    """Write the run's report; returns why there is none, nothing where there is one."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        return "install fastbus[report]"
    if needs_estimate(classifier.supervision_):  # another method trains without what too few rows tell
        return "it wants what the rule leaves open, such as --option rate=0.2 or prior=0.4"
    from fastbus.report import write_report

    bags, weak = rows_and_weak(supervision, data)
    write_report(run, classifier, bags, weak, labels=data.labels, title=f"{supervision.title}: {run.name}")
    return ""


def scores(classifier: WeakClassifier, data: WeakData) -> dict[str, Any]:
    """The last metrics, and where true labels are known, accuracy on them beside that of the most frequent class."""
    found: dict[str, Any] = {
        name: value
        for name, value in (classifier.history_[-1] if classifier.history_ else {}).items()
        if isinstance(value, float) and name != "epoch"
    }
    labels = data.labels
    if labels is None or labels.ndim != 1 or not (labels >= 0).any():
        return found
    known = labels >= 0
    bags = replace(data.bags, order=np.arange(len(labels)))
    names = None if data.classes is None else np.asarray(data.classes)
    truth = labels[known] if names is None else names[labels[known]]
    predicted = classifier.predict(bags)
    if predicted.ndim != 1:
        return found
    counts = np.unique(truth, return_counts=True)[1]
    return found | {
        "accuracy_on_these_instances": float((predicted[known] == truth).mean()),
        "most_frequent_class": float(counts.max() / counts.sum()),
    }
