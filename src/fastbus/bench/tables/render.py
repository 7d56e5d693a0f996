"""The tables to look at: one for the terminal, one in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastbus.bench.results import Record

if TYPE_CHECKING:
    from rich.console import RenderableType

KINDS = {"ours": "fastbus", "trivial": "baselines", "published": "published", "peer": "peers"}


def shown_value(record: Record) -> str:
    """A share in percent, with the deviation over the repeats."""
    spread = record["spread"]
    return f"{100 * record['value']:.1f}" + (f" ± {100 * spread:.1f}" if spread is not None else "")


def by_cell(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    """Records of one data set and task together, in the order they come in."""
    cells: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        cells.setdefault((record["data"], record["task"]), []).append(record)
    return cells


def as_table(records: Sequence[Record], seeds: int) -> RenderableType:
    """One row a data set and task; all methods of a kind share a column."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="Real data, usual protocols",
        caption=f"percent; ± standard deviation over {seeds} repeats; published figures are their authors' own",
        show_lines=True,
    )
    table.add_column("data", no_wrap=True)
    table.add_column("task", overflow="fold")
    for kind in KINDS.values():
        table.add_column(kind, overflow="fold")
    table.add_column("s", justify="right", no_wrap=True)
    for (data, task), cell in by_cell(records).items():
        columns = []
        for kind in KINDS:
            lines = Text()
            for record in (record for record in cell if record["kind"] == kind):
                name = "" if record["method"] == "fastbus" else record["method"].removeprefix("published ") + " "
                lines.append(("\n" if lines else "") + name)
                lines.append(shown_value(record), style="bold" if kind == "ours" else "")
            columns.append(lines)
        seconds = sum(record["seconds"] for record in cell if record["kind"] == "ours")
        table.add_row(data, task, *columns, f"{seconds:.0f}")
    return table


def as_markdown(records: Sequence[Record], command: str) -> str:
    """A section for each data set: methods down, figures across, notes below."""
    lines = [
        "# Real data, usual protocols",
        "",
        f"Percent; ± is the standard deviation over the repeats. Written by `{command}`; every number with its",
        "settings is a line of tables.jsonl beside this file. Published figures are their authors' own, not measured.",
        "Seconds are those of all repeats by the clock, and say little where other work shared the machine.",
    ]
    for data in dict.fromkeys(record["data"] for record in records):
        lines += ["", f"## {data}"]
        lines += _section([record for record in records if record["data"] == data])
    machines = sorted({f"{record['device']}; torch {record['versions']['torch']}" for record in records})
    return "\n".join([*lines, "", f"Measured on: {' / '.join(machines)}.", ""])


def _section(records: Sequence[Record]) -> list[str]:
    """The tables of one data set: tasks "condition: figure" share the table of their condition."""
    notes: list[str] = []
    lines: list[str] = []
    conditions: dict[str, list[Record]] = {}
    for record in records:
        conditions.setdefault(_parted(record)[0], []).append(record)
    for condition, rows in conditions.items():
        figures = list(dict.fromkeys(_parted(record)[1] for record in rows))
        columns = ["method", "kind", *figures, "repeats", "seconds"]
        lines += ["", *([f"{condition}:", ""] if condition else [])]
        lines += [_row(columns), _row(["---"] * 2 + ["---:"] * (len(columns) - 2))]
        methods: dict[str, list[Record]] = {}
        for record in sorted(rows, key=lambda record: list(KINDS).index(record["kind"])):
            methods.setdefault(record["method"], []).append(record)
        lines += [_method_row(cells, figures, notes) for cells in methods.values()]
    return [*lines, "", *(f"[{number}] {note}  " for number, note in enumerate(notes, 1))] if notes else lines


def _method_row(cells: Sequence[Record], figures: Sequence[str], notes: list[str]) -> str:
    """One method of a table; its note gets a number, and joins `notes` if it is new."""
    first = cells[0]
    name = f"**{first['method']}**" if first["kind"] == "ours" else first["method"]
    if note := first["note"]:
        if note not in notes:
            notes.append(note)
        name += f" [{notes.index(note) + 1}]"
    values = {_parted(record)[1]: shown_value(record) for record in cells}
    effort = ["", ""]
    if first["kind"] != "published":
        effort = [str(first["repeats"]), f"{max(record['seconds'] for record in cells):.1f}"]
    return _row([name, first["kind"], *(values.get(figure, "") for figure in figures), *effort])


def _parted(record: Record) -> tuple[str, str]:
    """The condition and the figure of a task."""
    condition, _, figure = record["task"].rpartition(": ")
    return condition, figure


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
