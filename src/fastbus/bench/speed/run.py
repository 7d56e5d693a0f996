"""The whole benchmark: cells, growth and training in one process; each record is kept as soon as it is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fastbus.bench.results import Record, circumstances, installed, read_lines
from fastbus.bench.speed.ceilings import measure_ceilings
from fastbus.bench.speed.cells import QUICK, Cell, grid
from fastbus.bench.speed.growth import PANELS, measure_growth
from fastbus.bench.speed.measure import Patience, measure_cell
from fastbus.bench.speed.picture import growth_png
from fastbus.bench.speed.plain import load_yardstick
from fastbus.bench.speed.render import as_markdown, as_tables, busy_text, ceilings_text, floor_text, work_text
from fastbus.errors import InputError
from fastbus.training.checkpoint import write_atomically

WIDTH = 190  # of the table in files and pipes
PATIENCE = {"cpu": 10.0, "cuda": 1.0}  # seconds a run of a slow peer may take; loops are slower yet on a GPU
QUICK_PATIENCE = 0.5
Say = Callable[[str], None]


class Plan(NamedTuple):
    """What to measure."""

    device: str
    quick: bool
    seed: int
    patience: float
    cells: list[Cell]
    panels: list[str]
    train: bool
    yardstick: Path
    images: Path | None


def make_plan(options: Any) -> Plan:
    """Read the flags, and refuse what is not there."""
    if options.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda without a GPU; expected one that torch sees. Pass --device cpu.")
    train = options.train or "training" in (options.only or ())
    if train and options.device == "cuda" and options.images is None:
        raise InputError("--train on cuda without images; expected CIFAR-10. Pass its folder, --images DIR.")
    cells = [cell for cell in grid() if options.device == "cuda" or not cell.cuda_only]
    names, groups = {cell.name for cell in cells}, {cell.group for cell in cells}
    for name in options.only or ():
        if name not in names | groups | set(PANELS) | {"growth", "training"}:
            listed = ", ".join([*sorted(groups), "growth", "training", "a cell such as label_proportion/B4-K20-C100"])
            raise InputError(f"--only {name!r}; expected some of {listed}. Check the spelling.")
    if options.only:
        cells = [cell for cell in cells if {cell.name, cell.group} & set(options.only)]
    if options.quick:
        cells = [cell for cell in cells if cell.name in {*QUICK, *(options.only or ())}]
    panels = [name for name in PANELS if not options.only or {name, "growth"} & set(options.only)]
    patience = options.patience
    if patience is None:
        patience = QUICK_PATIENCE if options.quick else PATIENCE[options.device]
    images = None if options.images is None else Path(options.images)
    where = Path(options.yardstick)
    return Plan(options.device, options.quick, options.seed, patience, cells, panels, train, where, images)


def measure(plan: Plan, say: Say) -> Iterator[Record]:
    """All records of a plan, one by one."""
    about = circumstances(plan.device)
    about["versions"] |= {package: installed(package) for package in ("numba", "triton")}
    yardstick = load_yardstick(plan.yardstick)
    say("ceilings")
    ceilings = measure_ceilings(plan.device, plan.quick)
    yield {"part": "ceilings", "name": "ceilings", **ceilings, **about}
    patience = Patience(plan.patience)
    for number, cell in enumerate(plan.cells, 1):
        say(f"{cell.name} ({number} of {len(plan.cells)})")
        yield measure_cell(cell, plan.device, plan.seed, yardstick, ceilings, patience) | about
    for panel in plan.panels:
        say(panel)
        yield measure_growth(panel, plan.device, plan.quick, yardstick, plan.seed) | about
    if plan.train:
        from fastbus.bench.speed.training import measure_training

        for record in measure_training(plan.device, plan.images, plan.quick, plan.seed, say):
            yield record | about


def run_speed(plan: Plan, out: Path, say: Say) -> list[Record]:
    """Measure, keep, and write the page and the picture; returns the new records.

    Records of an earlier run stay where this one has no newer.
    """
    log = out / f"speed-{plan.device}.jsonl"
    kept = {record["name"]: record for record in read_lines(log, {"part", "name", "device"})}
    fresh: list[Record] = []
    before = torch.get_num_threads()
    if plan.device == "cpu":
        torch.set_num_threads(1)
    try:
        for record in measure(plan, say):
            record["quick"] = plan.quick
            fresh.append(record)
            kept[record["name"]] = record
            lines = "".join(json.dumps(record) + "\n" for record in in_order(list(kept.values())))
            write_atomically(lines.encode(), log)
    finally:
        torch.set_num_threads(before)
    everything = in_order(list(kept.values()))
    picture = growth_png(everything, plan.device)
    name = f"speed-{plan.device}.png"
    if picture is not None:
        write_atomically(picture, out / name)
    page = as_markdown(everything, plan.device, name if picture is not None else None)
    write_atomically(page.encode(), out / f"speed-{plan.device}.md")
    return in_order(fresh)


def in_order(records: Sequence[Record]) -> list[Record]:
    """As the page shows them, whenever they were measured."""
    names = ["ceilings", *(cell.name for cell in grid()), *PANELS]  # training comes last
    place = {name: index for index, name in enumerate(names)}
    return sorted(records, key=lambda record: place.get(record["name"], len(place)))


def show_speed(options: Any) -> None:
    """Run with a line of progress on stderr and print the outcome."""
    from rich.console import Console

    plan = make_plan(options)
    with Console(stderr=True).status("starting") as status:
        records = run_speed(plan, Path(options.out), status.update)
    if options.json:
        print(json.dumps(records, indent=2))
        return
    stdout = Console()
    console = Console(width=None if stdout.is_terminal else WIDTH)
    for table in as_tables(records, plan.device):
        console.print(table)
    console.print(*(ceilings_text(record) for record in records if record["part"] == "ceilings"))
    for said in (floor_text(records), work_text(records), busy_text(records)):
        if said:
            console.print(said)
