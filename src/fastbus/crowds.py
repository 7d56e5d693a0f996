"""aggregate_crowd: the labels behind the answers of a crowd, without any features of the tasks.

The model: task t has a class y_t ~ prior; annotator a answers w ~ T_a[y_t]; row y of T_a is drawn from a
Dirichlet with pseudo-answers s[y] that all annotators share. Those are learned from the crowd as a whole
(empirical Bayes), so annotators with few answers are read as typical members of it. T and the prior are
integrated out: each answer is weighed by what all OTHER tasks say about its annotator (collapsed variational
Bayes of order zero), so no answer vouches for itself. `samples` goes on from there by Gibbs sampling
(`fastbus.crowd_sampling`), which averages over the pseudo-answers too and knows several kinds of annotators.

N tasks, A annotators, C classes, M answers.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbus.bag_layout import read_tensor
from fastbus.crowd_sampling import sample_crowd
from fastbus.errors import InputError, WeakLabelError, first_entry, reject
from fastbus.numerics import log_softmax, safe_log
from fastbus.supervision.imperfect import answers_from_table

# Pseudo-answers of one entry: an entry nobody ever uses would fall to 0, one all agree on would grow for ever.
FEWEST, MOST = 1e-3, 200.0
MOST_DRIFT = 0.02  # of the mean posterior from one half of the samples to the other
FIXED_POINT_STEPS = 5  # of the pseudo-answers, for each round over the tasks


class CrowdLabels(NamedTuple):
    """What the answers say: of each task, of each annotator, and of the classes."""

    posterior: Tensor  # (N, C) P(class | all answers)
    transitions: Tensor  # (A, C, C) expected confusion matrix of each annotator, for `CrowdLabel`
    prior: Tensor  # (C,) share of each class
    pseudo_answers: Tensor  # (C, C) what a new annotator is believed to answer, and how firmly
    rounds: int
    converged: bool  # with samples: and both halves of them agree

    @property
    def labels(self) -> Tensor:
        """The most probable class of each task, (N,)."""
        return self.posterior.argmax(-1)


def aggregate_crowd(
    answers: Any,
    *,
    num_classes: int | None = None,
    prior: Any = None,
    strength: float | None = None,
    rounds: int = 500,
    tolerance: float = 1e-6,
    samples: int = 0,
    kinds: int = 2,
    random_state: int = 0,
) -> CrowdLabels:
    """The posterior of every task's class from the answers of annotators of unknown reliability.

    It pays where annotators differ. With few answers of equally unreliable ones there is nobody to trust more, and a
    majority vote can be as good or better.

    answers: classes (N, A), -1 for none, or a tuple of columns (task, worker, label) of indices.
    num_classes: where the answers do not show all of them. prior: known shares (C,) of the classes; else learned.
    strength: pseudo-answers in each row of a confusion matrix; None learns them, entry by entry.
    rounds, tolerance: when to stop, by the largest change of the posterior.
    samples: average over this many Gibbs samples, 800 say: seconds instead of a fraction of one. Held-out answers of
        real crowds were more probable so. kinds: of annotators, which samples tell apart. random_state: their seed.
    """
    said = _read(answers)
    C = int(said.max()) + 1 if num_classes is None else num_classes
    _check(said, C, strength)
    _check_samples(samples, kinds, strength)
    known = None if prior is None else _read_prior(prior, C)
    if not bool(((said >= 0).sum(1) >= 3).any()):
        warnings.warn(
            "fewer than 3 annotators overlap on every task: their confusions are not identifiable, and the "
            "result follows the majority",
            stacklevel=2,
        )
    task, worker = torch.nonzero(said >= 0, as_tuple=True)  # (M,)
    label = said[task, worker]
    N, A = said.shape
    votes = torch.zeros(N, C, dtype=torch.float64).index_put_((task, label), torch.ones(()).double(), accumulate=True)
    posterior = torch.where(votes.sum(1, keepdim=True) > 0, votes, 1.0)
    posterior = posterior / posterior.sum(1, keepdim=True)
    pseudo = 2 * (torch.eye(C, dtype=torch.float64) + 1.0 / C)
    done, change = 0, float("inf")
    while done < rounds and change >= tolerance:
        counts = _counts(posterior, task, worker, label, A)
        pseudo = _pseudo_answers(counts, pseudo, strength)
        own = posterior[task]
        # (M, C): P(answer | class, all other tasks); the subtraction may round to just below 0
        seen = (counts[worker, :, label] - own).clamp(min=0) + pseudo[:, label].T
        rows = (counts.sum(-1)[worker] - own).clamp(min=0) + pseudo.sum(-1)
        log_prior = safe_log(posterior.sum(0) + 1 - posterior) if known is None else safe_log(known).expand(N, C)
        updated = log_softmax(log_prior.index_add(0, task, seen.log() - rows.log()), -1).exp()
        change = float((updated - posterior).abs().max())
        posterior = updated
        done += 1
    if samples:
        drawn = sample_crowd(
            (task.numpy(), worker.numpy(), label.numpy()),
            posterior.numpy(),
            pseudo.numpy(),
            A,
            log_known=None if known is None else safe_log(known).numpy(),
            kinds=kinds,
            samples=samples,
            seed=random_state,
        )
        found, confusions, classes, strengths = (torch.from_numpy(mean) for mean in drawn[:4])
        steady = change < tolerance and drawn.drift < MOST_DRIFT
        return CrowdLabels(found, confusions, classes, strengths, done, steady)
    counts = _counts(posterior, task, worker, label, A) + pseudo
    shares = posterior.sum(0) + 1
    return CrowdLabels(
        posterior=posterior,
        transitions=counts / counts.sum(-1, keepdim=True),
        prior=shares / shares.sum() if known is None else known,
        pseudo_answers=pseudo,
        rounds=done,
        converged=change < tolerance,
    )


def _counts(posterior: Tensor, task: Tensor, worker: Tensor, label: Tensor, num_workers: int) -> Tensor:
    """Expected answers (A, C, C): how often a worker met class y and said w."""
    C = posterior.shape[1]
    flat = torch.zeros(num_workers * C, C, dtype=posterior.dtype)
    flat.index_add_(0, worker * C + label, posterior[task])
    return flat.reshape(num_workers, C, C).transpose(1, 2)


def _pseudo_answers(counts: Tensor, pseudo: Tensor, strength: float | None) -> Tensor:
    """Pseudo-answers (C, C) under which the counts (A, C, C) are most probable, or the mean row times `strength`.

    The fixed point of the Dirichlet-multinomial likelihood. The right answer stays the most frequent one of
    its row: else two classes could change names.
    """
    C = counts.shape[-1]
    if strength is not None:
        total = counts.sum(0) + torch.eye(C, dtype=counts.dtype) + 1.0 / C
        pseudo = strength * total / total.sum(-1, keepdim=True)
    else:
        met = counts.sum(-1, keepdim=True)
        for _ in range(FIXED_POINT_STEPS):
            row = pseudo.sum(-1, keepdim=True)
            up = (torch.digamma(counts + pseudo) - torch.digamma(pseudo)).sum(0)
            down = (torch.digamma(met + row) - torch.digamma(row)).sum(0)
            # a class that nobody met keeps what it had
            pseudo = (pseudo * (up + 1e-6) / (down + 1e-6)).clamp(FEWEST, MOST)
    diagonal = torch.eye(C, dtype=torch.bool)
    return torch.where(diagonal, pseudo.amax(-1, keepdim=True), pseudo)


def _read(answers: Any) -> Tensor:
    if isinstance(answers, tuple):
        if len(answers) != 3:
            raise WeakLabelError(
                f"crowd table of {len(answers)} columns; expected (task, worker, label). Pass these three, or an array."
            )
        return answers_from_table(*answers)
    said = read_tensor(
        answers, "answers", WeakLabelError, expected="classes (N, A), -1 for none", cure="Number the classes from 0."
    )
    if said.is_floating_point() or said.is_complex() or said.dtype == torch.bool:
        raise WeakLabelError(f"answers of dtype {said.dtype}; expected integers. Mark missing answers with -1.")
    if said.dim() != 2 or said.numel() == 0:
        raise WeakLabelError(
            f"answers of shape {tuple(said.shape)}; expected (N, A), one column an annotator. Pass a tuple of "
            "columns for (task, worker, label) rows."
        )
    return said.detach().cpu().long()


def _check(said: Tensor, C: int, strength: float | None) -> None:
    if C < 2:
        raise InputError(f"{max(C, 0)} classes; expected 2 or more. Pass num_classes if some are never answered.")
    bad = (said < -1) | (said >= C)
    if bool(bad.any()):
        reject(
            WeakLabelError,
            bad,
            got=f"answer {first_entry(said, bad)}",
            expected=f"class indices 0 to {C - 1}, -1 for none",
            cure="Re-encode the answers.",
            noun="task",
        )
    if strength is not None and not 0 < strength < float("inf"):
        raise InputError(f"strength={strength!r}; expected a positive number of pseudo-answers. Pass None to learn it.")


def _check_samples(samples: int, kinds: int, strength: float | None) -> None:
    for name, value, least in (("samples", samples, 0), ("kinds", kinds, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}={value!r}; expected a whole number from {least} on. Pass e.g. samples=800.")
    if samples and strength is not None:
        raise InputError(
            f"strength={strength!r} with samples={samples}; expected one of them, since samples draw the strength. "
            "Leave one out."
        )


def _read_prior(prior: Any, C: int) -> Tensor:
    cure = "Give one share a class."
    shares = read_tensor(prior, "prior", InputError, expected="shares (C,)", cure=cure).detach().cpu().double()
    # stated so that NaN does not pass
    if shares.shape != (C,) or not bool((shares >= 0).all()) or not abs(float(shares.sum()) - 1) <= 1e-3:
        raise InputError(f"prior {shares.tolist()}; expected {C} shares that sum to 1. {cure}")
    return shares / shares.sum()
