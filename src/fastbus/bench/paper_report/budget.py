"""Every method at one budget of views: the same network, images, augmented images and number of steps for all."""

from __future__ import annotations

from collections.abc import Sequence

from fastbus.bench.paper.methods import EQUAL, SUPERVISED
from fastbus.bench.paper_report.summary import Group, Row, figure_text, percent

HEADINGS = (
    "images", "cell", "budget", "method", "ours", "seeds", "paper", "ours − paper", "network", "rate", "epochs",
    "views", "seconds", "",
)  # fmt: skip
NUMERIC = (2, 4, 5, 6, 7, 9, 10, 11, 12)
BELOW = 3.0  # points behind the paper's figure that want a reason
MARK, CHOSEN = "†", "*"
SINGLE, DEAD, LACKING = "predict one class", "ended in no numbers", "give a class up"
# why a method stays behind the paper's figure for it, by setting and method
REASONS: dict[tuple[str, str], str] = {}


def budget_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """One line a cell and a method, the best of a cell first."""
    return [_line(row, group) for row in rows for group in _groups(row)]


def budget_reasons(rows: Sequence[Row]) -> list[str]:
    """Of every method that is marked, why it stays behind the paper's figure, or that nobody knows yet."""
    behind = dict.fromkeys((row.cell.setting, group.method) for row in rows for group in _groups(row) if _behind(group))
    return [f"{MARK} {method}: {REASONS.get((setting, method), 'not explained yet')}" for setting, method in behind]


def rates_tried(rows: Sequence[Row]) -> list[str]:
    """How the learning rates that are marked were chosen, a sentence for each set of images."""
    told = []
    for data in dict.fromkeys(row.cell.data for row in rows):
        trials = [group for row in rows if row.cell.data == data for group in row.trials]
        rates = sorted({group.config["learning_rate"] for group in trials if "learning_rate" in group.config})
        views = sorted({group.budget for group in trials if group.budget is not None})
        if len(rates) > 1:
            told.append(
                f"{CHOSEN} {data}: the method's best of {', '.join(f'{rate:g}' for rate in rates)} by weak labels kept "
                f"back from a trial of {' or '.join(f'{number:,}' for number in views)} views; the ceiling has the "
                "recipe's"
            )
    return told


def _groups(row: Row) -> list[Group]:
    """What was run at one budget, and methods of the paper whose runs would be those of another one."""
    run = {group.method for group in row.alike}
    groups = []
    for group in row.alike:
        others = [group._replace(method=name) for name, equal in EQUAL.items() if equal == group.method]
        groups += [group, *(other for other in others if other.method not in run and other.paper is not None)]
    return groups


def _line(row: Row, group: Group) -> tuple[str, ...]:
    cell = row.cell
    gap = "–" if group.paper is None else f"{group.mean - group.paper[0]:+.2f}".replace("-", "−")
    equal = group.runs[0]["method"]
    notes = [MARK] * _behind(group) + [_failed(group)] + [f"equals {equal}"] * (equal != group.method)
    return (
        cell.data, cell.name, f"{(group.budget or 0) / 1e6:.2f} M", group.method,
        percent(group.mean, group.spread), str(len(group.runs)), figure_text(group.paper), gap,
        group.config["backbone"], _rate(group), str(group.config["epochs"]), f"{group.average('views') / 1e6:.2f} M",
        f"{group.average('seconds'):.0f}", " ".join(filter(None, notes)),
    )  # fmt: skip


def _rate(group: Group) -> str:
    """Its learning rate; older lines may not tell."""
    rate = group.config.get("learning_rate")
    chosen = "tuned" in group.runs[0]["variant"] and group.method != SUPERVISED  # the ceiling has the recipe's
    return "–" if rate is None else f"{rate:g}{CHOSEN * chosen}"


def _failed(group: Group) -> str:
    """What an accuracy may hide: a network that knows one class alone or all but one, or that ended in no numbers."""
    dead = sum(not run["predicted_shares"] for run in group.runs if "predicted_shares" in run)  # older lines have none
    found = ((dead, DEAD), (group.single, SINGLE), (group.lacking, LACKING))
    told = [f"{number} of {len(group.runs)} {what}" for number, what in found if number]
    return ", ".join(told)


def _behind(group: Group) -> bool:
    return group.paper is not None and group.mean < group.paper[0] - BELOW
