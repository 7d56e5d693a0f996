"""The share of positives among unlabelled instances, estimated from scores of a classifier that did not see them.

The classifier need only tell known positives from unlabelled instances, the hidden positives among these included:
it ranks, and the ranks are enough.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastbus.errors import InputError

SLACK, DOUBT = 0.01, 0.1  # gamma and delta of the best bin


def best_bin_estimate(positive: Tensor, unlabelled: Tensor, slack: float = SLACK, doubt: float = DOUBT) -> float:
    """The share of positives among the unlabelled, from scores of held-out positives (P,) and of unlabelled (U,).

    q_u(c) / q_p(c), with q the share of scores from c on, bounds that share from above wherever negatives score
    below c. The threshold c is the one at which the bound with its uncertainty,
    (q_u + (1 + slack) (w_u + w_p)) / q_p with w = sqrt(log(4 / doubt) / 2n), is smallest.
    """
    positive, unlabelled = positive.double().sort().values, unlabelled.double().sort().values
    cuts = torch.cat([positive, unlabelled])
    at_least = [(len(x) - torch.searchsorted(x, cuts, right=False)).double() / len(x) for x in (positive, unlabelled)]
    q_p, q_u = (q[at_least[0] > 0] for q in at_least)
    width = sum(math.sqrt(math.log(4 / doubt) / (2 * len(x))) for x in (positive, unlabelled))
    best = int(((q_u + (1 + slack) * width) / q_p).argmin())
    return min(1.0, float(q_u[best] / q_p[best]))


def estimate_prior(scores: Tensor, positive: Tensor, fold: Tensor | None = None) -> float:
    """The same from scores (N,) out of fold, of which known positives (N,) are marked; strictly between 0 and 1.

    fold: (N,) which classifier gave a score. Scores of different ones are comparable as ranks among the unlabelled.
    """
    positive = positive.bool().cpu()
    if not bool(positive.any()) or bool(positive.all()):
        raise InputError(
            f"{int(positive.sum())} known positives among {len(positive)} instances; expected some, and some "
            "unlabelled. Give both."
        )
    fold = torch.zeros(len(scores), dtype=torch.long) if fold is None else fold.cpu()
    ranks = scores.detach().double().cpu().clone()
    for number in fold.unique().tolist():
        mine = fold == number
        others = ranks[mine & ~positive].sort().values
        ranks[mine] = torch.searchsorted(others, ranks[mine], right=True).double() / max(1, len(others))
    share = best_bin_estimate(ranks[positive], ranks[~positive])
    least = 1 / (2 * int((~positive).sum()))
    return min(max(share, least), 1 - least)
