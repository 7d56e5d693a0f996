"""fastbus bench paper: plan, run what the results lack, and print."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastbus.bench.paper.choices import read_choices, without_choice
from fastbus.bench.paper.grid import Cell, read_grid, select, tiny_cells
from fastbus.bench.paper.listing import console, named, print_jobs
from fastbus.bench.paper.methods import choose
from fastbus.bench.paper.plan import TINY_HELD_OUT, Job, job_key, plan_jobs, told
from fastbus.bench.paper.pool import check_time, run_jobs
from fastbus.bench.paper.rates import Rates, rates_of
from fastbus.bench.paper.run import Place
from fastbus.bench.paper.sets import SETS, human_labels, load_set
from fastbus.bench.results import Record, alone_in, append_record, check_writable, read_lines
from fastbus.errors import InputError
from fastbus.learner_defaults import check_device
from fastbus.report.write import as_json
from fastbus.training.recipes import Recipe

LOG, TINY_LOG = "paper.jsonl", "paper-tiny.jsonl"
FIELDS = {
    "setting", "data", "cell", "method", "variant", "seed", "fingerprint", "metric", "accuracy", "accuracy_last",
    "curve", "config", "seconds", "views", "images_per_second",
}  # fmt: skip
UNFINISHED = 3  # the exit code that says: call again


def read_runs(path: Path) -> list[Record]:
    """All finished runs."""
    return read_lines(path, FIELDS)


def show_paper(options: Any) -> int:
    """The command; its exit code."""
    started = time.time()
    log = Path(options.out) / (TINY_LOG if options.tiny else LOG)
    records = read_runs(log)
    done = {job_key(record) for record in records}
    if options.list:
        waiting: set[tuple[str, ...]] = set()
        print_jobs(_jobs(options, _or_usual(rates_of(records), waiting)), done, options.json)
        if waiting:
            _say(f"{len(waiting)} methods of cells wait for trials at two learning rates; the recipe's is shown")
        return 0
    jobs = _jobs(options, rates_of(records))
    check_device(options.device)
    todo = [job for job in jobs if job.key not in done]
    place = Place(
        images=Path(options.images),
        tables=Path(options.data),
        checkpoints=Path(options.checkpoints),
        device=options.device,
        threads=options.threads,
        every=options.checkpoint_every,
        deadline=None if options.time_limit is None else started + options.time_limit,
        compiled=options.compile,
    )
    _check_files([job.cell for job in todo], place)
    failed: list[str] = []
    if todo:
        check_writable(log)
        check_time(todo, place)
        with alone_in(place.checkpoints, "--checkpoints"):
            failed = run_jobs(todo, place, options.workers, lambda _, record: append_record(log, record), _say).failed
    wanted = {job.key for job in jobs}
    records = [record for record in read_runs(log) if job_key(record) in wanted]
    if options.json:
        print(json.dumps(as_json(records), indent=2))
    else:
        _print(records)
    if failed:
        return 1
    if lacking := len(wanted) - len({job_key(record) for record in records}):
        _say(f"{lacking} of {len(jobs)} runs are not finished: call again to go on")
    return UNFINISHED if lacking else 0


def _or_usual(rates: Rates, waiting: set[tuple[str, ...]]) -> Rates:
    """The rates, that of the recipe where trials are still to come; these are put among those `waiting`."""

    def rate(cell: Cell, method: str, recipe: Recipe) -> float:
        try:
            return rates(cell, method, recipe)
        except InputError:
            waiting.add((*cell.key, method))
            return recipe.learning_rate

    return rate


def _jobs(options: Any, rates: Rates) -> list[Job]:
    """All runs asked for, each once."""
    if options.plan is None:
        chosen = _chosen(options, options.tiny, options.list, rates)
        named = [] if options.methods is None or "all" in options.methods else options.methods
        if idle := [name for name in named if not any(job.method == name for job in chosen)]:
            _say(f"no cell for {', '.join(idle)} among those chosen")
        return chosen
    without_choice(options)
    jobs: dict[tuple[str, int], Job] = {}
    for where, choice in read_choices(Path(options.plan)):
        try:
            chosen = _chosen(choice, options.tiny, False, rates)
        except InputError as problem:
            raise InputError(f"{where}: {problem}") from None
        for job in chosen:
            jobs.setdefault(job.key, job)
    return list(jobs.values())


def _chosen(options: Any, tiny: bool, every_set: bool, rates: Rates) -> list[Job]:
    """The runs of one choice; every_set: on all images, if it names none; rates: for runs that want to be tuned."""
    if tiny:
        names = options.dataset or ["digits"]
        for name in names:
            if name not in SETS:
                raise InputError(f"--dataset {name!r}; expected some of {', '.join(SETS)}. Check the spelling.")
        cells = select([cell for name in names for cell in tiny_cells(name)], options.settings, None, options.cells)
    else:
        data = options.dataset or (None if every_set else ["cifar10"])
        cells = select(read_grid(), options.settings, data, options.cells)
    held_out = (TINY_HELD_OUT if tiny else 0.0) if options.held_out is None else options.held_out
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    changes, wanted = _changes(options.set), rates if options.tuned else None
    return plan_jobs(cells, choose(options.methods), seeds, changes, held_out, tiny, options.views, wanted)


def _changes(entries: Sequence[str] | None) -> dict[str, Any]:
    """name=value pairs, values as YAML reads them."""
    import yaml

    changes = {}
    for entry in entries or ():
        name, sign, text = entry.partition("=")
        if not sign or not name:
            raise InputError(f"--set {entry!r}; expected NAME=VALUE. Write e.g. --set epochs=100.")
        if name in changes:
            raise InputError(f"--set with {name} twice; expected each entry once. Leave one out.")
        try:
            changes[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"--set {entry!r}; expected a number or a word as value. Correct it.") from None
        if isinstance(changes[name], str):  # to YAML 1e-3 is a word
            with suppress(ValueError):
                changes[name] = float(text)
    return dict(sorted(changes.items()))


def _check_files(cells: Sequence[Cell], place: Place) -> None:
    """Read every set once before anything begins: a cell is never run without its official files."""
    for data in dict.fromkeys(cell.data for cell in cells):
        load_set(data, place.images)
    for column in dict.fromkeys(cell.draw["human"] for cell in cells if "human" in cell.draw):
        human_labels(place.tables, column)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(records: Sequence[Record]) -> None:
    from rich.table import Table

    table = Table(title="Runs", caption="percent on the test images; averaged weights after the last epoch")
    for heading in ("setting", "data", "cell", "method", "seed", "metric", "averaged", "last", "seconds", "views/s"):
        table.add_column(heading, overflow="fold")
    for record in records:
        table.add_row(
            record["setting"], record["data"], record["cell"],
            named(record["method"], told(record["cell"], record["variant"], record["config"]["held_out"])),
            str(record["seed"]), record["metric"],
            f"{record['accuracy']:.2f}", f"{record['accuracy_last']:.2f}", f"{record['seconds']:.1f}",
            f"{record['images_per_second']:,.0f}",
        )  # fmt: skip
    console().print(table)
