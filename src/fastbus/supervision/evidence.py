"""What a weak label says, in the engine's terms: instance evidence, and rules with evidence at the end.

Shapes: B bags, K instances, Y labels of an instance, G chains a bag (one a class, or one in all),
Z states.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fastbus.numerics import NEG_INF

if TYPE_CHECKING:
    from fastbus.supervision.base import Supervision


@dataclass(frozen=True)
class Soft:
    """A statement about the last state's distribution, applied after all hard evidence.

    "jeffrey": the distribution of the state is set to `target` (B, G, Z).
    "mean": the nearest distribution whose mean of `value` (Z,) is `target` (B, G) is taken.
    """

    kind: Literal["jeffrey", "mean"]
    target: Tensor
    active: Tensor  # (B, G) where there is such a statement
    value: Tensor | None = None

    def without(self, bags: Tensor) -> Soft:
        return replace(self, active=self.active & ~bags[:, None])

    def rows(self, bags: Tensor) -> Soft:
        return replace(self, target=self.target[bags], active=self.active[bags])


@dataclass(frozen=True)
class Rule:
    """One fold over the labels of a bag, and what is known of its last state."""

    supervision: Supervision
    log_evidence: Tensor  # (B, G, Z) log P(w | last state), 0 where the weak label is missing
    observed: Tensor  # (B, G)
    positive_class: int | None = None  # a binary rule's class among the C; None: one chain a class
    soft: Soft | None = None

    @property
    def per_class(self) -> bool:
        return self.supervision.labels == "per_class"

    @property
    def fold(self) -> str:
        return self.supervision.fold

    @property
    def informed(self) -> Tensor:
        """(B, G) where this rule says anything."""
        return self.observed if self.soft is None else self.observed | self.soft.active

    def support(self) -> Tensor:
        """(B, G, Z) log evidence with 0 / -inf for a Jeffrey factor: which last states are possible."""
        if self.soft is None or self.soft.kind != "jeffrey":
            return self.log_evidence
        outside = self.soft.active[..., None] & (self.soft.target == 0)
        return self.log_evidence.masked_fill(outside, NEG_INF)

    def rows(self, bags: Tensor) -> Rule:
        """What is said about some of the bags."""
        return replace(
            self,
            log_evidence=self.log_evidence[bags],
            observed=self.observed[bags],
            soft=self.soft and self.soft.rows(bags),
        )

    def without(self, bags: Tensor) -> Rule:
        return replace(
            self,
            log_evidence=self.log_evidence.masked_fill(bags[:, None, None], 0.0),
            observed=self.observed & ~bags[:, None],
            soft=self.soft and self.soft.without(bags),
        )


@dataclass(frozen=True)
class Evidence:
    """All that the weak labels of a batch say."""

    rules: tuple[Rule, ...] = ()
    instance: Tensor | None = None  # (B, K, Y) log P(w_k | y_k); multi-label gold: (B, K, C, 2)
    instance_observed: Tensor | None = None  # (B, K), multi-label gold: (B, K, C)
    bag_weight: Tensor | None = None  # (B,) a factor of the loss, e.g. 1 / r of the Pconf risk
    names: tuple[str, ...] = field(default=())

    def without(self, bags: Tensor) -> Evidence:
        """Drop everything that is said about the flagged bags (B,)."""
        instance, observed = self.instance, self.instance_observed
        if instance is not None and observed is not None:
            instance = instance.masked_fill(_like(bags, instance), 0.0)
            observed = observed & ~_like(bags, observed)
        rules = tuple(rule.without(bags) for rule in self.rules)
        return replace(self, rules=rules, instance=instance, instance_observed=observed)

    def merged(self, other: Evidence) -> Evidence:
        """Both at once: instance evidence multiplies, rules stand side by side."""
        instance, observed = self.instance, self.instance_observed
        if instance is None:
            instance, observed = other.instance, other.instance_observed
        elif other.instance is not None:
            assert observed is not None and other.instance_observed is not None
            instance = instance + other.instance
            observed = observed | other.instance_observed
        weight = self.bag_weight
        if other.bag_weight is not None:
            weight = other.bag_weight if weight is None else weight * other.bag_weight
        return Evidence(self.rules + other.rules, instance, observed, weight, self.names + other.names)


def _like(bags: Tensor, x: Tensor) -> Tensor:
    return bags.reshape(-1, *([1] * (x.dim() - 1)))


def log_indicator(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, -inf elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, NEG_INF)
