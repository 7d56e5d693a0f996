"""ClassLoop: pairwise factors between the weak labels of a bag's classes.

    P(W, Y | x) = prod_c P(Y_c | x) 1[W_c = rule(Y_c)] * prod_{i<j} h_ij(W_i, W_j) / Z_h(x)

A weak label may be observed exactly, through a noise channel, softly, or not at all. `log P(w | x)` includes
-log Z_h(x), so its gradient is the posterior minus the loop's own prior beliefs, and it reaches the factors. Where
every weak label is observed exactly the posterior does not depend on the factors; they matter where labels are
missing, noisy or soft, and in the likelihood.
Shapes: C classes, V values of a weak label, P = C (C - 1) / 2 pairs.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastbus.errors import CouplingError, InputError, choice
from fastbus.inference.class_coupling import ClassBeliefs, ClassCoupling
from fastbus.inference.class_messages import Field, connected, enumerate_field, is_forest, sum_product
from fastbus.inference.class_statistics import pair_log_odds
from fastbus.inference.weak_nodes import WeakNodes
from fastbus.numerics import NEG_INF

Method = Literal["auto", "exact", "sweeps"]


class ClassLoop(ClassCoupling):
    """Factors h_ij(w_i, w_j), given, estimated or learned; all-ones factors are independent classes.

    log_factor: (C, C, V, V), read at i < j only; -inf forbids a pair of values for good. None: all ones.
    method: "exact" visits all V**C configurations, "sweeps" sends messages between the classes, "auto" is exact
        up to `max_configurations` (C = 12 classes of 2 values). Messages are exact on trees; elsewhere the
        likelihood is Bethe's, and `post.likelihood` says so.
    sweeps, damping, tolerance: how often messages are sent at most, the share of the old message that is kept, and
        the change below which a bag has converged; `post.loop_deltas` holds the largest change of each sweep.
    learn: whether the factors are optimised. They get a gradient through the likelihood, or in joint mode.
    """

    route = "class_loop"
    forbidden: Tensor

    def __init__(
        self,
        num_classes: int,
        num_values: int = 2,
        log_factor: Any = None,
        *,
        method: Method = "auto",
        sweeps: int = 100,
        damping: float = 0.3,
        tolerance: float = 1e-12,
        max_configurations: int = 4096,
        learn: bool = True,
    ) -> None:
        super().__init__()
        choice(method, ("auto", "exact", "sweeps"), "method", InputError)
        if num_classes < 2 or num_values < 2:
            raise InputError(
                f"a class loop of {num_classes} classes with {num_values} values; expected at least 2 of both. "
                "A single class has nothing to be tied to."
            )
        if sweeps < 1 or not 0 <= damping < 1:
            raise InputError(
                f"sweeps={sweeps!r}, damping={damping!r}; expected at least 1 sweep and a damping in [0, 1)."
                " Damping is the share of the old message that is kept."
            )
        self.num_classes, self.num_values = num_classes, num_values
        self.method: Method = method
        self.sweeps, self.damping, self.tolerance = sweeps, float(damping), float(tolerance)
        self.max_configurations = max_configurations
        if method == "exact" and num_values**num_classes > max_configurations:
            raise CouplingError(
                f'method="exact" with {num_values}**{num_classes} configurations; expected at most '
                f'{max_configurations}. Raise max_configurations=, or pass method="sweeps".'
            )
        pairs = self._given_pairs(log_factor)
        # infinities are kept apart: weight decay would turn them into NaN
        self.register_buffer("forbidden", pairs == NEG_INF)
        self.log_pair = nn.Parameter(pairs.masked_fill(self.forbidden, 0.0), requires_grad=learn)

    @classmethod
    def ones(cls, num_classes: int, num_values: int = 2, **options: Any) -> ClassLoop:
        """Independent classes: where learning starts."""
        return cls(num_classes, num_values, **options)

    @classmethod
    def from_labels(
        cls,
        weak: Any,
        num_values: int = 2,
        *,
        pseudo_count: float = 10.0,
        strength: float = 1.0,
        noise: tuple[float, float] | None = None,
        **options: Any,
    ) -> ClassLoop:
        """Factors P(w_i, w_j) / (P(w_i) P(w_j)) of observed bag labels (B, C), -1 or NaN where missing.

        These are the factors under which messages leave the labels' own frequencies as they are. Each pair's table
        is drawn towards independence by `pseudo_count` bags; `strength` in [0, 1] scales the logarithms, because
        predictions may carry part of the dependence already. noise: (false-positive, false-negative) rates of
        0/1 labels, which are taken out of the tables first.
        """
        log_odds = strength * pair_log_odds(weak, num_values, pseudo_count, noise)
        # parameters as all others have them, also where there is no float64; messages have a precision of their own
        return cls(log_odds.shape[0], num_values, log_odds.to(torch.get_default_dtype()), **options)

    @property
    def log_factor(self) -> Tensor:
        """(C, C, V, V) with [i, j, v, w] = [j, i, w, v], zeros for a class with itself."""
        C, V = self.num_classes, self.num_values
        pairs = self.log_pair.masked_fill(self.forbidden, NEG_INF)
        first, second = torch.triu_indices(C, C, 1, device=pairs.device)
        full = pairs.new_zeros(C, C, V, V)
        full = full.index_put((first, second), pairs)
        return full.index_put((second, first), pairs.transpose(1, 2))

    def is_neutral(self) -> bool:
        return not bool(self.forbidden.any()) and not bool((self.log_pair.detach() != 0).any())

    def ties(self) -> Tensor:
        return connected(self.log_factor)

    def beliefs(self, nodes: WeakNodes) -> ClassBeliefs:
        if self.log_pair.device != nodes.log_node.device:
            self.to(nodes.log_node.device)  # losses are seldom moved by hand
        log_factor = self.log_factor.to(nodes.log_node.dtype)
        enumerated = self._enumerates()
        if enumerated:
            prior = enumerate_field(nodes.log_free, log_factor)
            after = enumerate_field(nodes.log_node + nodes.log_observed, log_factor, nodes.target)
        else:
            if nodes.target is not None:
                raise CouplingError(
                    "messages between classes whose weak labels are set by Jeffrey's rule; expected likelihoods. Pass "
                    'soft="virtual" to the supervision, or method="exact" to the class loop.'
                )
            prior = self._swept(nodes.log_free, log_factor)
            after = self._swept(nodes.log_node + nodes.log_observed, log_factor)
        # factors that forbid all that the predictions allow leave nothing to condition on
        nothing = (prior.log_partition == NEG_INF) | (after.log_partition == NEG_INF)
        log_likelihood = after.log_partition.masked_fill(nothing, 0.0) - prior.log_partition.masked_fill(nothing, 0.0)
        converged = prior.converged & after.converged
        return ClassBeliefs(
            after.log_belief,
            log_likelihood.masked_fill(nothing, NEG_INF),
            converged,
            converged if enumerated or is_forest(log_factor) else torch.zeros_like(converged),
            after.deltas,
        )

    def _enumerates(self) -> bool:
        small = self.num_values**self.num_classes <= self.max_configurations
        return self.method == "exact" or (self.method == "auto" and small)

    def _swept(self, log_node: Tensor, log_factor: Tensor) -> Field:
        return sum_product(log_node, log_factor, self.sweeps, self.damping, self.tolerance)

    def _given_pairs(self, log_factor: Any) -> Tensor:
        """(P, V, V) in the precision of parameters."""
        C, V = self.num_classes, self.num_values
        dtype = torch.get_default_dtype()
        if log_factor is None:
            return torch.zeros(C * (C - 1) // 2, V, V, dtype=dtype)
        given = torch.as_tensor(log_factor).detach()
        if given.shape != (C, C, V, V):
            raise InputError(
                f"log_factor of shape {tuple(given.shape)}; expected {(C, C, V, V)}. Give one table of log factors for "
                "every pair of classes."
            )
        first, second = torch.triu_indices(C, C, 1)
        pairs = given[first, second].to(given.dtype if given.is_floating_point() else dtype)
        if bool(pairs.isnan().any()) or bool((pairs == -NEG_INF).any()):
            raise InputError(
                "log_factor with NaN or +inf; expected finite numbers, or -inf for values that exclude each other. "
                "Give logarithms of factors of at least 0."
            )
        return pairs.clone()

    def extra_repr(self) -> str:
        return (
            f"{self.num_classes}, {self.num_values}, method={self.method!r}, sweeps={self.sweeps}, "
            f"damping={self.damping:g}, tolerance={self.tolerance:g}, max_configurations={self.max_configurations}"
        )
