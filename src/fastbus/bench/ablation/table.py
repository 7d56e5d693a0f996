"""The ablation to look at: mean and deviation over seeds, the cost of a step, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastbus.bench.ablation.settings import SETTINGS
from fastbus.bench.ablation.variants import VARIANTS

if TYPE_CHECKING:
    from rich.console import RenderableType

Record = dict[str, Any]
HEADINGS = ("cell", "method", "score", "± seeds", "seeds", "against exact", "ms a step", "MB", "device")


class Line(NamedTuple):
    """All seeds of a cell and a method that ran for the same number of epochs."""

    cell: str
    method: str
    mean: float
    spread: float
    seeds: int
    gain: tuple[float, float] | None  # over exact on the same seeds, and its deviation
    milliseconds: float
    megabytes: float
    device: str


def summarise(records: Sequence[Record]) -> list[Line]:
    """One line for each cell and method, in the order of the grid."""
    groups: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        groups.setdefault((record["cell"], record["method"]), {})[record["seed"]] = record
    lines = []
    for cell in SETTINGS:
        exact = groups.get((cell, "exact"), {})
        for method in VARIANTS:
            runs = groups.get((cell, method))
            if not runs:
                continue
            scores = np.array([run["accuracy"] for run in runs.values()])
            paired = [runs[seed]["accuracy"] - exact[seed]["accuracy"] for seed in runs if seed in exact]
            gain = None if method == "exact" or not paired else (float(np.mean(paired)), float(np.std(paired)))
            lines.append(
                Line(
                    cell,
                    method,
                    float(scores.mean()),
                    float(scores.std()),
                    len(scores),
                    gain,
                    1e3 * float(np.median([run["seconds_per_step"] for run in runs.values()])),
                    float(np.median([run["peak_bytes"] for run in runs.values()])) / 1e6,
                    next(iter(runs.values()))["device"],
                )
            )
    return lines


def cells_of(line: Line) -> tuple[str, ...]:
    """A line as text."""
    gain = "" if line.gain is None else f"{100 * line.gain[0]:+.1f} ± {100 * line.gain[1]:.1f}"
    return (
        line.cell,
        line.method,
        f"{100 * line.mean:.1f}",
        f"{100 * line.spread:.1f}",
        str(line.seeds),
        gain,
        f"{line.milliseconds:.1f}",
        f"{line.megabytes:.0f}",
        line.device,
    )


def as_table(records: Sequence[Record]) -> RenderableType:
    from rich.table import Table

    table = Table(
        title="What learned messages add to exact inference",
        caption="percent: accuracy, for multi-label sets the mean average precision; gains are paired by seed",
    )
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index in (0, 1, 8) else "right")
    before = ""
    for line in summarise(records):
        if before and line.cell != before:
            table.add_section()
        before = line.cell
        table.add_row(*cells_of(line))
    return table


def as_markdown(records: Sequence[Record]) -> str:
    """The same as a Markdown page."""
    lines = [
        "# What learned messages add to exact inference",
        "",
        "Percent: accuracy on unseen single instances, for the multi-label sets (yeast, scene) the mean average",
        "precision. Gains are paired by seed. Written by `fastbus bench ablation`; every run is a line of",
        "ablation.jsonl beside this file.",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|" + "---|" * len(HEADINGS),
    ]
    lines += ["| " + " | ".join(cells_of(line)) + " |" for line in summarise(records)]
    meanings = [f"- {name}: {variant.meaning}" for name, variant in VARIANTS.items()]
    return "\n".join([*lines, "", *meanings, ""])
