"""The report as one HTML page without scripts, links or other files, in the look of the other reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from fastbus.bench.paper.draw import SCORED
from fastbus.bench.paper_report import budget, plots
from fastbus.bench.paper_report.markdown import TITLE
from fastbus.bench.paper_report.notes import NOTES, remarks_of
from fastbus.bench.paper_report.summary import (
    CHANGED,
    CHANGED_NUMERIC,
    HEADINGS,
    NUMERIC,
    Row,
    changed_lines,
    lines_of,
    numbered,
)
from fastbus.report.sheet import SHEET

WIDER = """body { max-width: 88rem; }
figure.wide { max-width: none; }
table { font-size: .82rem; }
td, th { padding-right: .7rem; min-width: 0; white-space: nowrap; }
thead th, td.words { white-space: normal; }
td.words { min-width: 16rem; }
"""
OVERVIEW = "Diamonds: our mean, dots: seeds. Squares: the paper's mean and deviation. Bars: true labels, same images."


def as_page(rows: Sequence[Row]) -> str:
    """The whole page."""
    sections = [_section("How to read it", _items(NOTES))]
    for data, name in (("cifar10", "CIFAR-10"), ("mnist", "MNIST"), ("fashion_mnist", "Fashion-MNIST")):
        shown = [row for row in rows if row.cell.data == data]
        if shown and (data == "cifar10" or any(row.ours for row in shown)):
            sections.append(_section(f"{name} at a glance", _wide(plots.overview(shown), OVERVIEW)))
    if (compared := plots.rivals(rows)) is not None:
        caption = "Diamonds: FastBUS, green: other methods, grey: true labels of the same images, orange: the paper's."
        sections.append(_section("All methods at one budget of views", _wide(compared, caption)))
    for setting, group in groupby(rows, key=lambda row: row.cell.setting):
        sections.append(_setting(setting, list(group)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:">\n<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(TITLE)}</title>\n<style>\n{SHEET}{WIDER}</style>\n</head>\n<body>\n<header>\n"
        f'<h1>{escape(TITLE)}</h1>\n<p class="lead">Ours beside the paper, and what true labels would give.</p>\n'
        f"</header>\n<main>\n{_cards(rows)}\n{''.join(sections)}</main>\n</body>\n</html>\n"
    )


def _cards(rows: Sequence[Row]) -> str:
    run = [row for row in rows if row.ours is not None]
    fair = [row.ours for row in run if row.ours is not None and row.cell.setting not in SCORED]
    pairs = [(ours.mean, ours.paper[0]) for ours in fair if ours.paper is not None]
    above = sum(ours > paper for ours, paper in pairs)
    several = sum(len(row.ours.runs) >= 3 for row in run if row.ours is not None)
    cards = (
        ("Cells run", f"{len(run)} of {len(rows)}", "the others are marked in the tables"),
        ("Above the paper's FastBUS", f"{above} of {len(pairs)}", "of the cells run that can be compared"),
        ("Cells with three seeds or more", str(several), "fewer seeds have a wide spread"),
    )
    items = "".join(
        f'<li><span class="what">{escape(what)}</span><strong>{escape(value)}</strong>'
        f'<span class="baseline">{escape(note)}</span></li>\n'
        for what, value, note in cards
    )
    return f'<ul class="cards" aria-label="Main results">\n{items}</ul>'


def _setting(setting: str, rows: Sequence[Row]) -> str:
    lines = [line for row in rows for line in lines_of(row)]
    caption = f"{rows[0].cell.metric}, percent; mean ± standard deviation over seeds"
    remarks = remarks_of(rows)
    changed = changed_lines(rows)
    alike, why = budget.budget_lines(rows), [*budget.rates_tried(rows), *budget.budget_reasons(rows)]
    return _section(
        setting,
        _table(HEADINGS, lines, caption, NUMERIC),
        _figures(rows),
        _table(budget.HEADINGS, alike, "All methods at one budget of views", budget.NUMERIC) if alike else "",
        _items(why) if alike and why else "",
        _table(CHANGED, changed, "Ablation lines and trials", CHANGED_NUMERIC) if changed else "",
        f"<details>\n<summary>Draws and remarks</summary>\n{_items(remarks)}\n</details>" if remarks else "",
    )


def _figures(rows: Sequence[Row]) -> str:
    shown = []
    trials = numbered(rows)
    for row in rows:
        name = "".join(letter if letter.isalnum() else "-" for letter in row.cell.title)
        if row.groups or row.ceiling:
            shown.append((f"{row.cell.data} {row.cell.name}", plots.curves(row, f"curve-{name}"),
                          "Test accuracy of the averaged weights; looked at, nothing is chosen by it."))  # fmt: skip
        mine = [(number, group) for number, other, group, _ in trials if other is row and group.kept_back is not None]
        if mine:
            kept = plots.held_out(row.cell, mine, f"kept-{name}")
            shown.append((f"{row.cell.data} {row.cell.name}, trials", kept,
                          "Likelihood of weak labels that were kept back; numbers as in the table below."))  # fmt: skip
    inner = "".join(
        f"<figure>\n<h3>{escape(title)}</h3>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>\n"
        for title, svg, caption in shown
    )
    return f'<div class="figures">\n{inner}</div>' if shown else ""


def _wide(svg: str, caption: str) -> str:
    return f'<figure class="wide">\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>'


def _section(title: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n"


def _items(texts: Iterable[str]) -> str:
    return "<ul>\n" + "".join(f"<li>{escape(text)}</li>\n" for text in texts) + "</ul>"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], caption: str, numeric: Sequence[int]) -> str:
    kind = [
        ' class="words"' if name == "changed" else ' class="number"' if column in numeric else ""
        for column, name in enumerate(head)
    ]
    top = "".join(f'<th scope="col"{kind[i]}>{escape(text)}</th>' for i, text in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{kind[i]}>{escape(text)}</td>" for i, text in enumerate(line)) + "</tr>\n"
        for line in lines
    )
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}"><table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>"
    )
