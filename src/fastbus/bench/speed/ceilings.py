"""What the device can do at best, measured in the process that is judged by it.

Bytes are those read plus those written by a copy; operations are multiplies plus adds. A call is the least that an
answer costs: on the CPU one empty tensor through torch, on a GPU one empty kernel among several in a graph; a graph
that holds it alone costs `graph_seconds`.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from fastbus.bench.speed.timing import Call, interleaved, waiter

LARGE = {"cpu": 1 << 28, "cuda": 1 << 31}  # bytes of a copy that no cache holds
CACHED = 1 << 18
SQUARE = 1024  # rows of the matrices that are multiplied on the CPU
ROUNDS = 1 << 15
MESSAGES = "float64"  # the precision in which all kernels pass messages


def measure_ceilings(device: str, quick: bool) -> dict[str, Any]:
    """Copy bandwidth, multiply-adds in two precisions, and the price of a call."""
    runs = 5 if quick else 15
    large = LARGE[device] // (8 if quick and device == "cpu" else 1)
    seconds = _copies({"large": large, "cached": CACHED}, device, runs)
    copies = {name: 2 * size / best for name, (size, best) in seconds.items()}
    pace = {dtype: _operations(getattr(torch, dtype), device, runs) for dtype in ("float32", "float64")}
    return {
        "copy_bytes": {"large": large, "cached": CACHED},
        "copy_bytes_per_second": copies,
        "operations_per_second": pace,
        "messages": MESSAGES,
        **_call_seconds(device),
    }


def _copies(sizes: dict[str, int], device: str, runs: int) -> dict[str, tuple[int, float]]:
    found = {}
    for name, size in sizes.items():
        source = torch.ones(size // 4, device=device)
        target = torch.empty_like(source)
        found[name] = size, _best(lambda source=source, target=target: target.copy_(source), device, runs)  # type: ignore[misc]
    return found


def _operations(dtype: torch.dtype, device: str, runs: int) -> float:
    if device == "cuda":
        from fastbus.bench.speed.device_kernels import WIDTH, launch_multiply_add

        programs = 16 * torch.cuda.get_device_properties(0).multi_processor_count
        place = torch.full((programs * WIDTH,), 0.5, dtype=dtype, device=device)
        done = launch_multiply_add(place, ROUNDS)
        return done / _best(lambda: launch_multiply_add(place, ROUNDS), device, runs)
    a, b = (torch.rand(SQUARE, SQUARE, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * SQUARE**3 / _best(lambda: torch.mm(a, b, out=out), device, runs)


def _call_seconds(device: str) -> dict[str, float]:
    if device == "cuda":
        from fastbus.bench.speed.device_kernels import launch_empty
        from fastbus.bench.speed.graphs import SEVERAL, replayed

        place = torch.zeros(1, device=device)
        alone, among = (replayed(lambda: launch_empty(place), calls) for calls in (1, SEVERAL))
        assert not isinstance(alone, str) and not isinstance(among, str), (alone, among)
        return {"call_seconds": among.median, "graph_seconds": alone.median}
    like = torch.zeros(8)
    return {"call_seconds": interleaved({"call": lambda: torch.empty_like(like)}, 200, waiter(device))["call"].median}


def _best(call: Call, device: str, runs: int) -> float:
    """The quickest of the runs: a ceiling is what the device can do, not what it does on average."""
    wait = waiter(device)
    call()
    wait()
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - start)
    return min(taken)
