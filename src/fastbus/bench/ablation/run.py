"""The grid of the ablation: cells that the results lack are run, side by side, and each is kept at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fastbus.bench.ablation.settings import SETTINGS
from fastbus.bench.ablation.table import as_markdown, as_table
from fastbus.bench.ablation.variants import VARIANTS
from fastbus.bench.results import Record, append_record, circumstances, read_lines
from fastbus.errors import FastbusError, InputError
from fastbus.training.checkpoint import write_atomically

LOG = "ablation.jsonl"
WIDTH = 150  # of the table in files and pipes


def run_ablation(
    cells: Sequence[str] | None,
    methods: Sequence[str] | None,
    seeds: int,
    sources: dict[str, Path],
    out: Path,
    epochs: int | None,
    device: str,
    workers: int,
) -> list[Record]:
    """Run what is missing and return all records of the cells and methods asked for."""
    chosen_cells = _chosen("--only", cells, SETTINGS)
    chosen_methods = _chosen("--methods", methods, VARIANTS)
    log = out / LOG
    known = {_key(record) for record in read_runs(log)}
    about = circumstances(device)
    todo = [
        (cell, method, seed)
        for seed in range(seeds)
        for cell in chosen_cells
        for method in chosen_methods
        if VARIANTS[method].applies(SETTINGS[cell])
        and (cell, method, seed, SETTINGS[cell].config.epochs if epochs is None else epochs) not in known
    ]
    # a process a run: its peak memory is its own
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {
            pool.submit(_work, cell, method, seed, str(_source(SETTINGS[cell].data, sources)), epochs, device): cell
            for cell, method, seed in todo
        }
        try:
            for done in as_completed(running):
                append_record(log, {**done.result(), **about})
        except FastbusError:  # of one run, and of all others like it: they need not be begun
            pool.shutdown(cancel_futures=True)
            raise
        except BrokenProcessPool:
            raise InputError(
                "a run was killed, by the system's lack of memory perhaps; expected it to end. "
                "Call again with fewer --workers: finished runs are kept."
            ) from None
    return [r for r in read_runs(log) if r["cell"] in chosen_cells and r["method"] in chosen_methods]


def _work(cell: str, method: str, seed: int, source: str, epochs: int | None, device: str) -> Record:
    import torch

    from fastbus.bench.ablation.cell import run_cell

    torch.set_num_threads(1)
    return run_cell(cell, method, seed, Path(source), epochs, device)


def _chosen(flag: str, names: Sequence[str] | None, known: dict[str, Any]) -> list[str]:
    for name in names or ():
        if name not in known:
            listed = ", ".join(repr(each) if " " in each else each for each in known)
            raise InputError(f"{flag} {name!r}; expected some of {listed}. Check the spelling.")
    return [name for name in known if names is None or name in names]


def _source(data: str, sources: dict[str, Path]) -> Path:
    return sources["tables"] if data in ("yeast", "scene") else sources["images"]


def _key(record: Record) -> tuple[Any, ...]:
    return record["cell"], record["method"], record["seed"], record["config"]["epochs"]


def read_runs(path: Path) -> list[Record]:
    """All runs kept so far."""
    return read_lines(path, {"cell", "method", "seed", "config", "accuracy"})


def show_ablation(options: Any) -> None:
    """Run, print the table, and write it as Markdown beside the runs."""
    from rich.console import Console

    out = Path(options.out)
    records = run_ablation(
        options.only,
        options.methods,
        options.seeds,
        {"images": Path(options.images), "tables": Path(options.data)},
        out,
        options.epochs,
        options.device,
        options.workers,
    )
    write_atomically(as_markdown(read_runs(out / LOG)).encode(), out / "ablation.md")
    if options.json:
        print(json.dumps(records, indent=2))
        return
    stdout = Console()
    Console(width=None if stdout.is_terminal else WIDTH).print(as_table(records))
