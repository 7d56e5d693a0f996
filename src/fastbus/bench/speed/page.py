"""Rows of the smaller tables: growth and training, the first row its headings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastbus.bench.results import Record
from fastbus.bench.speed.units import seconds_text

Rows = list[tuple[str, ...]]
RIVALS = {"infer": "infer", "inner": "inner", "plain": "plain torch"}


def growth_lines(records: Sequence[Record]) -> Rows:
    """One row a panel and a rival; empty without growth."""
    rows: Rows = []
    for record in records:
        if record["part"] != "growth":
            continue
        for name, power in record["powers"].items():
            taken = [seconds for seconds in record["seconds"][name] if seconds is not None]
            fitted = not math.isnan(power["slope"])
            letter = record["name"].removeprefix("growth/")
            letter = "K" if letter == "large" else letter
            rows.append(
                (
                    f"{letter} ({record['setting']})",
                    RIVALS[name],
                    f"{letter}^{power['slope']:.2f}" if fitted else "–",
                    f"{power['first']:,} to {power['last']:,}" if fitted else "–",
                    f"{seconds_text(taken[0])} to {seconds_text(taken[-1])}",
                )
            )
    heading = ("against", "call", "seconds grow like", "fitted from where work dominates", "over all sizes")
    return [heading, *rows] if rows else []


def training_lines(records: Sequence[Record]) -> Rows:
    """One row a way of training; empty without it."""
    found = [record for record in records if record["part"] == "training"]
    if not found:
        return []
    heading = "kind", "network", "weak step", "supervised step", "ratio", "E-step alone", "share of the step"
    rows: Rows = [(*heading, "weak step in bfloat16")]
    for record in found:
        weak, plain, alone = (record["seconds"][name]["median"] for name in ("weak", "supervised", "posterior"))
        coarse = record["seconds"].get("bf16")
        rows.append(
            (
                record["kind"],
                record["network"],
                seconds_text(weak),
                seconds_text(plain),
                f"{weak / plain:.2f}",
                seconds_text(alone),
                f"{100 * alone / weak:.1f} %",
                "–" if coarse is None else f"{seconds_text(coarse['median'])} ({weak / coarse['median']:.1f} times)",
            )
        )
    return rows
