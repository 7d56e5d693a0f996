"""Growth: seconds of the public call against bags, classes and instances, and the power that fits them.

A power is fitted where work outweighs the price of a call: over the sizes from which on all seconds are at least three
times the least of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fastbus.bench.large_bags import logits_of
from fastbus.bench.speed.cells import Cell, Inputs, make_inputs
from fastbus.bench.speed.inner import STAND_IN, infer_call, inner_call
from fastbus.bench.speed.plain import plain_call
from fastbus.bench.speed.timing import interleaved, waiter
from fastbus.supervision.aggregate import LabelProportion

DOMINATES = 3.0
LEAST_POINTS = 3
SLOW = 2e9  # numbers that plain torch would keep for its gradients; more is left out
PANELS = {
    "growth/B": ("bags B", "K = 10, C = 10"),
    "growth/C": ("classes C", "B = 4, K = 10"),
    "growth/K": ("instances K of a bag", "B = 4, C = 10"),
    "growth/large": ("instances K of a bag", "one bag, one class"),
}


class Power(NamedTuple):
    """seconds ~ size^slope between two sizes; NaN where too few sizes lie there."""

    slope: float
    first: int
    last: int
    points: int


def fit_power(sizes: Sequence[int], seconds: Sequence[float], dominates: float = DOMINATES) -> Power:
    """Least squares of log seconds over log size, where work dominates."""
    least = dominates * min(seconds)
    begin = 1 + max(i for i, taken in enumerate(seconds) if taken < least)
    x, y = np.asarray(sizes[begin:], dtype=float), np.asarray(seconds[begin:], dtype=float)
    if len(x) < LEAST_POINTS:
        return Power(math.nan, int(sizes[-1]), int(sizes[-1]), len(x))
    slope = float(np.polyfit(np.log(x), np.log(y), 1)[0])
    return Power(slope, int(sizes[begin]), int(sizes[-1]), len(x))


def sizes_of(panel: str, device: str, quick: bool) -> list[int]:
    """Powers of four, of two, or thirds of a decade, as far as the device is asked to go."""
    if panel == "growth/large":
        decades = 4 if quick else 5 if device == "cpu" else 6
        return [round(10 ** (e / 3)) for e in range(6, 3 * decades + 1)]
    if panel == "growth/K":
        return [5 * 2**e for e in range(5 if quick else 8)]
    return [4**e for e in range(4 if quick else 8 if device == "cpu" else 9)]


def measure_growth(panel: str, device: str, quick: bool, yardstick: Any | None, seed: int) -> dict[str, Any]:
    """One record: sizes, median seconds of each rival, and the powers."""
    sizes = sizes_of(panel, device, quick)
    runs = 5 if quick else 15
    series: dict[str, list[float | None]] = {}
    for done, size in enumerate(sizes):
        inputs = _large(size, device, seed) if panel == "growth/large" else _inputs(panel, size, device, seed)
        calls: dict[str, Callable[[], Any]] = {"infer": infer_call(inputs)}
        if panel != "growth/large":
            inner, kernel = inner_call(inputs)
            if kernel != STAND_IN:
                calls["inner"] = inner
            B, K, C = inputs.logits.shape
            if 3 * B * C * K * (K + 1) < SLOW:
                calls["plain"] = plain_call(inputs, yardstick)[0]
        for name, timing in interleaved(calls, runs, waiter(device), warm_up=2, burst=3).items():
            series.setdefault(name, [None] * len(sizes))[done] = timing.median
    return {
        "part": "growth",
        "name": panel,
        "setting": PANELS[panel][1],
        "sizes": sizes,
        "runs": runs,
        "seconds": series,
        "powers": {name: fit_power(*_measured(sizes, taken))._asdict() for name, taken in series.items()},
    }


def _measured(sizes: list[int], seconds: list[float | None]) -> tuple[list[int], list[float]]:
    kept = [(size, taken) for size, taken in zip(sizes, seconds, strict=True) if taken is not None]
    return [size for size, _ in kept], [taken for _, taken in kept]


def _inputs(panel: str, size: int, device: str, seed: int) -> Inputs:
    B, K, C = {"growth/B": (size, 10, 10), "growth/C": (4, 10, size), "growth/K": (4, size, 10)}[panel]
    return make_inputs(Cell("label_proportion", "label_proportion", B, K, C, "sigmoid"), device, seed)


def _large(K: int, device: str, seed: int) -> Inputs:
    """One bag of float64 logits with the count that they expect."""
    logits = logits_of(K, seed).double()
    weak = torch.sigmoid(logits).sum().round().long()
    cell = Cell("label_proportion", "label_proportion", 1, K, 1, "sigmoid")
    sizes = torch.tensor([K], device=device)
    x = logits[None, :, None].to(device)
    return Inputs(cell, LabelProportion(), x, weak.reshape(1, 1).to(device), sizes, None)
