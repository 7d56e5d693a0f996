"""The tables to look at: one for the terminal, one in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastbus.bench.tables.records import Record

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
    """All numbers, one a row, with what they were measured on."""
    lines = [
        "# Real data, usual protocols",
        "",
        f"Percent; ± is the standard deviation over the repeats. Written by `{command}`; every number with its",
        "settings is a line of tables.jsonl beside this file. Published figures are their authors' own, not measured.",
        "",
        "| data | task | method | kind | value | repeats | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for (data, task), cell in by_cell(records).items():
        for record in sorted(cell, key=lambda record: list(KINDS).index(record["kind"])):
            name = f"**{record['method']}**" if record["kind"] == "ours" else record["method"]
            if record["note"] and record["note"] not in notes:
                notes.append(record["note"])
            mark = f" [{notes.index(record['note']) + 1}]" if record["note"] else ""
            measured = record["kind"] != "published"
            lines.append(
                f"| {data} | {task} | {name}{mark} | {record['kind']} | {shown_value(record)} | "
                f"{record['repeats'] if measured else ''} | {format(record['seconds'], '.1f') if measured else ''} |"
            )
    lines += ["", *(f"[{number}] {note}  " for number, note in enumerate(notes, 1))]
    machines = sorted({f"{record['device']}; torch {record['versions']['torch']}" for record in records})
    return "\n".join([*lines, "", f"Measured on: {' / '.join(machines)}.", ""])
