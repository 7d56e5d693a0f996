"""What a rank costs: the least one that loses nothing, and the error of a smaller one against exact inference."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fastbus.errors import InputError
from fastbus.inference.infer import Coupling, Head, Inputs, infer, read_problem
from fastbus.inference.lowrank import check_rank, used_ranks
from fastbus.inference.per_chain import check_chains
from fastbus.inference.predictions import as_predictions
from fastbus.supervision.base import Supervision, resolve
from fastbus.supervision.incomplete import SimilarDissimilarUnlabeled


class RankError(NamedTuple):
    """Absolute errors of the posterior over all real entries, and how much of the likelihood is lost."""

    rank: int
    lossless_rank: int
    mean: float
    largest: float
    likelihood_gap: float  # largest difference of a bag's log-likelihood, in nats
    exact: bool


def lossless_rank(
    supervision: Supervision | str,
    logits: Any,
    weak: Any,
    mask: Any = None,
    *,
    bag_sizes: Any = None,
    head: Head = "softmax",
    inputs: Inputs = "logits",
) -> int:
    """The least rank that loses nothing of a batch: 1 + the largest state on a path to a possible ending.

    For exact counts 1 + the largest count. Of the predictions only the shape is read, so a rank holds for all
    batches of the same bags and weak labels.
    """
    rule = _one_grouping(supervision)
    x = as_predictions(logits, head, inputs).detach()
    problem, _ = read_problem(rule, x, weak, mask, bag_sizes, head, inputs=inputs)
    check_chains(problem, "auto", "lossless_rank")
    return int(used_ranks(problem).max())


def rank_error(
    supervision: Supervision | str,
    logits: Any,
    weak: Any,
    rank: int,
    mask: Any = None,
    *,
    bag_sizes: Any = None,
    head: Head = "softmax",
    inputs: Inputs = "logits",
    coupling: Coupling = "auto",
) -> RankError:
    """The error of `infer(..., rank=rank)` against the reference `infer(..., coupling=coupling)`.

    Low-rank messages run one chain a class. Under a softmax head with rules of one class at a time their error
    against exact inference holds that of coupling="independent" too; pass it as the reference to see the rank's share.
    """
    check_rank(rank)
    given: dict[str, Any] = {"mask": mask, "bag_sizes": bag_sizes, "head": head, "inputs": inputs}
    rule = _one_grouping(supervision)
    with torch.no_grad():
        cut = infer(rule, logits, weak, rank=rank, **given)
        whole = infer(rule, logits, weak, coupling=coupling, **given)
    real = whole._problem.layout
    entries = real.restore(real.mask, False)
    error = (cut.labels - whole.labels).abs()[entries]
    gap = (cut.log_likelihood - whole.log_likelihood).abs().max()
    least = lossless_rank(rule, logits, weak, **given)
    return RankError(rank, least, float(error.mean()), float(error.max()), float(gap), cut.exact)


def _one_grouping(supervision: Supervision | str) -> Supervision:
    rule = resolve(supervision)
    if isinstance(rule, SimilarDissimilarUnlabeled):
        raise InputError(
            f"{rule.title} is a sum over differently grouped bags; expected one. Ask for each of its terms."
        )
    return rule
