"""How probable the given weak labels are, beside a model that does not look at the instances, and how exact that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.report.resample import Estimate, ratio

Array = NDArray[np.float64]

MEANS = {
    "composite": "composite: a product over the classes, each taken for itself",
    "bethe": "of Bethe: an approximation by messages that need not bound the exact one",
    "truncated": "truncated: computed from messages of lower rank",
    "learned": "learned: a network stands in for the messages",
}


class Likelihood(NamedTuple):
    """Mean log P(weak labels | instances), an instance; the baseline gives every instance the average shares.

    held_out: mean of a bag that was not trained on, at the epoch whose weights were kept; None without such bags.
    kinds: how many bags have an exact likelihood, how many a composite one, ...; of sets, how many draws.
    """

    per_instance: Estimate
    baseline: Estimate
    per_bag: float
    baseline_per_bag: float
    held_out: float | None
    kinds: dict[str, int]

    @property
    def exact(self) -> bool:
        return set(self.kinds) == {"exact"}


def measure(
    mine: Array, constant: Array, sizes: NDArray[np.int64], is_set: bool, kinds: Iterable[str], held_out: float | None
) -> Likelihood:
    """Log-likelihoods of bags, or of draws from sets, by the classifier and by constant predictions."""
    total = float(sizes.sum())
    if is_set:  # the likelihoods are those of large draws, too few to draw them anew
        nan = math.nan
        per, base = (Estimate(float(x.sum()) / total, nan, nan) for x in (mine, constant))
    else:
        counts = sizes.astype(np.float64)
        per, base = (ratio(x.astype(np.float64), counts) for x in (mine, constant))
    return Likelihood(per, base, float(mine.mean()), float(constant.mean()), held_out, dict(Counter(kinds)))


def held_out_likelihood(history: list[dict[str, float]], patience: Any) -> float | None:
    """Of the best epoch where training stopped by it, since its weights are kept; else of the last."""
    values = [-row["held_out"] for row in history if "held_out" in row and math.isfinite(row["held_out"])]
    if not values:
        return None
    return max(values) if patience else values[-1]


def exactness(kinds: dict[str, int]) -> str:
    """A sentence about what the likelihoods are."""
    total = sum(kinds.values())
    other = {kind: count for kind, count in kinds.items() if kind != "exact"}
    if not other:
        return "All these likelihoods are exact."
    cure = "Compare such numbers with each other, not with exact ones."
    if len(kinds) == 1:
        return f"All these likelihoods are {MEANS[next(iter(other))]}. {cure}"
    counts = [f"{kinds['exact']:,} exact"] if "exact" in kinds else []
    counts += [f"{count:,} {MEANS[kind]}" for kind, count in sorted(other.items())]
    return f"Of {total:,} likelihoods, {'; '.join(counts)}. {cure}"
