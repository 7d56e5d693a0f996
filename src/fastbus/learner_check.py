"""Whether a fit has learnt anything: weak labels must be more probable by its predictions than by constant ones.

Some weak labels have a symmetric start, where a network that says the same of all instances is hard to leave: similar
pairs, large bags. A fit that ends there ends in silence otherwise, with predictions that look like any others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastbus.errors import NothingLearntWarning
from fastbus.numerics import log_softmax
from fastbus.training.bag_set import BagSet
from fastbus.training.whole_set import infer_set

FEWEST, MOST = 30, 1000  # bags: fewer say nothing, and of more a part says enough
ROUNDING = 1e-9
# What the mean gain must exceed: so many of its standard errors, and such a share of what is to be explained. Three
# fits of 600 pairs of digits, similar where both are below 5 or neither is, stayed at chance with 0, .02 and .2 %.
SURE, LEAST = 1.0, 0.01


@torch.no_grad()
def warn_of_chance(data: BagSet, predict: Callable[[Tensor], Tensor], options: dict[str, Any], epochs: int) -> None:
    """Warn where bags of the training set are no more probable by `predict`, rows to logits, than by its mean.

    Labels of single instances have no such start, and of sets of known prior it is the best explanation: these are
    left out.
    """
    if any(part.level != "bag" for part in data.parts) or int(data.sizes.max()) == 1:
        return
    heard = torch.arange(len(data)) if data.bag_weights is None else torch.nonzero(data.bag_weights).flatten()
    if len(heard) < FEWEST:
        return
    some = data.subset(heard[:: -(-len(heard) // MOST)])
    logits = predict(some.instances).double().cpu()
    both = [infer_set(some, x, **options).log_likelihood.double() for x in (logits, constant_of(logits, options))]
    # a missing label has a likelihood of 1, an impossible one that is ignored may have none
    spoken = both[0].isfinite() & both[1].isfinite() & (torch.maximum(both[0].abs(), both[1].abs()) > ROUNDING)
    mine, same = (x[spoken] for x in both)
    gain = mine - same
    least = max(SURE * float(gain.std()) / max(1, len(gain)) ** 0.5, -LEAST * float(same.mean()))
    if len(gain) < FEWEST or float(gain.mean()) > least:
        return
    warnings.warn(
        f"{data.supervision.title}: after {epochs} epochs the weak labels are no more probable by the predictions than "
        f"by the same ones for every instance (log-likelihood {mine.mean():.3f} and {same.mean():.3f} a bag); expected "
        "a fit that tells instances apart. Train longer with epochs=, from another seed or with another "
        "learning_rate=, or see whether the weak labels belong to these instances.",
        NothingLearntWarning,
        stacklevel=4,  # the caller of fit: no_grad adds a place
    )


def constant_of(logits: Tensor, options: dict[str, Any]) -> Tensor:
    """Logits (N, C) of the mean prediction, the same in every row."""
    if options["head"] == "softmax":
        mean = torch.logsumexp(log_softmax(logits, -1), 0)
    else:
        mean = torch.logsumexp(torch.nn.functional.logsigmoid(logits), 0)
        mean = mean - torch.logsumexp(torch.nn.functional.logsigmoid(-logits), 0)
    return mean.expand_as(logits)
