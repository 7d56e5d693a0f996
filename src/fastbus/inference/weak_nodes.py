"""The weak label of every class of a bag as a random variable W_c, read off its chain.

W_c is what the rule says of the class's labels: "is there a positive" (2 values), their count, or the weak label of
a rule of one's own. The chain gives P(W_c = v | x) and the posterior of the labels for each v; whatever ties the
classes together needs no more than that.
Shapes: B bags, K instances, C classes, V values, Z states.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.errors import CouplingError
from fastbus.inference.class_messages import Target
from fastbus.inference.exact import solve_binary
from fastbus.inference.problem import Problem
from fastbus.numerics import NEG_INF
from fastbus.supervision.evidence import Rule


class WeakNodes(NamedTuple):
    """All that the chains say about the weak labels, in logs."""

    log_free: Tensor  # (B, C, V) P(W = v | x)
    log_node: Tensor  # (B, C, V) P(W = v, instance evidence | x)
    log_observed: Tensor  # (B, C, V) P(weak label | W = v), 0 where it is missing
    log_labels: Tensor  # (B, V, K, C, 2) P(label | W = v, instance evidence, x)
    target: Target | None  # distributions to set, after all that is certain


def weak_nodes(problem: Problem, num_classes: int, num_values: int) -> WeakNodes:
    """Solve every chain once for each value of its weak label."""
    rule, value = node_rule(problem, num_classes, num_values)
    hit = value == torch.arange(num_values, device=value.device)[:, None]  # (V, Z)
    log_labels, log_node = _given_each_value(problem.log_potential, problem, rule, hit)
    log_free = log_node
    if problem.evidence.instance is not None:
        log_free = _given_each_value(problem.log_prior, problem, rule, hit)[1]
    # evidence is a function of the weak label, so any state with that value tells it
    state = hit.long().argmax(1)
    possible = hit.any(1)
    log_observed = rule.log_evidence[..., state].masked_fill(~possible, 0.0)
    target = None
    if rule.soft is not None and bool(rule.soft.active.any()):
        probability = rule.soft.target[..., state].masked_fill(~possible, 0.0)
        target = Target(probability, rule.soft.active)
    return WeakNodes(log_free, log_node, log_observed, log_labels, target)


def _given_each_value(log_potential: Tensor, problem: Problem, rule: Rule, hit: Tensor) -> tuple[Tensor, Tensor]:
    """Log posterior (B, V, K, C, 2) and log P(W = v, ...) (B, C, V) of chains (B, K, C, 2) held at each value."""
    B, K, C, Y = log_potential.shape
    V, Z = hit.shape
    held = torch.zeros(hit.shape, dtype=log_potential.dtype, device=hit.device).masked_fill(~hit, NEG_INF)
    copies = log_potential[:, :, None].expand(B, K, V, C, Y).reshape(B, K, V * C, Y)
    ends = held[None, :, None].expand(B, V, C, Z).reshape(B, V * C, Z)
    always = torch.ones(B, V * C, dtype=torch.bool, device=hit.device)
    only = replace(rule, log_evidence=ends, observed=always, soft=None)
    log_posterior, likelihood = solve_binary(copies, problem.sizes, (only,), problem.budget)
    log_posterior = log_posterior.reshape(B, K, V, C, Y).transpose(1, 2)
    return log_posterior, likelihood.reshape(B, V, C).transpose(1, 2)


def node_rule(problem: Problem, num_classes: int, num_values: int) -> tuple[Rule, Tensor]:
    """The rule whose weak labels are tied, and their value 0..V-1 at every last state, (Z,)."""
    names = " & ".join(problem.evidence.names)
    if problem.head != "sigmoid":
        raise CouplingError(
            f'class_loop with head="{problem.head}"; expected head="sigmoid", where every class has a chain of its '
            'own. Classes that exclude each other are tied by coupling="joint" already.'
        )
    if len(problem.rules) != 1 or not problem.rules[0].per_class:
        raise CouplingError(
            f"class_loop with {names}; expected exactly one rule that reads one class at a time, e.g. "
            "multi_instance, label_proportion or a rule of your own. Leave class_loop=None."
        )
    rule = problem.rules[0]
    if rule.soft is not None and rule.soft.kind != "jeffrey":
        raise CouplingError(
            f"class_loop with {names}, which states a mean; expected weak labels with a finite set of values. "
            "Leave class_loop=None."
        )
    if problem.num_classes != num_classes:
        raise CouplingError(
            f"class_loop of {num_classes} classes with predictions of {problem.num_classes}; expected the same "
            "number. Make the module for the classes of the predictions."
        )
    return rule, _values(rule, problem.layout.max_size, num_values)


def _values(rule: Rule, bag_size: int, num_values: int) -> Tensor:
    supervision, device = rule.supervision, rule.log_evidence.device
    Z = rule.log_evidence.shape[-1]
    if rule.fold in ("any", "count"):
        values = torch.arange(Z, device=device)
        count = Z
    else:
        candidates = supervision.weak_labels(bag_size)
        if candidates is None:
            raise CouplingError(
                f"class_loop with {supervision.title}, whose weak labels are no finite set; expected a rule with "
                "weak_labels(bag_size). Give it that method, or leave class_loop=None."
            )
        given = torch.tensor(list(candidates), device=device)[:, None]
        says = supervision.evidence(torch.arange(Z, device=device), given).to(torch.float64)  # (W, Z)
        if not bool(((says == 0) | (says == 1)).all()) or bool((says.sum(0) > 1).any()):
            raise CouplingError(
                f"class_loop with {supervision.title}, whose weak label is uncertain given the last state; expected "
                "evidence of 0 and 1. State the rule without noise, or leave class_loop=None."
            )
        # states that no bag ends in have no weak label
        values, count = says.argmax(0).masked_fill(says.sum(0) == 0, num_values), len(candidates)
    if count > num_values:
        raise CouplingError(
            f"class_loop of {num_values} values with {supervision.title}, which has {count} in bags of up to "
            f"{bag_size}; expected at least that many. Make the module with num_values={count} or more."
        )
    return values
