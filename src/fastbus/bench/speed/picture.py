"""The picture of growth: three panels, both axes logarithmic, one line a rival."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from fastbus.bench.results import Record
from fastbus.bench.speed.growth import PANELS

COLOURS = {"infer": "#3b82c4", "inner": "#2f9e76", "plain": "#d9822b"}
NAMES = {"infer": "infer", "inner": "kernel alone", "plain": "plain torch"}
CLOSE = 0.25  # decades between the ends of two lines whose powers would overlap
INK, QUIET = "#101a2b", "#8a94a6"
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": QUIET,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def growth_png(records: Sequence[Record], device: str) -> bytes | None:
    """PNG bytes; None without matplotlib or without growth."""
    found = {record["name"]: record for record in records if record["part"] == "growth"}
    if not found:
        return None
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for axes, names in zip(panels, (["growth/B"], ["growth/C"], ["growth/K", "growth/large"]), strict=True):
            axes.set(xscale="log", yscale="log", xlabel=PANELS[names[0]][0])
            for name in names:
                if name in found:
                    _draw(axes, found[name], large=name == "growth/large")
            axes.set_title(PANELS[names[0]][1], loc="left")
            axes.grid(True)
            axes.margins(x=0.14)
        _guides(panels)
        panels[0].set_ylabel("seconds a call")
        shown: dict[str, Any] = {}
        for axes in panels:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                shown.setdefault(label, handle)
        figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=len(shown), fontsize=8.5)
        about = next(iter(found.values()))["device"]
        title = f"One E-step of label proportions on {about}; powers where work dominates"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=144, facecolor="white")
    return buffer.getvalue()


def _draw(axes: Any, record: Record, large: bool) -> None:
    """Lines of all rivals; at the end of each the power of the size that it grows like."""
    ends: list[tuple[tuple[float, float], str, str]] = []
    for name, series in record["seconds"].items():
        points = [(s, t) for s, t in zip(record["sizes"], series, strict=True) if t is not None]
        axes.plot(
            *zip(*points, strict=True),
            marker="s" if large else "o",
            markersize=3.5,
            linewidth=1.6,
            linestyle="--" if large else "-",
            color=COLOURS[name],
            label="infer, one bag of one class" if large else NAMES[name],
        )
        slope = record["powers"][name]["slope"]
        if not math.isnan(slope):
            letter = "K" if large else record["name"][-1]
            ends.append((points[-1], f"${letter}^{{{slope:.2f}}}$", COLOURS[name]))
    for (x, y), text, colour in ends:
        near = [other for (_, other), *_ in ends if other != y and abs(math.log10(other / y)) < CLOSE]
        up = 7 * sum(math.copysign(1, y - other) for other in near)  # of two lines that end together
        axes.annotate(text, (x, y), (6, up), textcoords="offset points", va="center", fontsize=9.5, color=colour)


def _guides(panels: Any) -> None:
    """A grey line of slope one through each panel, to compare slopes by eye."""
    low, high = panels[0].get_ylim()
    for axes in panels:
        left, right = axes.get_xlim()
        line = [low * 1.3, low * 1.3 * right / left]
        axes.plot([left, right], line, color=QUIET, linewidth=0.9, linestyle=":", zorder=0, label="in proportion")
        axes.set_xlim(left, right)
    panels[0].set_ylim(low, high)
