"""One chain at a time: the three views of a problem, solved by any algorithm that knows chains alone.

Low-rank and learned messages work on chains as they stand. Under a softmax head, rules that read one class at a
time become one-vs-rest chains, renormalised over the classes: the paper's way, coupling="independent".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fastbus.errors import CouplingError
from fastbus.inference.chain import Chain
from fastbus.inference.exact import beyond_budget
from fastbus.inference.independent import solve_independent
from fastbus.inference.problem import Problem, chain_of_rules
from fastbus.inference.solution import Solution

# log probabilities (B, K, G, Y) and log instance evidence of a shape that broadcasts to it, or None, to log
# posteriors (B, K, G, Y) and log-likelihoods (B, G)
ChainsSolver = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


def check_chains(problem: Problem, coupling: str, option: str) -> None:
    """Refuse what chains of one class at a time cannot do; `option` is what the caller asked for."""
    if coupling not in ("auto", "independent"):
        raise CouplingError(
            f'{option} with coupling="{coupling}"; expected chains of one class at a time. Pass coupling="auto" or '
            '"independent".'
        )
    mixed = not all(rule.per_class and rule.positive_class is None for rule in problem.rules)
    if problem.view == "coupled" and mixed:
        raise CouplingError(
            f"{option} with {' & '.join(problem.evidence.names)} under a softmax head; expected rules that read one "
            "class at a time, or class indices alone. Leave the option out: exact inference takes both."
        )


def solve_chains(problem: Problem, chains: ChainsSolver) -> Solution:
    """Solve every chain of a problem with `chains`."""
    if problem.view == "coupled":
        mask = problem.layout.mask
        return solve_independent(problem.log_potential, mask, lambda binary: chains(binary, None))
    converged = torch.ones_like(problem.sizes, dtype=torch.bool)
    prior, instance = problem.log_prior, problem.evidence.instance
    if problem.head != "sigmoid":
        prior = prior.unsqueeze(2)
    if instance is not None and instance.dim() == 3:
        instance = instance.unsqueeze(2)
    log_posterior, likelihood = chains(prior, instance)
    if problem.view == "categorical":
        log_posterior = log_posterior.squeeze(2)
    return Solution(log_posterior, likelihood.sum(1), converged)


def chain_of_problem(problem: Problem) -> Chain:
    """The chains of all bags, N = B * G of them, bag by bag."""
    categorical = problem.view == "categorical"
    several = problem.view == "coupled" or problem.head == "sigmoid"
    lengths = problem.sizes.repeat_interleave(problem.num_classes if several else 1)
    Y = problem.num_classes if categorical else 2
    chain = chain_of_rules(problem.rules, lengths, problem.layout.max_size, Y, problem.budget)
    if chain is None:
        raise beyond_budget(problem.budget, "the combination")
    return chain
