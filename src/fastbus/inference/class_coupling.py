"""Inference with classes that are tied together at their weak labels: chains, what ties them, chains again.

Given its weak label W_c, a class's labels do not care about the other classes, so the posterior of a label is
sum_v P(W_c = v | everything) P(label | W_c = v): solving the class's chain with its end evidence multiplied by the
message from the other classes.
Shapes: B bags, K instances, C classes, V values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fastbus.inference.problem import Problem
from fastbus.inference.solution import Solution
from fastbus.inference.weak_nodes import WeakNodes, node_rule, weak_nodes
from fastbus.numerics import NEG_INF, logsumexp


class ClassBeliefs(NamedTuple):
    """What is known about the weak labels once the classes have spoken to each other."""

    log_belief: Tensor  # (B, C, V) of W given all evidence
    log_likelihood: Tensor  # (B,)
    converged: Tensor  # (B,)
    exact: Tensor  # (B,)
    deltas: Tensor  # (S, B)


class ClassCoupling(nn.Module):
    """Base of the modules that `infer(..., class_loop=)` takes."""

    num_classes: int
    num_values: int
    route: str  # how `post.coupling` calls it

    @abstractmethod
    def is_neutral(self) -> bool:
        """Whether the classes are independent under the present parameters."""

    @abstractmethod
    def beliefs(self, nodes: WeakNodes) -> ClassBeliefs:
        """Tie the classes of every bag together."""

    @abstractmethod
    def ties(self) -> Tensor:
        """(C, C): whether the weak label of one class speaks about another."""

    def tuned(self) -> bool:
        """Whether a gradient must reach the parameters."""
        return torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())


class ClassSolution(NamedTuple):
    """A solution, and what is particular to classes that speak to each other."""

    solution: Solution
    route: str
    exact: Tensor  # (B,)
    deltas: Tensor  # (S, B)
    informed: Tensor  # (B, K, C) the terms of the loss that carry evidence


def solve_classes(problem: Problem, module: ClassCoupling, solve_alone: Callable[[], Solution]) -> ClassSolution:
    """Solve a problem whose chains `solve_alone` solves as if classes were independent."""
    node_rule(problem, module.num_classes, module.num_values)  # whatever the parameters are, the problem must fit
    neutral = module.is_neutral()
    if neutral and not module.tuned():
        alone = solve_alone()
        no_sweeps = alone.log_likelihood.new_zeros(0, len(problem.sizes))
        return ClassSolution(alone, "independent", alone.converged, no_sweeps, problem.informed)
    nodes = weak_nodes(problem, module.num_classes, module.num_values)
    found = module.beliefs(nodes)
    log_belief = found.log_belief.transpose(1, 2)[:, :, None, :, None]  # (B, V, 1, C, 1)
    log_posterior = logsumexp(log_belief + nodes.log_labels, 1)
    log_likelihood = found.log_likelihood
    if neutral:
        # the numbers of independent chains to the last bit, with the gradient of the tied ones
        alone = solve_alone()
        log_posterior = _with_gradient_of(alone.log_posterior, log_posterior)
        log_likelihood = _with_gradient_of(alone.log_likelihood, log_likelihood)
    informed = problem.informed if neutral else _informed(problem, module.ties())
    solution = Solution(log_posterior, log_likelihood, found.converged)
    return ClassSolution(solution, "independent" if neutral else module.route, found.exact, found.deltas, informed)


def _with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    finite = other.detach() > NEG_INF
    calm = other.masked_fill(~finite, 0.0)
    return value.detach() + (calm - calm.detach())


def _informed(problem: Problem, ties: Tensor) -> Tensor:
    """An entry carries evidence if the weak label of any class tied to it is known."""
    own = problem.informed
    said = problem.rules[0].informed.to(torch.float64) @ ties.to(torch.float64) > 0
    return own | (said[:, None, :] & problem.layout.mask[..., None])
