"""Both forms of the report, written beside the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastbus.bench.paper.grid import read_grid, select
from fastbus.bench.paper.show import LOG, read_runs
from fastbus.bench.paper_report.markdown import as_markdown
from fastbus.bench.paper_report.page import as_page
from fastbus.bench.paper_report.summary import summarise
from fastbus.errors import InputError
from fastbus.training.checkpoint import write_atomically


def write_paper_report(folder: Path, settings: Sequence[str] | None, data: Sequence[str] | None) -> tuple[Path, Path]:
    """paper.md and paper.html of paper.jsonl in the folder; pages of some cells alone are named by what they show."""
    cells = select(read_grid(), settings, data, None)
    if not (folder / LOG).is_file():
        raise InputError(
            f"{folder} holds no {LOG}; expected the runs of fastbus bench paper. Correct --results, or run it first."
        )
    name = "-".join(("paper", *(data or ()), *(settings or ())))
    text, page = folder / f"{name}.md", folder / f"{name}.html"
    summary = [row for row in summarise(read_grid(), read_runs(folder / LOG)) if row.cell in cells]
    write_atomically(as_markdown(summary).encode(), text)
    write_atomically(as_page(summary).encode(), page)
    return text, page
