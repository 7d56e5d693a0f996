"""One cell: all rivals on the same inputs, first compared with `infer`, then timed in turns."""

from __future__ import annotations

import time
from typing import Any

import torch

from fastbus.bench.speed.cells import Cell, Inputs, make_inputs
from fastbus.bench.speed.graphs import SEVERAL, empty_and_copy, replayed
from fastbus.bench.speed.inner import infer_call, inner_call, posterior_of
from fastbus.bench.speed.peers import PEERS
from fastbus.bench.speed.plain import plain_call
from fastbus.bench.speed.timing import Call, Timing, interleaved, summary, waiter
from fastbus.bench.speed.work import FORMULA, Work, dtype_name, share_of, work_of

ROUNDS, BURST, SLOW_RUNS = 10, 5, 3
LATE, LATE_RUNS = 0.1, 5  # what takes longer than so many seconds has less noise, and is run less often
AGREE = 1e-4  # float32 in plain log space loses three digits over fifty instances


class Patience:
    """How long a run of a slow peer may take; what it took per step of its loop foretells the next cell."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.pace: dict[str, float] = {}

    def allows(self, name: str, steps: int) -> bool:
        return steps * self.pace.get(name, 5e-5) <= self.seconds

    def learn(self, name: str, steps: int, seconds: float) -> None:
        self.pace[name] = seconds / steps


def measure_cell(
    cell: Cell,
    device: str,
    seed: int,
    yardstick: Any | None,
    ceilings: dict[str, Any],
    patience: Patience,
) -> dict[str, Any]:
    """One record."""
    inputs = make_inputs(cell, device, seed)
    inner, kernel = inner_call(inputs)
    plain, whose = plain_call(inputs, yardstick)
    target = torch.empty_like(inputs.logits)
    calls: dict[str, Call] = {"infer": infer_call(inputs), "inner": inner, "plain": plain}
    if cell.head == "sigmoid":
        calls["Count Loss, vectors"] = _peer(inputs, "Count Loss, vectors")
    start = time.perf_counter()
    calls["infer"]()
    first_call = time.perf_counter() - start
    differences, taken = _differences(inputs, calls)
    wall, worked = time.perf_counter(), time.process_time()
    calls["copy"] = lambda: target.copy_(inputs.logits)
    late = {name for name in calls if name in taken and taken[name] > LATE}
    quick = {name: call for name, call in calls.items() if name not in late}
    timings = interleaved(quick, ROUNDS, waiter(device), burst=BURST)
    timings |= interleaved({name: calls[name] for name in late}, LATE_RUNS, waiter(device), warm_up=1)
    undisturbed = (time.process_time() - worked) / (time.perf_counter() - wall)
    skipped: list[str] = []
    if cell.head == "sigmoid":
        slow, skipped = _slow_peers(inputs, device, patience, differences)
        timings |= slow
    work = work_of(inputs)
    record = {
        "part": "cell",
        "name": cell.name,
        "group": cell.group,
        "kind": cell.kind,
        "B": cell.B,
        "K": cell.K,
        "C": cell.C,
        "head": cell.head,
        "std": cell.std,
        "dtype": dtype_name(inputs.logits.dtype),
        "seconds": {name: timing._asdict() for name, timing in timings.items()},
        "first_call_seconds": first_call,  # with what is compiled or loaded for it
        "undisturbed": min(1.0, undisturbed),  # share of the time that this process had the processor
        "sources": {"inner": kernel, "plain": whose},
        "differences": differences,
        "skipped": skipped,
        "times_plain": timings["plain"].median / timings["infer"].median,
        "work": {"formula": FORMULA, **work._asdict()},
        "share": share_of(work, timings["inner"].median, ceilings)._asdict(),
    }
    if device == "cuda":
        record |= _on_device(inputs, calls, work, ceilings)
    return record


def _peer(inputs: Inputs, name: str) -> Call:
    solve, sizes = PEERS[name].solve, inputs.sizes.tolist()
    seen = inputs.cell.kind == "multi_instance"
    return lambda: solve(inputs.logits, inputs.weak, sizes, seen)


def _differences(inputs: Inputs, calls: dict[str, Call]) -> tuple[dict[str, float], dict[str, float]]:
    """Largest difference of each rival's posterior from that of `infer`, and the seconds of this one call."""
    reference = posterior_of(calls["infer"](), inputs).double()
    differences, taken = {}, {}
    for name, call in calls.items():
        if name != "infer":
            found = posterior_of(call(), inputs).double()
            differences[name] = float((found - reference).abs().max())
            start = time.perf_counter()  # a second call, since the first may load and compile
            posterior_of(call(), inputs).sum().item()
            taken[name] = time.perf_counter() - start
    return differences, taken


def _slow_peers(
    inputs: Inputs, device: str, patience: Patience, differences: dict[str, float]
) -> tuple[dict[str, Timing], list[str]]:
    """The loops, three runs each without warm-up: they take seconds, and nothing of theirs is compiled."""
    reference = posterior_of(infer_call(inputs)(), inputs).double()
    wait = waiter(device)
    found, skipped = {}, []
    for name, peer in PEERS.items():
        steps = peer.steps(inputs)
        if not steps:
            continue
        if not patience.allows(name, steps):
            skipped.append(name)
            continue
        call, taken, answer = _peer(inputs, name), [], None
        for _ in range(SLOW_RUNS):
            start = time.perf_counter()
            answer = call()
            wait()
            taken.append(time.perf_counter() - start)
        differences[name] = float((posterior_of(answer, inputs).double() - reference).abs().max())
        found[name] = summary(taken)
        patience.learn(name, steps, found[name].median)
    return found, skipped


def _on_device(inputs: Inputs, calls: dict[str, Call], work: Work, ceilings: dict[str, Any]) -> dict[str, Any]:
    """Graph replays: the device's own seconds, beside an empty kernel and a copy of the same bytes."""
    asked = {
        "infer": infer_call(inputs, validate=False),
        "inner": calls["inner"],
        "empty + copy": empty_and_copy(inputs.logits),
    }
    alone = {name: replayed(call) for name, call in (asked | {"plain": calls["plain"]}).items()}
    among = {name: replayed(call, SEVERAL) for name, call in asked.items() if isinstance(alone[name], Timing)}
    record: dict[str, Any] = {
        "device_seconds": _timed(alone),
        "device_seconds_of_several": _timed(among),
        "not_captured": {name: reason for name, reason in alone.items() if isinstance(reason, str)},
    }
    for key, taken in (("times_floor", record["device_seconds"]), ("times_floor_of_several", _timed(among))):
        if {"infer", "empty + copy"} <= set(taken):
            record[key] = taken["infer"]["median"] / taken["empty + copy"]["median"]
    quickest = [timing["median"] for name, timing in _timed(among).items() if name != "empty + copy"]
    if quickest:
        record["share"] = share_of(work, min(quickest), ceilings)._asdict()
    return record


def _timed(found: dict[str, Timing | str]) -> dict[str, dict[str, float]]:
    return {name: timing._asdict() for name, timing in found.items() if isinstance(timing, Timing)}
