"""Gibbs sampling of a crowd: classes, confusion matrices, pseudo-answers and kinds of annotators, all of them unknown.

Task t has a class y_t ~ prior, annotator a a kind g_a and answers w ~ T_a[y_t]; row y of T_a is drawn from a Dirichlet
with pseudo-answers s[g_a, y], of which log s ~ Normal(0, SPREAD^2). Where a fixed point would commit itself to one
value of each, the samples average over what the answers leave open.

N tasks, A annotators, C classes, G kinds, M answers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

SPREAD = 1.5  # of the logarithm of a pseudo-answer: a factor of 20 up or down is within two of these
STEP = 0.5  # of its random walk
BURN_IN = 200  # sweeps before the first sample
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class CrowdSamples(NamedTuple):
    """Means over the samples."""

    posterior: Floats  # (N, C)
    transitions: Floats  # (A, C, C)
    prior: Floats  # (C,)
    pseudo_answers: Floats  # (C, C), of an annotator drawn at random
    drift: float  # mean difference of the posterior between the first and the last half of the samples


class _Answers(NamedTuple):
    task: Integers  # (M,)
    worker: Integers  # (M,)
    label: Integers  # (M,)
    num_workers: int


def sample_crowd(
    columns: tuple[Integers, Integers, Integers],
    start: Floats,
    pseudo: Floats,
    num_workers: int,
    *,
    log_known: Floats | None,
    kinds: int,
    samples: int,
    seed: int,
) -> CrowdSamples:
    """Average `samples` sweeps, from the posterior `start` (N, C) and the pseudo-answers `pseudo` (C, C).

    columns: task, worker and label of each answer. log_known: log of the classes' shares where they are known.
    """
    rng = np.random.default_rng(seed)
    answers = _Answers(*columns, num_workers)
    C = start.shape[1]
    # unequal beginnings, so that the kinds can part; the right answer stays the most frequent one of its row
    strengths = pseudo * np.exp(rng.normal(0, 0.5 if kinds > 1 else 0.0, (kinds, C, C)))
    strengths = np.where(np.eye(C, dtype=bool), strengths.max(-1, keepdims=True), strengths)
    kind = rng.integers(0, kinds, num_workers)
    log_prior = np.zeros(C) if log_known is None else log_known
    posterior, halves = start, np.zeros((2, *start.shape))
    transitions, shares, mean_pseudo = np.zeros((num_workers, C, C)), np.zeros(C), np.zeros((C, C))
    for sweep in range(-BURN_IN, samples):
        classes = _draw(posterior, rng)
        counts = _counts(answers, classes, C)
        kind = _draw_kinds(counts, strengths, kind, rng)
        strengths = np.stack([_walk(counts[kind == g], strengths[g], rng) for g in range(kinds)])
        log_confusion = _log_dirichlet(counts + strengths[kind], rng)
        if log_known is None:
            log_prior = _log_dirichlet(1.0 + _tally(classes, C), rng)
        posterior = _posterior(answers, log_confusion, log_prior, len(start))
        if sweep >= 0:
            halves[2 * sweep // samples] += posterior
            transitions += np.exp(log_confusion) / samples
            shares += np.exp(log_prior) / samples
            mean_pseudo += strengths[kind].mean(0) / samples
    first, last = -(-samples // 2), samples // 2
    drift = np.abs(halves[0] / first - halves[1] / max(last, 1)).mean() if last else 1.0
    return CrowdSamples(halves.sum(0) / samples, transitions, shares, mean_pseudo, float(drift))


def _counts(answers: _Answers, classes: Integers, C: int) -> Floats:
    """(A, C, C): how often a worker met class y and said w."""
    cell = (answers.worker * C + classes[answers.task]) * C + answers.label
    return _tally(cell, answers.num_workers * C * C).reshape(-1, C, C)


def _tally(indices: Integers, size: int) -> Floats:
    return np.bincount(indices, minlength=size).astype(np.float64)


def _posterior(answers: _Answers, log_confusion: Floats, log_prior: Floats, num_tasks: int) -> Floats:
    """P(class | answers, confusions, prior) of every task."""
    columns = [
        log_prior[y] + np.bincount(answers.task, log_confusion[answers.worker, y, answers.label], minlength=num_tasks)
        for y in range(len(log_prior))
    ]
    return _softmax(np.stack(columns, 1))


def _draw_kinds(counts: Floats, strengths: Floats, kind: Integers, rng: np.random.Generator) -> Integers:
    """Kind of each annotator given the counts, with confusions integrated out."""
    if len(strengths) == 1:
        return kind
    log_size = _log_dirichlet(1.0 + _tally(kind, len(strengths)), rng)
    rows = counts.sum(-1)
    evidence = [(_rising(counts, s).sum(-1) - _rising(rows, s.sum(-1))).sum(-1) for s in strengths]
    return _draw(_softmax(np.stack(evidence, 1) + log_size), rng)


def _walk(counts: Floats, pseudo: Floats, rng: np.random.Generator) -> Floats:
    """A Metropolis step for each pseudo-answer (C, C), given the counts (A, C, C) of the annotators of one kind.

    The right answer stays the most frequent one of its row: else two classes could change names.
    """
    C = len(pseudo)
    pseudo, met, row = pseudo.copy(), counts.sum(-1), pseudo.sum(-1)
    for label in range(C):
        old = pseudo[:, label]
        new = old * np.exp(rng.normal(0, STEP, C))
        said, new_row = counts[..., label], row - old + new
        gain = (_rising(said, new) - _rising(said, old)).sum(0) - (_rising(met, new_row) - _rising(met, row)).sum(0)
        gain -= (np.log(new) ** 2 - np.log(old) ** 2) / (2 * SPREAD**2)
        moved = pseudo.copy()
        moved[:, label] = new
        accepted = (np.log(rng.random(C)) < gain) & (np.diag(moved) >= moved.max(1))
        pseudo[accepted, label], row[accepted] = new[accepted], new_row[accepted]
    return pseudo


def _rising(count: Floats, start: Floats) -> Floats:
    """log of start (start + 1) ... (start + count - 1)."""
    total = torch.from_numpy(count + start)
    return np.asarray((torch.lgamma(total) - torch.lgamma(torch.from_numpy(start))).numpy())


def _draw(shares: Floats, rng: np.random.Generator) -> Integers:
    """One index for each row of probabilities."""
    edges = shares.cumsum(-1)
    drawn = (edges < rng.random((len(shares), 1)) * edges[:, -1:]).sum(-1)
    return np.asarray(drawn, dtype=np.int64)


def _log_dirichlet(strengths: Floats, rng: np.random.Generator) -> Floats:
    """The logarithm of a draw, of a gamma variable one step up so that small strengths do not round to 0."""
    log_gamma = np.log(rng.standard_gamma(strengths + 1)) + np.log1p(-rng.random(strengths.shape)) / strengths
    top = log_gamma.max(-1, keepdims=True)
    return np.asarray(log_gamma - top - np.log(np.exp(log_gamma - top).sum(-1, keepdims=True)))


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))
