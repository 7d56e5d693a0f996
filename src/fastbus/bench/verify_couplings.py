"""Couplings of a softmax head on small bags: how far each is from enumeration, exact ones not at all.

Bags are of one size, their truth is drawn from the predictions, their weak labels are complete. The
fallbacks are forced: by name, and by a budget of one state under "auto".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastbus.inference.infer import infer
from fastbus.oracle import enumerate_posterior
from fastbus.supervision import LabelProportion, MultiInstance, Supervision

SHAPES = ((4, 3), (4, 4), (7, 3), (7, 4))  # (K, C)
SCALES = (1.0, 2.0)
BAGS = 40
EXACT = 1e-12


class CouplingRow(NamedTuple):
    """Mean absolute error of the posterior of one supervision and bag shape; NaN: not on offer."""

    supervision: str
    bag_size: int
    classes: int
    scale: float
    prior: float
    independent: float
    tilted: float
    loop: float
    fallback: float  # "auto" with a budget of one state
    auto: float
    converged: float  # share of bags whose fallback converged

    @property
    def passed(self) -> bool:
        """Exact is exact, and the fallback beats one-vs-rest chains, which beat the prediction."""
        ordered = self.fallback < self.independent < self.prior
        return self.auto <= EXACT and ordered


def softmax_bags(rng: np.random.Generator, bags: int, K: int, C: int, scale: float) -> tuple[Tensor, Tensor]:
    """Logits (B, K, C) and labels (B, K, C) one-hot, drawn from them."""
    logits = scale * rng.normal(size=(bags, K, C))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=-1)
    return torch.from_numpy(logits), torch.from_numpy(np.eye(C, dtype=int)[labels])


def compare_couplings(supervision: Supervision, K: int, C: int, scale: float, bags: int, seed: int) -> CouplingRow:
    """All couplings of one supervision on the same bags."""
    rng = np.random.default_rng([seed, K, C, int(10 * scale)])
    logits, labels = softmax_bags(rng, bags, K, C, scale)
    counts = labels.sum(1)
    counting = isinstance(supervision, LabelProportion)
    weak = counts if counting else (counts > 0).long()
    right = torch.from_numpy(enumerate_posterior(supervision, logits, weak).labels)

    def error(**options: Any) -> float:
        return _mean_error(infer(supervision, logits, weak, **options).labels, right)

    fallback = infer(supervision, logits, weak, budget=1)
    return CouplingRow(
        supervision=supervision.name,
        bag_size=K,
        classes=C,
        scale=scale,
        prior=_mean_error(logits.softmax(-1), right),
        independent=error(coupling="independent"),
        tilted=error(coupling="tilted") if counting else float("nan"),
        loop=float("nan") if counting else error(coupling="loop"),
        fallback=_mean_error(fallback.labels, right),
        auto=error(),
        converged=float(fallback.converged.double().mean()),
    )


def _mean_error(found: Tensor, right: Tensor) -> float:
    return float((found - right).abs().mean())


def compare_all(seed: int, bags: int = BAGS) -> Iterator[CouplingRow]:
    """Label proportions and multi-instance labels over all shapes and scales."""
    for supervision in (LabelProportion(), MultiInstance()):
        for K, C in SHAPES:
            for scale in SCALES:
                yield compare_couplings(supervision, K, C, scale, bags, seed)
