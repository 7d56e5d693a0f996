"""Pictures of the report: ours, the paper and the ceiling cell by cell, and learning curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fastbus.bench.paper.grid import Cell
from fastbus.bench.paper.methods import OWN
from fastbus.bench.paper_report.summary import Group, Row
from fastbus.report.style import MAIN, QUIET, SECOND, SERIES, THIRD, WIDTH, inline_svg, plotting

NUMBER = 0.11  # inches that a line's number takes


def overview(rows: Sequence[Row]) -> str:
    """One line a cell: the paper's figure, ours with every seed, the ceiling; cells without runs say so."""
    with plotting() as Figure:  # noqa: N806
        figure = Figure(figsize=(2 * WIDTH, 0.5 + 0.27 * len(rows)))
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            paper = row.cell.paper.get("FastBUS")
            if paper is not None:
                axes.errorbar(paper[0], place, xerr=paper[1], fmt="s", color=SECOND, ms=4.5, lw=1)
            if row.ceiling is not None:
                axes.plot(row.ceiling.mean, place, "|", color=QUIET, ms=11, mew=2)
            if row.ours is not None:
                axes.plot(row.ours.scores, [place] * len(row.ours.scores), "o", color=MAIN, ms=3, alpha=0.4)
                axes.plot(row.ours.mean, place, "D", color=MAIN, ms=5)
            else:
                axes.annotate(row.state, (0.99, place), xycoords=("axes fraction", "data"), ha="right", va="center",
                              fontsize=7.5, color=QUIET)  # fmt: skip
        for marker, colour, name in (("D", MAIN, "ours"), ("s", SECOND, "paper's FastBUS"), ("|", QUIET, "ceiling")):
            axes.plot([], [], marker, color=colour, label=name)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
        axes.set_yticks(range(len(rows)), [f"{row.cell.setting}  {row.cell.name}" for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("percent of the test images")
        axes.grid(axis="both")
        return inline_svg(figure, "overview", "Our accuracy beside the paper's and the ceiling, cell by cell")


def curves(row: Row, name: str) -> str:
    """Test accuracy of the averaged weights after each epoch, every seed a line; the paper's figure dashed."""
    with plotting() as Figure:  # noqa: N806
        figure = Figure(figsize=(WIDTH, 2.5))
        axes = figure.add_subplot()
        for at, group in enumerate(row.groups):
            colour = MAIN if group.method == "fastbus" else SERIES[(at + 2) % len(SERIES)]
            _lines(axes, group, colour, group.method)
        if row.ceiling is not None:
            _lines(axes, row.ceiling, QUIET, "ceiling")
        paper = row.cell.paper.get("FastBUS")
        if paper is not None:
            axes.axhline(paper[0], color=SECOND, ls="--", lw=1.2, label="paper's FastBUS")
        axes.set_xlabel("share of the epochs")
        axes.set_ylabel("percent")
        axes.legend(loc="lower right")
        axes.grid()
        return inline_svg(figure, name, f"Learning curves of {row.cell.title}")


def held_out(cell: Cell, groups: Sequence[tuple[int, Group]], name: str) -> str:
    """Log-likelihood of the weak labels that were kept back, each line with its number at its end."""
    with plotting() as Figure:  # noqa: N806
        height = max(2.0, NUMBER * len(groups))
        figure = Figure(figsize=(WIDTH, height + 0.5))
        axes = figure.add_subplot()
        for at, (_, group) in enumerate(groups):
            _lines(axes, group, SERIES[at % len(SERIES)], "", "held_out")
        low, high = axes.get_ylim()
        ends = [kept for _, group in groups if (kept := group.kept_back) is not None]  # all have some
        for at, place in enumerate(apart(ends, (high - low) * NUMBER / height, low, high)):
            axes.annotate(str(groups[at][0]), (1.0, place), xytext=(4, 0), textcoords="offset points", va="center",
                          fontsize=7, color=SERIES[at % len(SERIES)], annotation_clip=False)  # fmt: skip
        axes.set_xlabel("share of the epochs")
        axes.set_ylabel("nats a bag")
        axes.grid()
        return inline_svg(figure, name, f"Held-out weak labels of {cell.title}")


def apart(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """The places from low to high nearest to these, none nearer than `least` to the next, in the same order.

    Crowds are spread about their middle, all others stay. Where there is no room for all, they go beyond `high`.
    """
    order = sorted(range(len(places)), key=lambda at: places[at])
    crowds: list[tuple[float, int]] = []  # middle of each, less what its members are pushed up, and their number
    for rank, at in enumerate(order):
        middle, number = places[at] - rank * least, 1
        while crowds and crowds[-1][0] >= middle:
            other, more = crowds.pop()
            middle, number = (other * more + middle * number) / (more + number), more + number
        crowds.append((middle, number))
    top = max(low, high - (len(order) - 1) * least)
    bases = [min(max(middle, low), top) for middle, number in crowds for _ in range(number)]
    moved = list(places)
    for rank, at in enumerate(order):
        moved[at] = bases[rank] + rank * least
    return moved


def _lines(axes: Any, group: Group, colour: str, label: str, field: str = "accuracy") -> None:
    for at, run in enumerate(group.runs):
        points = [point for point in run["curve"] if field in point]
        last = points[-1]["epoch"]
        x = [point["epoch"] / last for point in points]
        axes.plot(x, [point[field] for point in points], color=colour, lw=1.2, label=None if at else label)


def rivals(rows: Sequence[Row]) -> str | None:
    """Every method at one budget, cell by cell, the best first: ours, other methods, true labels, the paper's figures.

    Of a cell with several budgets the one that most methods were run at, of equal ones the largest.
    """
    shown = [row for row in rows if any(group.method not in OWN for group in row.alike)]
    if not shown:
        return None
    most = max(len(_most_methods(row)) for row in shown)
    with plotting() as Figure:  # noqa: N806
        columns = min(2, len(shown))
        lines = -(-len(shown) // columns)
        figure = Figure(figsize=(WIDTH * columns, lines * (0.9 + 0.24 * most)), layout="constrained")
        for at, row in enumerate(shown):
            axes = figure.add_subplot(lines, columns, at + 1)
            groups = _most_methods(row)
            for place, group in enumerate(groups):
                colour = {"fastbus": MAIN, "supervised": QUIET}.get(group.method, THIRD)
                axes.plot(group.scores, [place] * len(group.scores), "o", color=colour, ms=3, alpha=0.4)
                axes.plot(group.mean, place, "D" if group.method == "fastbus" else "o", color=colour, ms=5)
                if group.paper is not None:
                    axes.errorbar(group.paper[0], place, xerr=group.paper[1], fmt="s", color=SECOND, ms=4, lw=1)
            names = ["true labels" if group.method == "supervised" else group.method for group in groups]
            axes.set_yticks(range(len(groups)), names)
            axes.set_ylim(most - 0.5, -0.5)
            axes.set_title(f"{row.cell.data}  {row.cell.setting}  {row.cell.name}", loc="left")
            axes.set_xlabel(f"percent, {(groups[0].budget or 0) / 1e6:g} million views")
            axes.grid(axis="both")
        return inline_svg(figure, "rivals", "All methods at one budget of views, cell by cell")


def _most_methods(row: Row) -> list[Group]:
    budgets = Counter(group.budget or 0 for group in row.alike)
    budget = max(budgets, key=lambda views: (budgets[views], views))
    return [group for group in row.alike if group.budget == budget]
