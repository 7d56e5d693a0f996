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

from fastbus.bench.paper.plan import Groundwork, Job, Scorer
from fastbus.bench.paper.run import Place, awaited_noise, forget, is_done, margin, work
from fastbus.bench.results import Record
from fastbus.errors import FastbusError, InputError

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
    """Run all jobs, groundwork before the jobs that need it; `keep` is given each record as it comes."""
    every = {work.fingerprint: work for job in jobs for work in job.groundwork}
    lacking = {key: work for key, work in every.items() if not is_done(work, place.checkpoints)}
    todo: list[Job | Groundwork] = [*lacking.values(), *jobs]
    running: dict[Connection, tuple[_Worker, Job | Groundwork]] = {}
    idle: list[_Worker] = []
    stopped: list[Job | Groundwork] = []
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
                if isinstance(what, Job):
                    keep(what, record)
                    finished += 1
                    say(f"{what.title}: {record['accuracy']:.2f} % in {record['seconds']:.0f} s")
                else:
                    del lacking[what.fingerprint]
                    if isinstance(what, Scorer) and "accuracy on the other images" in record:  # else it was there
                        say(f"{what.title}: {record['accuracy on the other images']:.1f} % accurate")
                    elif "views" in record:
                        say(f"{what.title}: {record['views']} views in {record['seconds']:.0f} s")
                forget(what, place.checkpoints)
    for worker in idle:
        _end(worker)
    return Tally(finished, [what.title for what in (*stopped, *todo)], failed)


def check_time(jobs: Sequence[Job], place: Place) -> None:
    """Complain of a time limit in which nothing that is left to do may begin, so that calling again would not help."""
    before = [work for job in jobs for work in job.groundwork if not is_done(work, place.checkpoints)]
    works: list[Job | Groundwork] = [*before, *jobs]
    least = min(margin(what, place) for what in works)
    if place.short_of_time(least):
        raise InputError(
            f"--time-limit is over before a run may begin; expected {least:.0f} seconds and a few more for the runs "
            "that are left. Raise it."
        )


def _next(
    todo: Sequence[Job | Groundwork], lacking: dict[str, Groundwork], busy: set[Path], place: Place
) -> Job | Groundwork | None:
    """The first that has what it needs. busy: confusion matrices that a run is estimating."""
    for what in todo:
        ready = not isinstance(what, Job) or all(work.fingerprint not in lacking for work in what.groundwork)
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
