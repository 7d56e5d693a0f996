"""One method, repeated: the mean and the deviation of each figure that its runs return."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastbus.bench.tables.entries import Entry, Kind, Progress


class Method(NamedTuple):
    """A contender: `once(repeat)` returns one figure for each task."""

    name: str
    kind: Kind
    config: dict[str, Any]
    once: Callable[[int], Sequence[float]]
    note: str = ""


def repeated(data: str, tasks: Sequence[str], method: Method, repeats: int, progress: Progress) -> Iterator[Entry]:
    """The entries of a method, unless the results hold all of them already."""
    if not any(progress.wants(data, task, method.name, method.config) for task in tasks):
        return
    start, figures = time.perf_counter(), []
    for repeat in range(repeats):
        progress(f"{data}: {method.name}, {repeat + 1} of {repeats}")
        figures.append(method.once(repeat))
    seconds = time.perf_counter() - start
    values = np.asarray(figures, dtype=np.float64)  # (repeats, tasks)
    spread = values.std(0, ddof=1) if repeats > 1 else [None] * len(tasks)
    for task, value, deviation in zip(tasks, values.mean(0), spread, strict=True):
        yield Entry(
            data,
            task,
            method.name,
            method.kind,
            float(value),
            None if deviation is None else float(deviation),
            repeats,
            seconds,
            method.config,
            method.note,
        )
