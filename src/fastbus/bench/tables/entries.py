"""What a part of the tables has to say: one Entry a measured (or published) number, read from a Source of npz files.

Every part is a module with `NAMES` (its data sets) and `run(name, source, seeds, progress)`, which yields entries:

    def run(name: str, source: Source, seeds: int, progress: Progress) -> Iterator[Entry]:
        arrays = source.load("mil_musk1")
        if progress.wants(name, TASK, "fastbus", config):  # False where the results hold this number already
            progress("musk1: fastbus, shuffle 1 of 5")
            yield Entry(name, TASK, "fastbus", "ours", ...)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.bench.results import REPOSITORY
from fastbus.errors import DataError

Kind = Literal["ours", "trivial", "peer", "published"]


class Entry(NamedTuple):
    """One number of the table."""

    data: str  # "musk1"
    task: str  # what `value` is: "bag accuracy, 10-fold x 5", "test accuracy"
    method: str  # "fastbus", "majority", "crowd-kit GLAD", "published mi-SVM"
    kind: Kind
    value: float  # a share, 0 to 1
    spread: float | None  # standard deviation over the repeats, None for a single run
    repeats: int
    seconds: float  # of all repeats together; 0 for published figures
    config: dict[str, Any]  # everything that decides the number, as JSON
    note: str = ""

    def key(self, seeds: int) -> str:
        return entry_key(self.data, self.task, self.method, self.config, seeds)


def entry_key(data: str, task: str, method: str, config: dict[str, Any], seeds: int) -> str:
    """What makes two measurements the same one; neither the commit nor the machine is part of it."""
    return json.dumps([data, task, method, config, seeds], sort_keys=True)


class Progress:
    """Says where a run is, and which numbers it still has to find."""

    def __init__(self, say: Callable[[str], None], known: frozenset[str] = frozenset(), seeds: int = 1) -> None:
        self.say = say
        self.known = known
        self.seeds = seeds

    def __call__(self, text: str) -> None:
        self.say(text)

    def wants(self, data: str, task: str, method: str, config: dict[str, Any]) -> bool:
        """Whether this number is still to be measured; ask before the work, with the entry's own values."""
        return entry_key(data, task, method, config, self.seeds) not in self.known


class Source(NamedTuple):
    """The folder with the npz files."""

    folder: Path

    def load(self, name: str) -> dict[str, NDArray[Any]]:
        """The arrays of `name`.npz."""
        path = self.folder / f"{name}.npz"
        if not path.is_file():
            raise DataError(f"{path}: no such file; expected the arrays of {name}. Pass their folder as --data DIR.")
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}


def find_source(folder: str | None) -> Source:
    """The folder given, else shared/data beside the current directory or beside the repository."""
    candidates = [Path(folder)] if folder else [Path.cwd().parent, REPOSITORY.parent]
    places = candidates if folder else [parent / "shared" / "data" for parent in candidates]
    for place in places:
        if place.is_dir():
            return Source(place)
    tried = " or ".join(str(place) for place in dict.fromkeys(places))
    raise DataError(f"{tried}: no such folder; expected one with the npz files of the tables. Pass it as --data DIR.")
