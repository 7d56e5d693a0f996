"""Run the parts of the tables: every number is kept at once, none is measured twice, then one table shows them."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastbus.bench.results import Record, append_record, circumstances
from fastbus.bench.tables.entries import Progress, Source, find_source
from fastbus.bench.tables.records import as_record, key_of, newest, read_records
from fastbus.bench.tables.render import as_markdown, as_table
from fastbus.errors import InputError
from fastbus.training.checkpoint import write_atomically

PARTS = ("mil", "partial", "crowd", "multilabel", "peers")
WIDTH = 140  # of the table in files and pipes


def parts() -> dict[str, Any]:
    """Every data set, with the module that measures on it."""
    modules = [importlib.import_module(f"fastbus.bench.tables.{part}") for part in PARTS]
    return {name: module for module in modules for name in module.NAMES}


def run_tables(
    only: Sequence[str] | None, seeds: int, source: Source, out: Path, again: bool, say: Callable[[str], None]
) -> list[Record]:
    """Measure what the results in `out` lack and return the newest record of every number asked for."""
    modules = parts()
    names = list(dict.fromkeys(only)) if only else list(modules)
    for name in names:
        if name not in modules:
            raise InputError(f"--only {name!r}; expected some of {', '.join(modules)}. Check the spelling.")
    log = out / "tables.jsonl"
    records = read_records(log)
    known = frozenset() if again else frozenset(key_of(record) for record in records)
    about = circumstances()
    progress = Progress(say, known, seeds)
    for name in names:
        for entry in modules[name].run(name, source, seeds, progress):
            if entry.key(seeds) in known:
                continue
            append_record(log, as_record(entry, seeds, about))
    records = read_records(log)  # with what another run may have added meanwhile
    everything = newest(records, modules, seeds)
    command = "fastbus bench tables" + (f" --seeds {seeds}" if seeds != 5 else "")
    write_atomically(as_markdown(everything, command).encode(), out / "tables.md")
    return newest(records, names, seeds)


def show_tables(
    only: Sequence[str] | None, seeds: int, data: str | None, out: Path, json_output: bool, again: bool
) -> None:
    """Run with a line of progress on stderr and print the outcome."""
    from rich.console import Console

    source = find_source(data)
    begin = time.perf_counter()
    stderr = Console(stderr=True)
    with stderr.status("starting") as status:
        records = run_tables(only, seeds, source, out, again, status.update)
    if json_output:
        print(json.dumps({"seeds": seeds, "seconds": time.perf_counter() - begin, "entries": records}, indent=2))
        return
    stdout = Console()
    Console(width=None if stdout.is_terminal else WIDTH).print(as_table(records, seeds))
