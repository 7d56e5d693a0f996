"""The weak label that predictions expect of a bag: what a rule would say of labels drawn from them.

The labels of a bag are drawn one by one, so the rule's last state is reached by a plain forward pass; the weak
label is the one of largest probability there. Classes are judged one by one, since what is said of a class depends
on that class's probabilities alone; only the counts of classes that exclude each other are judged together, so that
they fill the bag (`exclusive_counts`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.inference.exclusive_counts import exclusive_counts
from fastbus.supervision.aggregate import LabelProportion
from fastbus.supervision.automaton import transition_table
from fastbus.supervision.base import Supervision
from fastbus.supervision.pairwise import DIFFERENT, SIMILAR


def expected_weak(
    supervision: Supervision, probs: Tensor, sizes: Tensor, per_class: bool, *, exclusive: bool
) -> Tensor:
    """Most probable weak labels of flat predictions (N, C) with bag sizes (B,).

    Instance-level kinds return class indices (N,), confidences return the confidence itself, rules over a
    finite set of weak labels return the most probable one: (B,) about the last class, or (B, C) with
    `per_class`. Proportions return counts, or fractions where that is their unit. With `exclusive` (a softmax
    head) the counts of all classes sum to the bag size: they are the most probable counts together where those can
    be listed, else the expected counts, rounded by the largest remainders. Noisy counts need not sum to anything,
    and are the most probable report about each class.
    """
    if supervision.level != "bag":
        return probs.argmax(-1) if probs.shape[-1] > 1 else (probs[:, 0] >= 0.5).long()
    positive = probs[:, -1]
    if supervision.title == "positive_confidence":
        return positive
    if supervision.title == "confidence_difference":
        pairs = positive.reshape(-1, 2)
        return pairs[:, 1] - pairs[:, 0]
    if supervision.title == "similarity_confidence":
        return _agreement(probs.reshape(len(sizes), 2, -1))
    counts = isinstance(supervision, LabelProportion)
    rule = _exact(supervision) if isinstance(supervision, LabelProportion) else supervision
    fills = exclusive and per_class and probs.shape[-1] > 1
    fills = fills and isinstance(rule, LabelProportion) and rule.noise is None
    candidates = rule.weak_labels(int(sizes.max()))
    if candidates is None:
        raise SupervisionError(
            f"{supervision.title}: its weak labels are no finite set; expected one to choose from. Read the "
            "posterior instead, or predict with the exact form of the supervision."
        )
    kind = torch.tensor(list(candidates)).dtype
    columns = probs.shape[-1] if per_class and rule.labels == "per_class" else 1
    result = torch.zeros(len(sizes), columns, dtype=kind)
    starts = sizes.cumsum(0) - sizes
    for size in sizes.unique().tolist():
        bags = torch.nonzero(sizes == size).flatten()
        values = torch.tensor(list(rule.weak_labels(size) or ()), dtype=kind)
        rows = probs[starts[bags][:, None] + torch.arange(size)]  # (b, K, C)
        if fills:
            result[bags] = exclusive_counts(rows)
            continue
        if rule.labels == "categorical":
            scores = weak_probabilities(rule, _with_complement(rows), values)
        else:
            positive = rows[..., -columns:].permute(2, 0, 1).reshape(-1, size)
            scores = weak_probabilities(rule, torch.stack([1 - positive, positive], -1), values)
        result[bags] = values[scores.argmax(-1)].reshape(columns, len(bags)).T
    weak = result if per_class else result[:, 0]
    if counts and getattr(supervision, "unit", "count") == "fraction":
        return weak / (sizes[:, None] if per_class else sizes)
    return weak


def weak_probabilities(rule: Supervision, labels: Tensor, values: Tensor) -> Tensor:
    """P(weak label = value) of bags of one size with independent labels (b, K, Y), as (b, W)."""
    if rule.fold == "similar":
        similar = _agreement(labels)
        ends = rule.evidence(torch.tensor([DIFFERENT, SIMILAR]), values[:, None]).to(labels.dtype)  # (W, 2)
        return torch.stack([1 - similar, similar], -1) @ ends.T
    states = last_states(rule, labels)
    evidence = rule.evidence(torch.arange(states.shape[-1]), values[:, None]).to(labels.dtype)  # (W, Z)
    return states @ evidence.T


def last_states(rule: Supervision, labels: Tensor) -> Tensor:
    """Distribution (b, Z) of the last state under independent labels (b, K, Y)."""
    b, size, Y = labels.shape
    Z = rule.checked_num_states(size)
    table = transition_table(rule, size, Z, Y)
    states = torch.zeros(b, Z + 1, dtype=labels.dtype)  # unreachable entries lead to a sink, Z
    states[:, 0] = 1
    for position in range(size):
        step = table[min(position, len(table) - 1)]
        mass = states[:, :Z, None] * labels[:, position, None, :]
        states = torch.zeros_like(states).index_add(1, step.reshape(-1), mass.reshape(b, -1))
    return states[:, :Z]


def _agreement(pairs: Tensor) -> Tensor:
    """P(both of the same class) of pairs (B, 2, C)."""
    labels = _with_complement(pairs)
    return (labels[:, 0] * labels[:, 1]).sum(-1)


def _with_complement(probs: Tensor) -> Tensor:
    """Both labels of a single sigmoid; other predictions as they are."""
    return probs if probs.shape[-1] > 1 else torch.cat([1 - probs, probs], -1)


def _exact(supervision: LabelProportion) -> LabelProportion:
    """The statement about counts, whatever form the given ones have."""
    return LabelProportion(noise=supervision.noise if supervision.kind == "exact" else None)
