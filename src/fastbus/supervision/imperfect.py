"""Imperfect supervision: evidence about single instances, P(w_k | y_k) for each of their labels.

partial_label: y is among the candidates. complementary_label: y is none of the excluded classes.
noisy_label: w was drawn from T[y]. crowd_label: several annotators, each with a T of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fastbus.bag_layout import read_tensor
from fastbus.errors import SupervisionError, WeakLabelError
from fastbus.numerics import safe_log
from fastbus.supervision.base import Supervision
from fastbus.supervision.confusion import (
    estimate_confusion,
    estimate_confusions,
    symmetric_confusion,
)
from fastbus.supervision.evidence import Evidence, log_indicator
from fastbus.supervision.options import number
from fastbus.supervision.reading import WeakReader


class InstanceEvidence(Supervision):
    """Base of kinds that speak about single instances and need no rule."""

    labels = "categorical"
    level = "instance"

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        return None

    def instance_evidence(self, log_evidence: Tensor, observed: Tensor, reader: WeakReader) -> Evidence:
        """log_evidence (B, K, Y), observed (B, K); padding and missing entries say nothing."""
        observed = observed & reader.layout.mask
        silent = ~observed.reshape(observed.shape + (1,) * (log_evidence.dim() - observed.dim()))
        return Evidence(
            instance=log_evidence.masked_fill(silent, 0.0),
            instance_observed=observed,
            names=(self.title,),
        )

    def label_sets(self, weak: object, reader: WeakReader) -> tuple[Tensor, Tensor]:
        """Rows of 0/1 over the labels (B, K, Y) and which of them are given (B, K)."""
        values = reader.per_instance(weak, (reader.num_labels,))
        real = reader.layout.mask[..., None].expand_as(values)
        flags, present = reader.integers(values, 1, "label sets", real)
        given = present.all(-1)
        reader.refuse(
            present.any(-1) & ~given,
            "a label set with some entries missing",
            "0 or 1 for every class, or a whole row missing",
            "Fill the row, or mark all of it missing.",
        )
        return flags.to(torch.bool), given


class PartialLabel(InstanceEvidence):
    """The true class is one of the candidates."""

    name = "partial_label"

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        reader.single_label()
        candidates, given = self.label_sets(weak, reader)
        reader.impossible_bags(given & ~candidates.any(-1), "an empty candidate set", "at least one candidate")
        return self.instance_evidence(log_indicator(candidates, reader.dtype), given, reader)


class ComplementaryLabel(InstanceEvidence):
    """The true class is none of the excluded ones: a class index, or a 0/1 row of exclusions."""

    name = "complementary_label"

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        reader.single_label()
        Y = reader.num_labels
        shape = tuple(reader.tensor(weak).shape)
        # (B, C) sets of bags of one could also be classes (B, K): the layout of the predictions decides
        if shape in {(*reader.layout.shape, Y), (reader.B, Y)} and shape != reader.layout.shape:
            excluded, given = self.label_sets(weak, reader)
        else:
            values = reader.per_instance(weak)
            classes, given = reader.integers(values, Y - 1, "classes", reader.layout.mask)
            excluded = one_hot(classes, Y).to(torch.bool)
        reader.impossible_bags(given & excluded.all(-1), "every class is excluded", "at least one class left")
        return self.instance_evidence(log_indicator(~excluded, reader.dtype), given, reader)


class NoisyLabel(InstanceEvidence):
    """w was drawn from row y of a transition matrix T (C, C), given or symmetric with a rate.

    A tensor that requires gradients stays in the graph: its gradient is that of log P(w | x), so a loss that
    learns it needs a likelihood term (`WeakLoss(..., likelihood=1)` or joint mode), and an optimiser told of it.
    """

    name = "noisy_label"

    def __init__(self, transition: object = None, *, rate: float | None = None) -> None:
        self.transition = _matrices(transition, 2, f"{self.name}: transition")
        self.rate = _rate(rate, transition is not None, self.name)

    @classmethod
    def estimate(cls, log_prob: Tensor, weak: Tensor, **options: Any) -> NoisyLabel:
        """With T estimated from out-of-fold or early predictions (N, C) and labels (N,)."""
        return cls(estimate_confusion(log_prob, weak, **options))

    def matrix(self, num_classes: int) -> Tensor:
        """T (C, C), as given or of the rate."""
        return (
            _symmetric(self.rate, num_classes, self.name, "transition") if self.transition is None else self.transition
        )

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        reader.single_label()
        Y = reader.num_labels
        matrix = _fitting(self.matrix(Y), Y, reader)
        values = reader.per_instance(weak)
        classes, given = reader.integers(values, Y - 1, "classes", reader.layout.mask)
        return self.instance_evidence(safe_log(matrix).T[classes], given, reader)


class CrowdLabel(InstanceEvidence):
    """Several annotators answer, each through a confusion matrix of their own, (A, C, C)."""

    name = "crowd_label"

    def __init__(self, transitions: object = None, *, rate: float | None = None) -> None:
        self.transitions = _matrices(transitions, 3, f"{self.name}: transitions")
        self.rate = _rate(rate, transitions is not None, self.name)

    @classmethod
    def estimate(cls, log_prob: Tensor, answers: Tensor, **options: Any) -> CrowdLabel:
        """With confusions estimated from predictions (N, C) and answers (N, A), -1 for none."""
        return cls(estimate_confusions(log_prob, answers, **options))

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        reader.single_label()
        Y = reader.num_labels
        raw = reader.tensor(weak)
        if raw.dim() < 2:
            raise WeakLabelError(
                f"{self.name}: weak label of shape {tuple(raw.shape)}; expected (B, A), one column "
                "an annotator. Use fastbus.answers_from_table for (task, worker, label) rows."
            )
        A = raw.shape[-1]
        matrices = self.transitions
        if matrices is None:
            matrices = _symmetric(self.rate, Y, self.name, "transitions").expand(A, Y, Y)
        elif matrices.shape[0] != A:
            raise WeakLabelError(
                f"{self.name}: weak label of shape {tuple(raw.shape)}, so {A} annotators; expected "
                f"{matrices.shape[0]}, one for each confusion matrix. Give a column to every "
                "annotator, -1 for no answer."
            )
        matrices = _fitting(matrices, Y, reader)
        values = reader.per_instance(raw, (A,))
        real = reader.layout.mask[..., None].expand_as(values)
        classes, given = reader.integers(values, Y - 1, "answers", real)
        annotator = torch.arange(A, device=reader.device)
        log_answer = safe_log(matrices).transpose(1, 2)[annotator, classes]  # (B, K, A, Y)
        log_answer = log_answer.masked_fill(~given[..., None], 0.0)
        return self.instance_evidence(log_answer.sum(2), given.any(-1), reader)


def answers_from_table(
    task: Sequence[int] | Tensor,
    worker: Sequence[int] | Tensor,
    label: Sequence[int] | Tensor,
    *,
    num_tasks: int | None = None,
    num_workers: int | None = None,
) -> Tensor:
    """(task, worker, label) rows of indices to the answers (tasks, workers), -1 for none.

    num_tasks, num_workers: sizes of the result, where the last ones have no answers.
    """
    cure = "Number the tasks, workers and labels from 0."
    rows = [
        read_tensor(column, f"crowd table: {name}", WeakLabelError, expected="indices", cure=cure)
        for name, column in (("task", task), ("worker", worker), ("label", label))
    ]
    if any(row.is_floating_point() or row.is_complex() or row.dtype == torch.bool for row in rows):
        raise WeakLabelError(
            f"crowd table with columns of dtypes {[str(row.dtype) for row in rows]}; expected integers. {cure}"
        )
    rows = [row.long() for row in rows]
    if any(row.shape != rows[0].shape or row.dim() != 1 for row in rows) or rows[0].numel() == 0:
        raise WeakLabelError(
            f"crowd table with columns of shapes {[tuple(row.shape) for row in rows]}; expected "
            "three columns of one length. Give one row for every answer."
        )
    if any(bool((row < 0).any()) for row in rows):
        raise WeakLabelError("crowd table with negative entries; expected indices from 0. Leave missing answers out.")
    tasks = max(num_tasks or 0, int(rows[0].max()) + 1)
    workers = max(num_workers or 0, int(rows[1].max()) + 1)
    cell = rows[0] * workers + rows[1]
    if cell.unique().numel() != cell.numel():
        first = int(torch.nonzero(torch.bincount(cell) > 1)[0])
        raise WeakLabelError(
            f"crowd table with two answers of worker {first % workers} to task {first // workers}; "
            "expected one at most. Keep one of them."
        )
    answers = torch.full((tasks, workers), -1, dtype=torch.long)
    answers[rows[0], rows[1]] = rows[2]
    return answers


def _matrices(given: object, dim: int, what: str) -> Tensor | None:
    if given is None:
        return None
    shape = "(C, C)" if dim == 2 else "(A, C, C)"
    layout = "Rows are true classes, columns the labels given."
    matrix = read_tensor(given, what, SupervisionError, expected=f"numbers {shape}", cure=layout)
    if matrix.is_complex():
        raise SupervisionError(f"{what} of dtype {matrix.dtype}; expected probabilities. Take its real part.")
    if not matrix.is_floating_point():
        matrix = matrix.to(torch.float64)
    if matrix.dim() != dim or matrix.shape[-1] != matrix.shape[-2] or matrix.numel() == 0:
        raise SupervisionError(f"{what} of shape {tuple(matrix.shape)}; expected {shape}. {layout}")
    rows = matrix.detach()
    if bool((rows < 0).any()) or not bool(((rows.sum(-1) - 1).abs() < 1e-3).all()):
        raise SupervisionError(
            f"{what} with rows that are no distributions; expected non-negative rows that sum to 1. "
            "Divide each row by its sum (T[y, w] = P(w | y))."
        )
    return matrix


def _rate(rate: float | None, has_matrix: bool, name: str) -> float | None:
    if rate is not None and has_matrix:
        raise SupervisionError(f"{name}: both a matrix and rate={rate!r}; expected one of them. Drop the rate.")
    if rate is not None and not 0 <= number(rate) < 1:
        raise SupervisionError(
            f"{name}: rate={rate!r}; expected a share of wrong labels in [0, 1). Give a share, not a percentage."
        )
    return rate


def _symmetric(rate: float | None, Y: int, name: str, option: str) -> Tensor:
    if rate is None:
        raise SupervisionError(
            f"{name}: neither {option} nor rate is known; expected one of them. Pass one, or "
            "estimate it from out-of-fold predictions with the class method estimate."
        )
    return symmetric_confusion(rate, Y)


def _fitting(matrix: Tensor, Y: int, reader: WeakReader) -> Tensor:
    if matrix.shape[-1] != Y:
        raise SupervisionError(
            f"{reader.name}: confusion matrix of {matrix.shape[-1]} classes; expected {Y}, as the "
            "predictions have. Give a row and a column for every class."
        )
    return matrix.to(device=reader.device, dtype=reader.dtype)
