"""A state evolution that fits: its sizes are read off a batch of the supervision it will serve."""

from __future__ import annotations

import math
from typing import Any

from fastbus.errors import InputError
from fastbus.inference.evolution import StateEvolution, Variant
from fastbus.inference.infer import Head, read_problem
from fastbus.inference.per_chain import chain_of_problem, check_chains
from fastbus.inference.predictions import as_predictions
from fastbus.inference.problem import Problem
from fastbus.supervision.base import Supervision, resolve
from fastbus.supervision.incomplete import SimilarDissimilarUnlabeled


def build_evolution(
    supervision: Supervision | str,
    logits: Any,
    weak: Any,
    num_features: int,
    mask: Any = None,
    *,
    bag_sizes: Any = None,
    head: Head = "softmax",
    max_bag_size: int | None = None,
    variant: Variant = "full",
    **options: Any,
) -> StateEvolution:
    """A fresh StateEvolution for batches like this one: its predictions, weak labels and layout, as `infer` takes them.

    num_features: of an instance. max_bag_size: of all batches to come, at least that of this one; counts need a
        state for each. Other options go to StateEvolution (embed, keys, hidden, heads, depth).
    """
    rule = resolve(supervision)
    if isinstance(rule, SimilarDissimilarUnlabeled):
        raise InputError(
            f"{rule.title} is a sum over differently grouped bags; expected one. Build a module for each of its terms."
        )
    x = as_predictions(logits, head, "logits").detach()
    problem, _ = read_problem(rule, x, weak, mask, bag_sizes, head)
    check_chains(problem, "auto", "evolution=")
    C = problem.num_classes
    if problem.view == "categorical" and not problem.rules:
        return StateEvolution(num_features, C, 2, 2, along="categories", variant=variant, **options)
    states = _states(problem, max_bag_size)
    if problem.view == "categorical":
        return StateEvolution(num_features, 1, states, C, variant=variant, **options)
    several = problem.view == "coupled" or head == "sigmoid"
    return StateEvolution(num_features, C if several else 1, states, 2, variant=variant, **options)


def _states(problem: Problem, max_bag_size: int | None) -> int:
    """The most states a batch may need."""
    here = chain_of_problem(problem).num_states
    if max_bag_size is None:
        return here
    if isinstance(max_bag_size, bool) or not isinstance(max_bag_size, int) or max_bag_size < problem.layout.max_size:
        raise InputError(
            f"max_bag_size={max_bag_size!r}; expected an integer from {problem.layout.max_size}, the largest bag of "
            "this batch. Give the size of the largest bag to come."
        )
    each = [
        rule.log_evidence.shape[-1]
        if rule.supervision.bag_size is not None
        else rule.supervision.checked_num_states(max_bag_size)
        for rule in problem.rules
    ]
    # a product of rules reaches no more than all combinations of their states
    return max(here, min(math.prod(each), problem.budget))
