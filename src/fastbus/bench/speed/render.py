"""The benchmark to look at: a table in the terminal, a Markdown page, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastbus.bench.results import Record
from fastbus.bench.speed.inner import STAND_IN
from fastbus.bench.speed.measure import AGREE
from fastbus.bench.speed.page import growth_lines, training_lines
from fastbus.bench.speed.units import digits, range_text, rate, seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = ("cell", "infer", "quartiles", "inner", "plain torch", "plain / infer", "after others", "plain / infer")
PEER_HEADINGS = ("Count Loss, vectors", "GLWS loops", "Count Loss loops")
LAST = ("op/s", "B/s", "of ceiling")
UNDISTURBED = 0.9
FLOOR_CELL, FLOOR_TIMES = "label_proportion/B16-K20-C100", 3.0
WORK_CELL, WORK_SHARE = "label_proportion/B1024-K100-C100", 0.5
GRAPHS = ("infer, graph", "empty + copy", "ratio", "ratio in a row")


def headings(device: str) -> tuple[str, ...]:
    return HEADINGS + PEER_HEADINGS + LAST + (GRAPHS if device == "cuda" else ())


def cells_of(record: Record, device: str) -> tuple[str, ...]:
    """One record of a cell as text."""
    seconds, share = record["seconds"], record["share"]
    infer = seconds["infer"]
    stand_in = "*" if record["sources"]["inner"] == STAND_IN else ""
    wrong = {name for name, gap in record["differences"].items() if not gap <= AGREE}
    texts = {name: seconds_text(taken["median"]) + ("!" if name in wrong else "") for name, taken in seconds.items()}
    found = [
        record["name"],
        texts["infer"],
        range_text(infer["low"], infer["high"]),
        texts["inner"] + stand_in,
        texts["plain"],
        digits(record["times_plain"]),
        *_after_others(seconds),
        *(texts.get(name, "–") for name in PEER_HEADINGS),
        rate(share["operations_per_second"]),
        rate(share["bytes_per_second"]),
        f"{100 * share['share']:.1f} % {share['binds']}",
    ]
    if device == "cuda":
        taken = record.get("device_seconds", {})
        medians = (seconds_text(taken[name]["median"]) if name in taken else "–" for name in ("infer", "empty + copy"))
        ratios = (record.get(key, math.nan) for key in ("times_floor", "times_floor_of_several"))
        found += [*medians, *("–" if math.isnan(ratio) else digits(ratio) for ratio in ratios)]
    return tuple(found)


def _after_others(seconds: dict[str, dict[str, float | None]]) -> tuple[str, str]:
    """`infer` as the first call of a burst, and how many times as long plain torch takes as the first of its own."""
    first, rival = (seconds[name].get("first") for name in ("infer", "plain"))
    if first is None:
        return "–", "–"
    rival = seconds["plain"]["median"] if rival is None else rival
    return seconds_text(first), "–" if rival is None else digits(rival / first)


def as_tables(records: Sequence[Record], device: str) -> list[RenderableType]:
    """Tables for the terminal."""
    from rich.table import Table

    found: list[RenderableType] = []
    cells = [record for record in records if record["part"] == "cell"]
    if cells:
        table = Table(title=f"Speed of exact posteriors on {cells[0]['device']}", caption=_caption(cells))
        for index, heading in enumerate(headings(device)):
            table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=index < 2)
        before = cells[0]["group"]
        for record in cells:
            if record["group"] != before:
                table.add_section()
            before = record["group"]
            table.add_row(*cells_of(record, device))
        found.append(table)
    for title, lines in (("Growth", growth_lines(records)), ("A training step", training_lines(records))):
        if lines:
            table = Table(title=title)
            for index, heading in enumerate(lines[0]):
                table.add_column(heading, justify="left" if index < 2 else "right")
            for line in lines[1:]:
                table.add_row(*line)
            found.append(table)
    return found


def _caption(cells: Sequence[Record]) -> str:
    notes = ["medians; infer checks its inputs, inner is the kernel alone, plain torch has the posterior by autograd"]
    if any(record["sources"]["inner"] == STAND_IN for record in cells):
        notes.append(f"* {STAND_IN}, where there is no kernel of its own")
    if any(not gap <= AGREE for record in cells for gap in record["differences"].values()):
        notes.append(f"! its posterior is off by more than {AGREE:g}")
    return "; ".join(notes)


def ceilings_text(record: Record) -> str:
    """One sentence of what the device can do."""
    copies, pace = record["copy_bytes_per_second"], record["operations_per_second"]
    return (
        f"Ceilings: copies of {record['copy_bytes']['large'] >> 20} MiB {rate(copies['large'])}B/s and of "
        f"{record['copy_bytes']['cached'] >> 10} KiB {rate(copies['cached'])}B/s (read + written), multiply-adds "
        f"{rate(pace['float32'])}op/s in float32 and {rate(pace['float64'])}op/s in float64, one call "
        f"{seconds_text(record['call_seconds'])}."
    )


def floor_text(records: Sequence[Record]) -> str:
    """The cell that is held against an empty kernel and a copy; empty where it was not replayed."""
    for record in records:
        if record["name"] == FLOOR_CELL and "times_floor" in record:
            taken = record["device_seconds"]
            return (
                f"{FLOOR_CELL}: {seconds_text(taken['infer']['median'])} as a graph, an empty kernel and a copy of the "
                f"same bytes {seconds_text(taken['empty + copy']['median'])}, so {digits(record['times_floor'])} times "
                f"as long; at most {FLOOR_TIMES:g} is the aim."
            )
    return ""


def work_text(records: Sequence[Record]) -> str:
    """The largest cell on a GPU beside the least operations that it takes; empty where it was not replayed."""
    for record in records:
        if record["name"] == WORK_CELL and "device_seconds_of_several" in record:
            taken, work, share = record["device_seconds_of_several"]["infer"], record["work"], record["share"]
            return (
                f"{WORK_CELL}: {seconds_text(taken['median'])} in a row of graphs, {work['operations']:.3g} operations"
                f" at least ({work['formula']}), {100 * share['share']:.1f} % of the ceiling that binds, "
                f"{share['binds']}; {100 * WORK_SHARE:.0f} % is the aim."
            )
    return ""


def busy_text(records: Sequence[Record]) -> str:
    """A warning where other processes took the processor away; empty where none did."""
    cells = [record for record in records if record["part"] == "cell"]
    disturbed = [record for record in cells if record["undisturbed"] < UNDISTURBED]
    if not disturbed:
        return ""
    return (
        f"The machine was busy with other work during {len(disturbed)} of {len(cells)} cells. Long calls are "
        "interrupted then and short ones are not, so ratios come out too high: measure again on an idle machine."
    )


def as_markdown(records: Sequence[Record], device: str, picture: str | None) -> str:
    """The whole page."""
    cells = [record for record in records if record["part"] == "cell"]
    about = sorted({(record["device"], record["commit"]) for record in records})
    lines = ["# Speed of exact posteriors", "", f"Written by `fastbus bench speed --device {device}`."]
    lines += [f"Measured on {where}, commit {commit or 'unknown'}." for where, commit in about]
    lines += [ceilings_text(record) for record in records if record["part"] == "ceilings"]
    if cells:
        lines += ["", "## Cells", "", f"{_caption(cells)}. docs/speed.md explains the columns.", ""]
        lines += _markdown_table([headings(device), *(cells_of(record, device) for record in cells)])
        whose = sorted({record["sources"]["plain"] for record in cells if record["head"] == "sigmoid"})
        if whose:
            lines += ["", f"Plain torch under sigmoid heads: {', '.join(whose)}; elsewhere our own in the same style."]
        for said in filter(None, (floor_text(cells), work_text(cells))):
            lines += ["", said]
        lines += ["", f"Largest differences from the posterior of `infer`: {_largest(cells)}."]
        if said := busy_text(cells):
            lines += [said]
        missing = sorted({name for record in cells for name in record["skipped"]})
        if missing:
            lines += [f"Left out on cells where a run would take too long (–): {', '.join(missing)}."]
        reasons = sorted({f"{name}: {why}" for r in cells for name, why in r.get("not_captured", {}).items()})
        lines += [f"Not captured as a graph, {reason}" for reason in reasons]
    for title, rows in (("Growth", growth_lines(records)), ("A training step", training_lines(records))):
        if rows:
            lines += ["", f"## {title}", "", *_markdown_table(rows)]
            if title == "Growth" and picture:
                lines += ["", f"![seconds against bags, classes and instances]({picture})"]
    return "\n".join([*lines, ""])


def _largest(cells: Sequence[Record]) -> str:
    worst: dict[str, float] = {}
    for record in cells:
        for name, gap in record["differences"].items():
            worst[name] = math.nan if math.isnan(gap) else max(worst.get(name, 0.0), gap)
    return ", ".join(f"{name} {gap:.1e}" for name, gap in worst.items())


def _markdown_table(rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return [lines[0], "|---|" + "---:|" * (len(rows[0]) - 1), *lines[1:]]
