"""The outcome of the demonstration: a progress bar on the way, then a table or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastbus.bench.demo_run import EPOCHS, DemoResult, run_demo

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 120  # of the table in files and pipes


def as_table(result: DemoResult) -> RenderableType:
    """The outcome for the terminal, with notes on what the weak labels cannot say below."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="Digits from weak labels",
        caption=f"accuracy on {result.test_images} unseen single images; {result.epochs} epochs, {_seeds(result)}, "
        f"{result.seconds:.0f} s in all. Ceiling: the same network, images and epochs with true labels; "
        "the gap to it is in points.",
    )
    table.add_column("supervision", overflow="fold")
    table.add_column("learned from", overflow="fold")
    for heading in ("accuracy", "majority", "ceiling", "gap", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    notes: list[str] = []
    several = result.seeds > 1
    for row in result.rows:
        mark = ""
        if row.note:
            if row.note not in notes:
                notes.append(row.note)
            mark = f" [{notes.index(row.note) + 1}]"
        table.add_row(
            Text(row.supervision + mark),
            row.told,
            f"[bold]{row.accuracy:.1%}" + (f" ± {100 * row.accuracy_std:.1f}" if several else ""),
            f"{row.majority:.1%}",
            f"{row.ceiling:.1%}" + (f" ± {100 * row.ceiling_std:.1f}" if several else ""),
            f"{row.gap_points:.1f}" + (f" ± {row.gap_std:.1f}" if several else ""),
            f"{row.seconds:.1f}",
        )
    lines = [Text(f"[{number}] {note}") for number, note in enumerate(notes, 1)]
    return Group(table, *lines)


def _seeds(result: DemoResult) -> str:
    if result.seeds == 1:
        return f"seed {result.seed}"
    return f"mean ± standard deviation of seeds {result.seed} to {result.seed + result.seeds - 1}"


def as_json(result: DemoResult) -> str:
    """The outcome as one JSON object."""
    return json.dumps({**result._asdict(), "rows": [row._asdict() for row in result.rows]}, indent=2)


def show_demo(
    only: Sequence[str] | None = None,
    seed: int = 0,
    epochs: int | None = None,
    json_output: bool = False,
    seeds: int = 1,
) -> None:
    """Run the demonstration with a progress bar and print the outcome."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as ProgressBar

    # The bar goes to stderr, so that stdout carries the outcome and nothing else.
    stderr = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def progress(name: str, done: int, total: int) -> None:
            bar.update(task, description=f"training: {name}", completed=done, total=total)

        result = run_demo(only, seed, EPOCHS if epochs is None else epochs, progress, seeds)
    if json_output:
        print(as_json(result))
    else:
        stdout = Console()
        # where there is no screen to fit into, every row should fit on a line or two
        Console(width=None if stdout.is_terminal else WIDTH).print(as_table(result))
