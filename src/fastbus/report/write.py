"""write_report: a fitted classifier and its data to report.html and report.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastbus.report.numbers import Numbers, collect
from fastbus.report.page import render
from fastbus.training.checkpoint import write_atomically

PAGE, NUMBERS = "report.html", "report.json"


class Report(NamedTuple):
    """Where the page and its numbers were written, and the numbers themselves."""

    page: Path
    json: Path
    numbers: Numbers


def write_report(
    folder: str | Path,
    classifier: Any,
    X: Any,
    weak: Any,
    bags: Any = None,
    labels: Any = None,
    title: str = "What was learnt from weak labels",
) -> Report:
    """Write report.html, one file that needs no network and no scripts, and report.json with its numbers.

    classifier: a fitted WeakClassifier. X, weak, bags: as its `fit` takes them. labels: true labels of the rows
        (N,) as class names or positions, -1 where unknown; (N, C) 0/1 where an instance may have several classes.
    """
    numbers = collect(classifier, X, weak, bags, labels, title)
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    page = render(numbers)
    text = json.dumps(as_json(numbers), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    # names from the data may hold lone surrogates, which no file can
    write_atomically(text.encode("utf-8", "replace"), place / NUMBERS)
    write_atomically(page.encode("utf-8", "replace"), place / PAGE)
    return Report(place / PAGE, place / NUMBERS, numbers)


def as_json(value: Any) -> Any:
    """Tuples with names as objects, arrays as lists, NaN and infinity as null."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: as_json(entry) for name, entry in zip(value._fields, value, strict=True)}
    if isinstance(value, dict):
        return {str(name): as_json(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(entry) for entry in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return as_json(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
