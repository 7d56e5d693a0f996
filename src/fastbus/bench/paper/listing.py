"""fastbus bench paper --list: the runs asked for, their recipes, what of them is done and how much there is to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastbus.bench.paper.draw import expected_size
from fastbus.bench.paper.plan import Job, views_of_an_epoch

WIDTH = 150  # of tables in files and pipes


def print_jobs(jobs: Sequence[Job], done: set[tuple[str, int]], as_json: bool) -> None:
    """A table for people, or a list with everything that decides a run."""
    if as_json:
        print(json.dumps([_entry(job, job.key in done) for job in jobs], indent=2))
    else:
        _print_table(jobs, done)


def console() -> Any:
    """As wide as the terminal, or wide enough for the tables."""
    from rich.console import Console

    stdout = Console()
    return Console(width=None if stdout.is_terminal else WIDTH)


def named(method: str, variant: str) -> str:
    """For a table, which takes words in brackets for styles."""
    from rich.markup import escape

    return escape(f"{method} [{variant}]") if variant else method


def _views(job: Job) -> float:
    """Of its epochs; passes without labels, which runs share, come on top."""
    return job.recipe.epochs * views_of_an_epoch(job.cell, job.recipe, job.method)


def _entry(job: Job, done: bool) -> dict[str, Any]:
    setting, data, cell = job.cell.key
    return {
        "setting": setting,
        "data": data,
        "cell": cell,
        "method": job.method,
        "variant": job.variant,
        "seed": job.seed,
        "recipe": job.recipe.as_dict(),
        "held_out": job.held_out,
        "views": round(_views(job)),
        "paper": job.cell.paper.get("FastBUS"),
        "fingerprint": job.fingerprint,
        "done": done,
    }


def _print_table(jobs: Sequence[Job], done: set[tuple[str, int]]) -> None:
    from rich.table import Table

    table = Table(title="The grid", caption="paper: accuracy of its FastBUS in percent, or the letter of a note")
    for heading in ("setting", "data", "cell", "method", "network", "epochs", "seed", "done", "paper"):
        table.add_column(heading, overflow="fold")
    reasons: dict[str, str] = {}
    for job in jobs:
        cell = job.cell
        figure = cell.paper.get("FastBUS")
        told = f"{figure[0]:.2f} ± {figure[1]:.2f}" if figure else ""
        if not figure and cell.without:
            told = reasons.setdefault(cell.without, chr(ord("a") + len(reasons)))
        table.add_row(
            cell.setting, cell.data, cell.name, named(job.method, job.told), job.recipe.backbone,
            str(job.recipe.epochs), str(job.seed), "yes" if job.key in done else "", told,
        )  # fmt: skip
    wide = console()
    wide.print(table)
    lacking = [job for job in jobs if job.key not in done]
    before = {work.fingerprint: work for job in lacking if (work := job.pretraining) is not None}
    views = sum(_views(job) for job in lacking)
    views += sum(2 * work.recipe.pretrain * expected_size(work.cell)[0] for work in before.values())
    wide.print(f"{len(lacking)} of {len(jobs)} runs are still to be done, {views / 1e6:.0f} million views in all")
    for reason, letter in reasons.items():
        wide.print(f"{letter}: {reason}")
