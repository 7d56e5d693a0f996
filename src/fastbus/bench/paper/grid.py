"""The grid: every cell of every setting, read from one small file a setting in the folder `grid`.

A cell names its images, how weak labels are drawn from them, and what the paper reports for it: mean and standard
deviation of each method, or a sentence why there is nothing to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from fastbus.bench.paper.sets import SETS
from fastbus.errors import DataError, InputError

SETTINGS = (
    "multi_instance",
    "label_proportion",
    "pair_comparison",
    "pair_similarity",
    "similarity_confidence",
    "confidence_difference",
    "partial_label",
    "noisy_label",
    "positive_unlabeled",
    "semi_supervised",
)
METRICS = ("accuracy", "balanced accuracy", "matched accuracy")
Figure = tuple[float, float] | None  # mean and standard deviation in percent; None: the paper could not run it


@dataclass(frozen=True)
class Cell:
    """One column of a table: a setting on a set of images with one size of weak labels."""

    setting: str
    data: str
    name: str
    metric: str
    draw: Mapping[str, Any] = field(hash=False)  # what `fastbus.bench.paper.draw` makes of it
    paper: Mapping[str, Figure] = field(hash=False)  # the paper's methods and figures
    without: str = ""  # why the paper has no figure

    @property
    def key(self) -> tuple[str, str, str]:
        return self.setting, self.data, self.name

    @property
    def title(self) -> str:
        return f"{self.setting} {self.data} {self.name}"


@cache
def read_grid() -> tuple[Cell, ...]:
    """All cells, in the order of the settings."""
    return tuple(cell for setting in SETTINGS for cell in _read(setting)[0])


def tiny_cells(data: str) -> list[Cell]:
    """One small cell of every setting on the given images."""
    cells = []
    for setting in SETTINGS:
        first, draw = _read(setting)[0][0], _read(setting)[1]
        cells.append(replace(first, data=data, name="tiny", draw=draw, paper={}, without="a trial of the pipeline"))
    return cells


def select(
    cells: Sequence[Cell], settings: Sequence[str] | None, data: Sequence[str] | None, names: Sequence[str] | None
) -> list[Cell]:
    """The cells asked for; a name that none of them has is an error."""
    for flag, wanted, known in (
        ("--settings", settings, SETTINGS),
        ("--dataset", data, tuple(dict.fromkeys(cell.data for cell in cells))),
        ("--cells", names, tuple(dict.fromkeys(cell.name for cell in cells))),
    ):
        for name in wanted or ():
            if name not in known:
                raise InputError(f"{flag} {name!r}; expected some of {', '.join(known)}. Check the spelling.")
    chosen = [
        cell
        for cell in cells
        if (settings is None or cell.setting in settings)
        and (data is None or cell.data in data)
        and (names is None or cell.name in names)
    ]
    if not chosen:
        raise InputError("no cell has that setting, data set and name; expected one at least. Look at --list.")
    return chosen


@cache
def _read(setting: str) -> tuple[tuple[Cell, ...], dict[str, Any]]:
    import yaml

    text = (files("fastbus.bench.paper") / "grid" / f"{setting}.yaml").read_text(encoding="utf-8")
    entry = yaml.safe_load(text)
    if entry["setting"] != setting or entry["metric"] not in METRICS:
        raise DataError(f"{setting}.yaml: setting {entry['setting']!r}, metric {entry['metric']!r}; expected {setting} "
                        f"and one of {', '.join(METRICS)}. Correct the file.")  # fmt: skip
    cells = []
    for row in entry["cells"]:
        if row["data"] not in SETS:
            raise DataError(f"{setting}.yaml: data {row['data']!r}; expected one of {', '.join(SETS)}. Correct it.")
        told = row["paper"]
        figures = {} if isinstance(told, str) else {name: _figure(value) for name, value in told.items()}
        without = told if isinstance(told, str) else ""
        cells.append(Cell(setting, row["data"], row["name"], entry["metric"], row["draw"], figures, without))
    return tuple(cells), entry["tiny"]


def _figure(value: Sequence[float] | None) -> Figure:
    return None if value is None else (float(value[0]), float(value[1]))
