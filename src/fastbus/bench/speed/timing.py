"""Seconds of calls that take turns: rivals run one after the other in every round, so that noise hits all alike.

Each has a burst of calls in its turn, as a loop would call it. The first of a burst finds what the others have left in
the processor's caches; its median stands beside that of all calls.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Call = Callable[[], Any]
WARM_UP = 5


class Timing(NamedTuple):
    """Median and quartiles of the seconds of a call; `first`, the median of calls that come after other code."""

    median: float
    low: float
    high: float
    runs: int
    first: float | None = None


def summary(seconds: list[float]) -> Timing:
    if len(seconds) < 2:
        return Timing(seconds[0], seconds[0], seconds[0], len(seconds))
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, low, high, len(seconds))


def interleaved(
    calls: Mapping[str, Call], runs: int, wait: Callable[[], None], warm_up: int = WARM_UP, burst: int = 1
) -> dict[str, Timing]:
    """Run the calls in turn, so many rounds; the one that begins changes from round to round.

    wait: returns when the device has done all it was told, so that the seconds are those of the answer.
    """
    names = list(calls)
    for name in names:
        for _ in range(warm_up):
            calls[name]()
    wait()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(runs):
            shift = turn % len(names) if names else 0
            for name in names[shift:] + names[:shift]:
                call = calls[name]
                for _ in range(burst):
                    start = time.perf_counter()
                    call()
                    wait()
                    seconds[name].append(time.perf_counter() - start)
    finally:
        if collecting:
            gc.enable()
    return {
        name: summary(taken)._replace(first=statistics.median(taken[::burst]) if burst > 1 else None)
        for name, taken in seconds.items()
    }


def waiter(device: str) -> Callable[[], None]:
    """What to call before the clock is read."""
    if device != "cuda":
        return _nothing
    import torch

    return torch.cuda.synchronize


def _nothing() -> None:
    return None
