"""Runs added up: one group for each cell, method and configuration, and what stands beside it.

The group that counts is the one trained by the recipe of the product, however it was asked for; where there is none
yet, the newest one with the same entries on other data or after another pretraining, else by an earlier recipe or in
fewer epochs. All others are ablation lines, named by what their configuration changes; they stand below, however good
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastbus.bench.paper.draw import ceiling_cell
from fastbus.bench.paper.grid import Cell, Figure
from fastbus.bench.paper.methods import PAPER_NAMES, SUPERVISED
from fastbus.bench.paper.plan import product_job
from fastbus.bench.paper.rates import trained_by
from fastbus.bench.paper.sets import MISSING_FILES
from fastbus.bench.results import Record

ONE_CLASS = 0.99  # of the test images
FEW = 0.25  # of an even share: what is predicted less often is given up
QUIET = ("supervision", "images", "bags", "num_classes", "steps_per_epoch", "draw")  # follow from the rest

# entries of recipes that the product had for a while, where runs had asked for them by --set before
FORMER: dict[str, tuple[dict[str, Any], ...]] = {
    "noisy_label": ({"decided": True, "epochs": 100, "rows": 128, "learning_rate": 0.03},)
}


class Group(NamedTuple):
    """All seeds of a cell and a method under one configuration."""

    cell: Cell
    method: str
    runs: tuple[Record, ...]  # by seed

    @property
    def scores(self) -> list[float]:
        return [run["accuracy"] for run in self.runs]

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds (n - 1), None for a single one."""
        return float(np.std(self.scores, ddof=1)) if len(self.runs) > 1 else None

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.runs[0]["config"]
        return config

    @property
    def standing(self) -> int:
        """3 by the recipe that the product has now, 2 by its entries, 1 by an earlier one or cut short, 0 a trial."""
        first, product = self.runs[0], product_job(self.cell, self.method)
        if product is not None and first["fingerprint"] == product.fingerprint:
            return 3
        if self.config["held_out"] or self.budget is not None:
            return 0
        if product is None:
            return 0 if first["variant"] else 1
        entries = product.recipe.as_dict()
        if trained_by(self.config, entries):
            return 2
        former = any(trained_by(self.config, entries | changes) for changes in FORMER.get(self.cell.setting, ()))
        return 0 if first["variant"] and not former and not self.shortened else 1

    @property
    def shortened(self) -> int:
        """The epochs of the product's recipe, where all else is as it says and there were fewer; else 0."""
        product = product_job(self.cell, self.method)
        if product is None or self.config["epochs"] >= product.recipe.epochs:
            return 0
        mine = ("epochs", "pretrain") if self.method == SUPERVISED else ("epochs",)  # true labels need no such start
        same = trained_by(self.config, product.recipe.as_dict() | {name: self.config.get(name, 0) for name in mine})
        return product.recipe.epochs if same else 0

    @property
    def current(self) -> bool:
        """Whether it was trained by the recipe that the product has now."""
        return self.standing == 3

    @property
    def budget(self) -> int | None:
        """Views of a comparison at equal ones; older lines know of none."""
        return self.runs[0].get("budget")

    @property
    def asked(self) -> str:
        """Entries of the recipe that were asked for beside the budget and a learning rate."""
        entries = self.runs[0]["variant"].split(", ")
        return ", ".join(entry for entry in entries if not entry.startswith(("views=", "learning_rate=")))

    @property
    def paper(self) -> Figure:
        names = {name: key for key, name in PAPER_NAMES.items()}
        return self.cell.paper.get(names.get(self.method, ""))

    @property
    def single(self) -> int:
        """How many runs call all test images by one class; older lines do not tell."""
        return sum(max(run.get("predicted_shares") or [0.0]) > ONE_CLASS for run in self.runs)

    @property
    def lacking(self) -> int:
        """How many runs give a class up, but for those that call everything by one."""
        shares = [run.get("predicted_shares") or [1.0] for run in self.runs]
        return sum(min(some) < FEW / len(some) and max(some) <= ONE_CLASS for some in shares)

    @property
    def kept_back(self) -> float | None:
        """The likelihood at the end of weak labels that were kept back, nats a bag; None where none were."""
        found = [value for run in self.runs if (value := run["curve"][-1].get("held_out")) is not None]
        return float(np.mean(found)) if found else None

    def average(self, field: str) -> float:
        return float(np.mean([run[field] for run in self.runs]))

    def spent(self, field: str) -> float:
        """Views or seconds of a run, those before its labels included."""
        before = [(run.get("pretraining") or {}).get(field, 0) for run in self.runs]
        return self.average(field) + float(np.mean(before))


class Row(NamedTuple):
    """One cell: what counts for each method, the ceiling, and ablations."""

    cell: Cell
    groups: tuple[Group, ...]  # fastbus first
    ceiling: Group | None
    ablations: tuple[tuple[Group, str], ...]  # with what they change
    alike: tuple[Group, ...] = ()  # at one budget of views, the newest of each method, the best first
    trials: tuple[Group, ...] = ()  # of these methods at several rates, some weak labels kept back

    @property
    def ours(self) -> Group | None:
        return next((group for group in self.groups if group.method == "fastbus"), None)

    @property
    def state(self) -> str:
        """Why there is no figure of ours."""
        if self.ours is not None:
            return ""
        if self.alike:
            return "at one budget alone, below"
        return "official files needed" if self.cell.data in MISSING_FILES else "not run"


def summarise(cells: Sequence[Cell], records: Sequence[Record]) -> list[Row]:
    """A row for every cell, run or not."""
    groups: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in records:
        key = (record["setting"], record["data"], record["cell"], record["method"], record["fingerprint"])
        seeds = groups.pop(key, {})  # put it last: the newest group is the one with the newest run
        groups[key] = seeds | {record["seed"]: record}
    found: dict[tuple[str, str, str], tuple[list[Group], dict[str, Group]]] = {}
    for cell in cells:
        own = [
            Group(cell, key[3], tuple(runs[seed] for seed in sorted(runs)))
            for key, runs in groups.items()
            if key[:3] == cell.key
        ]
        main: dict[str, Group] = {}
        for group in own:
            standing = group.standing
            if standing and (group.method not in main or standing >= main[group.method].standing):
                main[group.method] = group
        found[cell.key] = own, main
    rows = []
    for cell in cells:
        others, golden = found[ceiling_cell(cell, cells).key]
        shared = [group for group in others if group.method == SUPERVISED and group.cell.key != cell.key]
        rows.append(_row(cell, *found[cell.key], golden.get(SUPERVISED), shared))
    return rows


def _row(cell: Cell, own: list[Group], main: dict[str, Group], ceiling: Group | None, shared: Sequence[Group]) -> Row:
    """shared: ceilings of another cell that has the same images."""
    methods = sorted(main, key=lambda name: (name != "fastbus", name))
    alike = _compared([group for group in (*shared, *own) if group.budget is not None and not group.config["held_out"]])
    trials = tuple(group for group in own if group.budget is not None and group.config["held_out"])
    # what another method had at a budget before is no ablation of it
    renewed = {(group.budget, group.asked, group.method) for group in alike if group.method != "fastbus"}
    changed = (
        group
        for group in own
        if group not in main.values() and group not in alike and group not in trials
        and (group.budget, group.asked, group.method) not in renewed
    )  # fmt: skip
    beside = {(group.budget, group.method): group for group in alike} | {(None, name): main[name] for name in main}
    return Row(
        cell,
        tuple(main[name] for name in methods if name != SUPERVISED),
        ceiling,
        tuple((group, difference(group, beside.get((group.budget, group.method)))) for group in changed),
        tuple(sorted(alike, key=lambda group: (-(group.budget or 0), -group.mean))),
        trials,
    )


def _compared(groups: Sequence[Group]) -> list[Group]:
    """Of each budget, the newest group of every method under the entries that most methods were run with."""
    common: dict[tuple[int | None, str], dict[str, Group]] = {}
    for group in groups:
        common.setdefault((group.budget, group.asked), {})[group.method] = group
    largest: dict[int | None, dict[str, Group]] = {}
    for (budget, _), methods in common.items():
        if len(methods) >= len(largest.get(budget, ())):
            largest[budget] = methods
    return [group for methods in largest.values() for group in methods.values()]


def difference(group: Group, main: Group | None) -> str:
    """What the configuration changes, entry by entry."""
    if main is None:
        return group.runs[0]["variant"] or "another recipe"
    ours, theirs = group.config, main.config
    # an entry that an older line does not have was off
    pairs = {
        name: (theirs.get(name) or 0, ours.get(name) or 0) for name in sorted({*ours, *theirs}) if name not in QUIET
    }
    changed = [f"{name} {_shown(*pair)} → {_shown(*pair[::-1])}" for name, pair in pairs.items() if pair[0] != pair[1]]
    return ", ".join(changed) or "the same recipe, other data"


def _shown(value: Any, beside: Any) -> str:
    """A switch that is off is False beside one that is on, not 0."""
    return str(False if not value and isinstance(beside, bool) else value)


def best_rival(cell: Cell) -> tuple[str, float] | None:
    """The best figure that the paper has for another method."""
    found = {name: figure[0] for name, figure in cell.paper.items() if figure is not None and name != "FastBUS"}
    return max(found.items(), key=lambda item: item[1]) if found else None


# -- words ----------------------------------------------------------------------------------------


def percent(mean: float, spread: float | None) -> str:
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def figure_text(figure: Figure) -> str:
    return "–" if figure is None else percent(*figure)


HEADINGS = (
    "images", "cell", "method", "ours", "seeds", "last weights", "paper", "ours − paper", "paper's best rival",
    "ceiling", "network", "epochs", "views", "seconds",
)  # fmt: skip
SCHEDULE = ("backbone", "rows", "learning_rate", "weight_decay", "warmup", "schedule", "decay")
UNLIKE, FORMERLY, SINGLE = "‡", "§", "¶"
SAME_VIEWS = 0.06  # what padding of bags makes of equal budgets
NUMERIC = (3, 4, 5, 6, 7, 9, 11, 12, 13)


CHANGED = ("no.", "images", "cell", "method", "changed", "ours", "seeds", "last weights", "labels kept back")
CHANGED_NUMERIC = (0, 5, 6, 7, 8)


def numbered(rows: Sequence[Row]) -> list[tuple[int, Row, Group, str]]:
    """Ablations and trials of a setting, with the numbers by which pictures name them and what they change."""
    every = [(row, group, change) for row in rows for group, change in row.ablations]
    return [(number, *entry) for number, entry in enumerate(every, 1)]


def changed_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Ablations and trials as text, one line each."""
    return [
        (
            str(number), row.cell.data, row.cell.name, group.method, change, percent(group.mean, group.spread),
            str(len(group.runs)), f"{group.average('accuracy_last'):.2f}",
            "–" if (kept := group.kept_back) is None else f"{kept:.4f}".replace("-", "−"),
        )
        for number, row, group, change in numbered(rows)
    ]  # fmt: skip


def lines_of(row: Row) -> list[tuple[str, ...]]:
    """The row as text, one line a method; a cell without runs of ours keeps its line."""
    cell = row.cell
    rival = best_rival(cell)
    rival_text = "–" if rival is None else f"{rival[0]} {rival[1]:.2f}"
    lines = []
    if row.ours is None:
        ceiling = "–" if row.ceiling is None else percent(row.ceiling.mean, row.ceiling.spread)
        figure = figure_text(cell.paper.get("FastBUS"))
        lines.append(
            (cell.data, cell.name, "fastbus", row.state, "0", "–", figure, "–", rival_text, ceiling, *["–"] * 4)
        )
    for group in row.groups:
        gap = "–" if group.paper is None else f"{group.mean - group.paper[0]:+.2f}".replace("-", "−")
        lines.append(
            (
                cell.data, cell.name, group.method, _marked(group), str(len(group.runs)),
                f"{group.average('accuracy_last'):.2f}", figure_text(group.paper), gap,
                rival_text if group.method == "fastbus" else "", _ceiling(group, row.ceiling),
                group.config["backbone"], str(group.config["epochs"]), f"{group.spent('views') / 1e6:.2f} M",
                f"{group.spent('seconds'):.0f}",
            )
        )  # fmt: skip
    return lines


def _marked(group: Group) -> str:
    """The figure, with signs where it is not yet the recipe's and where a run calls everything by one class."""
    return percent(group.mean, group.spread) + FORMERLY * (not group.current) + SINGLE * bool(group.single)


def _ceiling(group: Group, ceiling: Group | None) -> str:
    """Marked where network, views or schedule differ, so that it is none for these runs."""
    if ceiling is None:
        return "not run"
    same = all(group.config.get(name) == ceiling.config.get(name) for name in SCHEDULE)
    same = same and abs(group.spent("views") / ceiling.spent("views") - 1) <= SAME_VIEWS
    return percent(ceiling.mean, ceiling.spread) + ("" if same else UNLIKE)
