"""Confusion matrices: symmetric ones, and estimates from predictions that did not see the labels.

A free network makes T = I optimal for whatever labels it is trained on, so T is estimated from
out-of-fold or early predictions, and stays diagonally dominant.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fastbus.errors import InputError, WeakLabelError, first_entry, reject
from fastbus.numerics import log_softmax, message_dtype, safe_log


def symmetric_confusion(rate: float, num_classes: int) -> Tensor:
    """Keep a label with probability 1 - rate, else replace it by one of the other classes."""
    wrong = rate / max(num_classes - 1, 1)
    matrix = torch.full((num_classes, num_classes), wrong, dtype=torch.float64)
    matrix.fill_diagonal_(1 - rate)
    return matrix


ENOUGH = 100  # labels of a class, whose share of right ones is then good to some hundredths
STRENGTHS = torch.logspace(0, 5, 51, dtype=torch.float64)  # of what classes have in common, in labels


def estimate_confusion(log_prob: Tensor, labels: Tensor, *, share: float = 0.1, strength: float = 1.0) -> Tensor:
    """T (C, C) from labels (N,), -1 for none, and predictions (N, C) that did not see them.

    A model of noisy labels foretells those, and T = I would explain them best. But where it is most
    confident its class is the true one, so the labels of that `share` of each class are counted, of small classes up
    to a half. A larger share counts the model's errors as those of labels: 4,000 pieces of clothing, 30 % wrong, .343
    from a half and .309 from a fifth. `strength` pseudo-labels on the diagonal and as many spread over the rows stand
    beside the counts of all classes, which then share what they have in common (`shrunk_rows`).
    """
    _check_answers(log_prob, labels[:, None])
    C = log_prob.shape[1]
    counts = torch.zeros(C, C, dtype=torch.float64)
    confidence, predicted = log_prob.detach().cpu().double().log_softmax(-1).max(-1)
    labels = labels.cpu().long()
    for row in range(C):
        confident = torch.nonzero((predicted == row) & (labels != -1)).flatten()
        confident = confident[confidence[confident].argsort(descending=True, stable=True)]
        few = min(ENOUGH, math.ceil(len(confident) / 2))
        chosen = confident[: max(few, math.ceil(share * len(confident)))]
        counts[row] += torch.bincount(labels[chosen], minlength=C)
    return _diagonally_dominant(shrunk_rows(counts, strength))


def shrunk_rows(counts: Tensor, strength: float = 1.0) -> Tensor:
    """Rows of a confusion matrix (C, C) from counts (C, C): empirical Bayes, as much alike as the counts are.

    The share of right labels has a beta prior around that of all classes, the wrong ones of a row a Dirichlet prior
    around an even spread; how strong the two are is what makes the counts most probable. Errors without a pattern come
    out even, although each entry was counted from a handful of labels, and favourite errors stay.
    """
    C = counts.shape[0]
    right, total = counts.diagonal(), counts.sum(1)
    off = ~torch.eye(C, dtype=torch.bool)
    wrong = counts[off].reshape(C, C - 1)
    mean = (right.sum() + strength * (1 + 1 / C)) / (total.sum() + 2 * strength)
    two = torch.stack([right, total - right], 1)
    diagonal = _shrunk(two, torch.stack([mean, 1 - mean]))[:, 0]
    spread = _shrunk(wrong, wrong.new_full((C - 1,), 1 / max(C - 1, 1)))
    matrix = torch.diag(diagonal)
    matrix[off] = ((1 - diagonal)[:, None] * spread).flatten()
    return matrix


def _shrunk(counts: Tensor, mean: Tensor) -> Tensor:
    """Shares (R, J) from counts (R, J) under the Dirichlet prior around `mean` (J,) that explains all rows best."""
    prior = STRENGTHS[:, None, None] * mean  # (S, 1, J)
    total = counts.sum(1)
    evidence = torch.lgamma(counts + prior).sum(2) - torch.lgamma(prior).sum(2)
    evidence = evidence + torch.lgamma(STRENGTHS)[:, None] - torch.lgamma(STRENGTHS[:, None] + total)
    best = STRENGTHS[evidence.sum(1).argmax()]
    return (counts + best * mean) / (total + best)[:, None]


def class_shares(labels: Tensor, confusion: Tensor, iterations: int = 30) -> Tensor:
    """Shares (C,) of the true classes that make labels (N,), -1 for none, with a confusion matrix (C, C) probable.

    By few steps of EM from even shares: where labels say much they are enough, and where they say little it stays near
    even ones. Images of CIFAR-10 with 70 % wrong labels and an estimated matrix: shares from .08 to .11 after 20 steps,
    in the limit from .01 to .13, although all classes have .10.
    """
    counts = torch.bincount(labels[labels >= 0].cpu().long(), minlength=len(confusion)).double()
    likelihood = confusion.cpu().double()
    shares = torch.full_like(counts, 1 / len(counts))
    for _ in range(iterations if bool(counts.any()) else 0):
        joint = shares[:, None] * likelihood
        shares = (joint / joint.sum(0).clamp(min=torch.finfo(joint.dtype).tiny)) @ counts / counts.sum()
    return shares


def estimate_confusions(
    log_prob: Tensor,
    answers: Tensor,
    *,
    strength: float = 1.0,
    iterations: int = 200,
    tolerance: float = 1e-9,
) -> Tensor:
    """EM for the confusions (A, C, C) of annotators, with the predictions (N, C) held fixed.

    `answers` (N, A) holds classes, -1 for none. `strength` pseudo-answers on each diagonal and as many
    spread over each row keep rarely seen annotators sensible.
    """
    _check_answers(log_prob, answers)
    C, A = log_prob.shape[1], answers.shape[1]
    answers = answers.to(log_prob.device, torch.long)
    given = answers != -1
    if not bool((given.sum(1) >= 3).any()):
        warnings.warn(
            "fewer than 3 annotators overlap: their confusions are not identifiable from the "
            "answers alone and lean on the predictions",
            stacklevel=3,
        )
    prior = log_softmax(log_prob.detach().to(message_dtype(log_prob.device)), -1)
    said = one_hot(answers.clamp(min=0), C).to(prior.dtype) * given[..., None]  # (N, A, C)
    pseudo = strength * (torch.eye(C, dtype=prior.dtype, device=prior.device) + 1.0 / C)
    confusion = pseudo.expand(A, C, C) / pseudo.sum(-1, keepdim=True)
    for _ in range(iterations):
        log_said = torch.einsum("nac,ayc->ny", said, safe_log(confusion))
        posterior = log_softmax(prior + log_said, -1).exp()
        counts = torch.einsum("ny,nac->ayc", posterior, said) + pseudo
        updated = counts / counts.sum(-1, keepdim=True)
        change = float((updated - confusion).abs().max())
        confusion = updated
        if change < tolerance:
            break
    return _diagonally_dominant(confusion)


def _check_answers(log_prob: Tensor, answers: Tensor) -> None:
    if log_prob.dim() != 2 or answers.dim() != 2 or log_prob.shape[0] != answers.shape[0]:
        raise InputError(
            f"predictions {tuple(log_prob.shape)} and answers {tuple(answers.shape)}; expected "
            "(N, C) and (N, A). Give one row for every instance to both."
        )
    C = log_prob.shape[1]
    if answers.is_floating_point() or answers.is_complex() or answers.dtype == torch.bool:
        raise WeakLabelError(f"answers of dtype {answers.dtype}; expected integers. Convert them with .long().")
    bad = (answers < -1) | (answers >= C)
    if bool(bad.any()):
        reject(
            WeakLabelError,
            bad,
            got=f"answer {first_entry(answers, bad)}",
            expected=f"class indices 0 to {C - 1}, -1 for none",
            cure="Re-encode the answers.",
            noun="row",
        )


def _diagonally_dominant(confusion: Tensor) -> Tensor:
    """Lift each diagonal entry to the largest of its row, and normalise again."""
    lifted = confusion.amax(-1)
    diagonal = torch.diag_embed(lifted - confusion.diagonal(dim1=-2, dim2=-1))
    raised = confusion + diagonal
    return raised / raised.sum(-1, keepdim=True)
