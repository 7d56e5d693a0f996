"""Noise matrices: what training assumed, and what the posteriors of this data count, with intervals over bags."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.report.resample import bag_sums, ratios
from fastbus.supervision.base import Supervision
from fastbus.supervision.confusion import symmetric_confusion

Array = NDArray[np.float64]


class Channel(NamedTuple):
    """P(given label | true label), rows are true labels. Bounds and counts are empty where nothing is counted."""

    title: str
    what: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    assumed: Array  # (R, C)
    counted: Array  # (R, C) expected counts under the posterior, rows divided by their sums
    low: Array
    high: Array
    annotators: Array  # (A,) P(answer is right) of each annotator, averaged over the classes
    answers: NDArray[np.int64]  # (A,) how many each of them gave


def channel_of(
    part: Supervision, weak: Any, posterior: Array, sizes: NDArray[np.int64], names: tuple[str, ...]
) -> Channel | None:
    """The noise of one part of a supervision; None where its labels are taken at their word."""
    values = np.asarray(weak)
    if part.title in ("noisy_label", "crowd_label"):
        return _confusion(part, values, posterior, sizes, names)
    noise = getattr(part, "noise", None)
    if isinstance(noise, tuple):
        fp, fn = noise
        empty = np.zeros((0, 0))
        truth = ("truth: no", "truth: yes")
        said = ("told: no", "told: yes")
        matrix = np.array([[1 - fp, fp], [fn, 1 - fn]])
        none = np.zeros(0)
        what = "Flips of the weak label that training took into account."
        return Channel(part.title, what, truth, said, matrix, empty, empty, empty, none, none.astype(np.int64))
    return None


def _confusion(
    part: Supervision, values: NDArray[Any], posterior: Array, sizes: NDArray[np.int64], names: tuple[str, ...]
) -> Channel:
    C = posterior.shape[1]
    answers = values.reshape(len(values), -1)
    given = getattr(part, "transition", None)
    given = getattr(part, "transitions", None) if given is None else given
    if given is None:
        assumed = symmetric_confusion(float(getattr(part, "rate", None) or 0.0), C).numpy()[None]
    else:
        assumed = given.detach().cpu().double().numpy().reshape(-1, C, C)
    said = np.stack([(answers == label).sum(1) for label in range(C)], 1)  # (N, C) answers of each class
    joint = bag_sums(posterior[:, :, None] * said[:, None, :], sizes).reshape(len(sizes), C * C)
    total = np.repeat(joint.reshape(len(sizes), C, C).sum(2), C, axis=1)
    counted, low, high = (x.reshape(C, C) for x in ratios(joint, total))
    many = values.ndim == 2
    right = np.broadcast_to(assumed, (answers.shape[1], C, C)).diagonal(axis1=1, axis2=2).mean(1)
    per = (answers >= 0).sum(0)
    weights = np.broadcast_to(assumed, (answers.shape[1], C, C)) * per[:, None, None]
    average = weights.sum(0) / max(1, int(per.sum()))
    what = "Which label an annotator gives to an instance of each true class"
    what += ", averaged over the annotators by their number of answers." if many else "."
    none = np.zeros(0)
    return Channel(
        part.title, what, names, names, average, counted, low, high,
        right if many else none, per if many else none.astype(np.int64),
    )  # fmt: skip
