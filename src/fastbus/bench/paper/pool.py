"""Runs side by side in processes of their own, so that the device is touched in none but theirs.

No more are started than there are workers, and none when the time is up; what has begun stops by itself, at a
checkpoint. A process that dies takes its run with it and no other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from fastbus.bench.paper.plan import Job, Scorer
from fastbus.bench.paper.run import Place, awaited_noise, forget, margin, work
from fastbus.bench.paper.scorer import scorer_path
from fastbus.bench.results import Record
from fastbus.errors import FastbusError

Keep = Callable[[Job, Record], None]
PATIENCE = 2.0  # seconds between two looks for a matrix


class Tally(NamedTuple):
    """How a round of runs ended."""

    finished: int
    unfinished: list[str]  # stopped, or not begun, for want of time
    failed: list[str]  # with the reason


class _Worker(NamedTuple):
    process: Any
    connection: Connection


def run_jobs(jobs: Sequence[Job], place: Place, workers: int, keep: Keep, say: Callable[[str], None]) -> Tally:
    """Run all jobs, scorers before the jobs that need them; `keep` is given each record as it comes."""
    scorers = {job.scorer.fingerprint: job.scorer for job in jobs if job.scorer is not None}
    lacking = {key: s for key, s in scorers.items() if not scorer_path(place.checkpoints, s).is_file()}
    todo: list[Job | Scorer] = [*lacking.values(), *jobs]
    running: dict[Connection, tuple[_Worker, Job | Scorer]] = {}
    idle: list[_Worker] = []
    stopped: list[Job | Scorer] = []
    failed: list[str] = []
    finished = 0
    while todo or running:
        busy = {path for _, what in running.values() if (path := awaited_noise(what, place)) is not None}
        while len(running) < workers and (begun := _next(todo, lacking, busy, place)) is not None:
            todo.remove(begun)
            worker = idle.pop() if idle else _start()
            worker.connection.send((begun, place))
            running[worker.connection] = worker, begun
            if (path := awaited_noise(begun, place)) is not None:
                busy.add(path)
        if not running:
            break
        # a matrix that others wait for comes long before the run that makes it ends
        for ready in wait(list(running), timeout=PATIENCE if busy and todo else None):
            assert isinstance(ready, Connection)
            worker, what = running.pop(ready)
            record, reason = _answer(worker)
            # on a device a process a run: its memory goes back when it ends
            if place.device == "cuda" or not worker.process.is_alive():
                _end(worker)
            else:
                idle.append(worker)
            if reason:
                failed.append(f"{what.title}: {reason}")
                say(f"failed: {failed[-1]}")
            elif record is None:
                stopped.append(what)
            else:
                if isinstance(what, Scorer):
                    del lacking[what.fingerprint]
                    if "accuracy on the other images" in record:  # else another process was quicker
                        say(f"{what.title}: {record['accuracy on the other images']:.1f} % accurate")
                else:
                    keep(what, record)
                    finished += 1
                    say(f"{what.title}: {record['accuracy']:.2f} % in {record['seconds']:.0f} s")
                forget(what, place.checkpoints)
    for worker in idle:
        _end(worker)
    return Tally(finished, [what.title for what in (*stopped, *todo)], failed)


def _next(
    todo: Sequence[Job | Scorer], lacking: dict[str, Scorer], busy: set[Path], place: Place
) -> Job | Scorer | None:
    """The first that has what it needs. busy: confusion matrices that a run is estimating."""
    for what in todo:
        ready = isinstance(what, Scorer) or what.scorer is None or what.scorer.fingerprint not in lacking
        ready = ready and awaited_noise(what, place) not in busy
        if ready and not place.short_of_time(margin(what, place)):
            return what
    return None


def _start() -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _answer(worker: _Worker) -> tuple[Record | None, str]:
    """The record, or why there is none."""
    try:
        record, reason = worker.connection.recv()
    except EOFError:
        worker.process.join()
        return None, (
            f"its process ended with code {worker.process.exitcode}, for lack of memory perhaps; expected a record. "
            "Call again with fewer --workers: it goes on from its checkpoint."
        )
    return record, reason


def _end(worker: _Worker) -> None:
    worker.connection.close()
    worker.process.join()


def _serve(connection: Connection) -> None:
    """What a process does: one run after the other, until nobody asks for more."""
    record: Record | None
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        while True:
            what, place = connection.recv()
            try:
                record, reason = work(what, place), ""
            except FastbusError as problem:
                record, reason = None, str(problem)
            except Exception as problem:
                record, reason = None, f"{type(problem).__name__}: {problem}"
            connection.send((record, reason))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # nobody listens any more


def _leave_with_parent() -> None:
    """A parent that is killed ends nothing itself, and its runs would go on for nobody."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # checkpoints are whole files or none: the run goes on from the last one
