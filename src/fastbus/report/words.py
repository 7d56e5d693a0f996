"""Plain words: what a supervision says, how a weak label is written down, where a run took place."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from fastbus.supervision.base import Supervision
from fastbus.supervision.combine import Combination

LONGEST = 60

SENTENCES = {
    "multi_instance": "Each bag says, for a class, whether at least one of its instances belongs to it.",
    "label_proportion": "Each bag says how many of its instances belong to a class, not which ones.",
    "pair_comparison": "Each bag is a pair, and says which of the two instances is the more positive one.",
    "pair_similarity": "Each bag is a pair, and says whether both instances have the same class.",
    "similarity_confidence": "Each bag is a pair with the probability that both instances have the same class.",
    "confidence_difference": "Each bag is a pair, and says how much more likely positive the second instance is.",
    "positive_confidence": "Each instance was drawn as a positive, and comes with the probability that it is one.",
    "partial_label": "Each instance comes with a set of candidate classes; the true class is among them.",
    "complementary_label": "Each instance comes with classes to which it does not belong.",
    "noisy_label": "Each instance comes with one class label that may be wrong.",
    "crowd_label": "Each instance was labelled by several annotators, any of whom may be wrong.",
    "semi_supervised": "Some instances come with their true class, the others without a label.",
    "positive_unlabeled": "Some positive instances are known; of the others only the share of positives is known.",
    "unlabeled_unlabeled": "Each instance was drawn from one of several sets whose shares of positives are known.",
    "similar_dissimilar_unlabeled": "Pairs say whether both instances have the same class; others have no label.",
}


def describe(supervision: Supervision) -> str:
    """What the weak labels say, for a newcomer."""
    if isinstance(supervision, Combination):
        return " ".join(describe(part) for part in supervision.parts)
    known = SENTENCES.get(supervision.title)
    if known is not None:
        return known
    if supervision.bag_size is not None:
        return f"Each bag of {supervision.bag_size} instances carries one weak label, computed by a rule of its own."
    return "Each bag carries one weak label, computed from the classes of its instances by a rule of its own."


def options_text(supervision: Supervision) -> str:
    """Its options that are set, matrices by their shape."""
    if isinstance(supervision, Combination):
        return " & ".join(f"{part.title} {options_text(part)}".strip() for part in supervision.parts)
    shown = []
    for name, value in vars(supervision).items():
        if name.startswith("_") or value is None or callable(value) or name in ("labels", "values"):
            continue
        shape = getattr(value, "shape", None)
        shown.append(f"{name}={value!r}" if shape is None else f"{name}: {' × '.join(map(str, shape))} matrix")
    return f"({', '.join(shown)})" if shown else ""


def weak_text(value: Any) -> str:
    """One weak label in at most 60 characters."""
    array = np.asarray(value)
    text = ", ".join(map(_entry, array.reshape(-1).tolist()))
    if array.ndim:
        text = f"({text})"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _entry(value: Any) -> str:
    if isinstance(value, float):
        return "?" if value != value else f"{value:.3g}"
    return "?" if value is None else str(value)


def percent(value: float) -> str:
    return f"{100 * value:.1f}\u202f%" if math.isfinite(value) else "–"


def class_texts(classes: Sequence[Any]) -> tuple[str, ...]:
    """Class names as text: 3, not np.int64(3), and 3 for 3.0."""
    return tuple(f"{name:g}" if isinstance(name, float) else str(name) for name in np.asarray(classes).tolist())


def environment() -> dict[str, str]:
    """The machine and the versions that made a report."""
    packages = ("fastbus", "torch", "numpy", "scikit-learn", "pytorch-lightning")
    found = {"python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}
    found["processors"] = str(os.cpu_count())
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
