"""The report as Markdown: a table a setting, and the ablation lines below it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from fastbus.bench.paper_report import budget
from fastbus.bench.paper_report.notes import NOTES, remarks_of
from fastbus.bench.paper_report.summary import CHANGED, CHANGED_NUMERIC, HEADINGS, NUMERIC, Row, changed_lines, lines_of

TITLE = "The paper's experiments on images"


def as_markdown(rows: Sequence[Row]) -> str:
    """The whole text."""
    parts = [f"# {TITLE}", "", *(f"- {note}" for note in NOTES), ""]
    for setting, group in groupby(rows, key=lambda row: row.cell.setting):
        members = list(group)
        parts += [f"## {setting}", "", f"Metric: {members[0].cell.metric}.", ""]
        parts += _table(HEADINGS, (line for row in members for line in lines_of(row)), NUMERIC)
        parts += ["", *_remarks(members), *_alike(members), *_ablations(members)]
    return "\n".join(parts).rstrip() + "\n"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], numeric: Sequence[int]) -> list[str]:
    rule = "|".join("--:" if column in numeric else "---" for column in range(len(head)))
    return [
        f"| {' | '.join(head)} |",
        f"|{rule}|",
        *(f"| {' | '.join(text.replace('|', '/') for text in line)} |" for line in lines),
    ]


def _remarks(rows: Sequence[Row]) -> list[str]:
    told = remarks_of(rows)
    return [*(f"- {text}" for text in told), ""] if told else []


def _alike(rows: Sequence[Row]) -> list[str]:
    lines = budget.budget_lines(rows)
    if not lines:
        return []
    return [
        "All methods at one budget of views:",
        "",
        *_table(budget.HEADINGS, lines, budget.NUMERIC),
        "",
        *(f"- {text}" for text in (*budget.rates_tried(rows), *budget.budget_reasons(rows))),
        "",
    ]


def _ablations(rows: Sequence[Row]) -> list[str]:
    lines = changed_lines(rows)
    if not lines:
        return []
    return [
        "Ablation lines and trials (the table above has the recipe of the product):",
        "",
        *_table(CHANGED, lines, CHANGED_NUMERIC),
        "",
    ]
