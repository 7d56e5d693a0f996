"""Numbers as people read them: 12.3 µs, 4.5 G."""

from __future__ import annotations

import math

UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))


def _unit(seconds: float) -> tuple[str, float]:
    return next((unit for unit in UNITS if seconds >= unit[1]), UNITS[-1])


def seconds_text(seconds: float) -> str:
    """Three digits and a unit."""
    if not math.isfinite(seconds):
        return "–"
    name, scale = _unit(seconds)
    return f"{digits(seconds / scale)} {name}"


def range_text(low: float, high: float) -> str:
    """Two times in the unit of the first."""
    name, scale = _unit(low)
    return f"{digits(low / scale)}–{digits(high / scale)} {name}"


def rate(value: float) -> str:
    """Three digits and a prefix; the unit follows."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{digits(value / scale)} {prefix}"
    return f"{digits(value)} "


def digits(value: float) -> str:
    """Three of them."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
