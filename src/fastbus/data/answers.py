"""Answers of a crowd as a table (task, worker, label): one row for each answer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.data.class_names import class_codes, complain
from fastbus.data.columns import Table
from fastbus.data.keys import bag_ids, same_kind
from fastbus.errors import DataError


def answer_matrix(
    table: Table, tasks: NDArray[Any], classes: tuple[str, ...] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Answers (N, A) to the tasks (N,), -1 for none, and the names of the A workers, sorted."""
    table.require("label", "the answer of the worker")
    named, worker = bag_ids(table, "task"), bag_ids(table, "worker")
    same_kind(named, tasks, table, "task")
    order = np.argsort(tasks, kind="stable")
    ranked = tasks[order]
    if (ranked[1:] == ranked[:-1]).any():
        twice = ranked[1:][ranked[1:] == ranked[:-1]][0].item()
        raise DataError(f"task {twice!r} names two instances; expected one. Give every instance its own task.")
    slot = np.minimum(np.searchsorted(ranked, named), len(ranked) - 1)
    complain(table, "task", ranked[slot] != named, "a task of the instance table")
    names, annotator = np.unique(worker, return_inverse=True)
    codes = class_codes(table, "label", classes)
    complain(table, "label", codes < 0, "an answer in every row")
    cell = order[slot] * len(names) + annotator
    first = np.zeros(len(cell), dtype=np.bool_)
    first[np.unique(cell, return_index=True)[1]] = True
    if not first.all():
        row = int(np.nonzero(~first)[0][0])
        raise DataError(
            f"a second answer of worker {worker[row].item()!r} to task {named[row].item()!r}; expected one; "
            f"{table.place('task', row)}. Keep one of them."
        )
    answers = np.full((len(tasks), len(names)), -1, dtype=np.int64)
    answers[order[slot], annotator] = codes
    return answers, tuple(str(name) for name in names)
