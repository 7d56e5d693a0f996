"""ClassTransition: the classes' messages to their weak labels, mixed by a transition matrix between classes.

Chain i sends mu_i(v) = P(W_i = v | x) to its weak label. With T row-stochastic, T[i, j] the chance that a label of
class i is written under class j, the message that arrives at the label of class j is

    mu'_j(v) = sum_i T[i, j] mu_i(v) / sum_i T[i, j]        (the paper's g(mu_K) T_class, normalised over v)

and the likelihood of weak labels with evidence e_j(v) = P(w_j | v) is composite, sum_j log L_j with
L_j = sum_v mu'_j(v) e_j(v). What flows back to chain i is the same map read backwards,

    beta_i(v) = sum_j T[i, j] / (sum_k T[k, j]) * e_j(v) / L_j,

so that q_i ~ mu_i beta_i, and the likelihood's gradient in the logits of class i is t_i (q_i - p_i) with
t_i = sum_v beta_i(v) mu_i(v), 1 if T is the identity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastbus.errors import CouplingError, InputError
from fastbus.inference.class_coupling import ClassBeliefs, ClassCoupling
from fastbus.inference.weak_nodes import WeakNodes
from fastbus.numerics import NEG_INF, log_softmax, logsumexp


class ClassTransition(ClassCoupling):
    """A C x C row-stochastic matrix between classes, frozen at the identity unless told otherwise.

    transition: (C, C), rows that sum to 1; None is the identity, under which classes are independent.
    learn: whether it is optimised. Entries of 0 stay 0, so learning starts from a matrix without them, e.g.
        `ClassTransition.near_identity(C, 0.05, learn=True)`.
    """

    route = "class_transition"
    zero: Tensor

    def __init__(self, num_classes: int, num_values: int = 2, transition: Any = None, *, learn: bool = False) -> None:
        super().__init__()
        if num_classes < 2 or num_values < 2:
            raise InputError(
                f"a class transition of {num_classes} classes with {num_values} values; expected at least 2 of both. "
                "A single class has nothing to be mixed with."
            )
        self.num_classes, self.num_values = num_classes, num_values
        given = torch.eye(num_classes) if transition is None else torch.as_tensor(transition).detach()
        if given.shape != (num_classes, num_classes):
            raise InputError(
                f"transition of shape {tuple(given.shape)}; expected {(num_classes, num_classes)}. Give one row for "
                "each class."
            )
        given = given if given.is_floating_point() else given.to(torch.get_default_dtype())
        if not bool((given >= 0).all()) or bool(((given.sum(1) - 1).abs() > 1e-4).any()):
            raise InputError(
                "transition with negative entries or rows that do not sum to 1; expected a row-stochastic matrix. "
                "Divide every row by its sum."
            )
        if bool((given.sum(0) == 0).any()):
            raise InputError(
                "transition with a column of zeros; expected a source for the label of every class. Put a share on "
                "the diagonal."
            )
        # entries of 0 are kept apart: they have no logarithm to learn
        self.register_buffer("zero", given == 0)
        self.log_weight = nn.Parameter(given.log().masked_fill(given == 0, 0.0), requires_grad=learn)

    @classmethod
    def near_identity(
        cls, num_classes: int, share: float, num_values: int = 2, *, learn: bool = True
    ) -> ClassTransition:
        """1 - share on the diagonal, the rest spread evenly."""
        off = torch.full((num_classes, num_classes), share / max(1, num_classes - 1))
        return cls(num_classes, num_values, off.fill_diagonal_(1 - share), learn=learn)

    @property
    def log_transition(self) -> Tensor:
        return log_softmax(self.log_weight.masked_fill(self.zero, NEG_INF), -1)

    @property
    def transition(self) -> Tensor:
        """(C, C), rows sum to 1."""
        return self.log_transition.exp()

    def is_neutral(self) -> bool:
        return bool((self.zero == ~torch.eye(self.num_classes, dtype=torch.bool, device=self.zero.device)).all())

    def ties(self) -> Tensor:
        return ~self.zero.T | torch.eye(self.num_classes, dtype=torch.bool, device=self.zero.device)

    def beliefs(self, nodes: WeakNodes) -> ClassBeliefs:
        if nodes.target is not None:
            raise CouplingError(
                "a class transition with weak labels that are set by Jeffrey's rule; expected likelihoods. Pass "
                'soft="virtual" to the supervision.'
            )
        if self.log_weight.device != nodes.log_node.device:
            self.to(nodes.log_node.device)
        # source[j, i]: the share of class i in the message that arrives at the label of class j
        log_source = log_softmax(self.log_transition.to(nodes.log_node.dtype), 0).T
        log_instances = logsumexp(nodes.log_node, -1)  # (B, C) P(instance evidence | x)
        log_message = log_softmax(nodes.log_node, -1)
        # P_i(w_j): the weak label of class j as chain i expects it
        log_expected = logsumexp(log_message[:, None] + nodes.log_observed[:, :, None], -1)  # (B, j, i)
        log_label = logsumexp(log_source + log_expected, -1)  # (B, j)
        lost = (log_label == NEG_INF).any(1)
        calm = log_label.masked_fill(log_label == NEG_INF, 0.0)
        back = log_source[..., None] + (nodes.log_observed - calm[..., None])[:, :, None]  # (B, j, i, V)
        log_belief = log_softmax(log_message + logsumexp(back, 1), -1)
        likelihood = (calm.sum(1) + log_instances.sum(1)).masked_fill(lost, NEG_INF)
        B = len(likelihood)
        done = torch.ones(B, dtype=torch.bool, device=likelihood.device)
        exact = done if self.is_neutral() else ~done
        return ClassBeliefs(log_belief, likelihood, done, exact, likelihood.new_zeros(0, B))

    def extra_repr(self) -> str:
        return f"{self.num_classes}, {self.num_values}"
