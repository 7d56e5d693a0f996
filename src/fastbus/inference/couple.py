"""Which bags are solved how: exact chains where there are any, the joint lattice, and its fallbacks.

Classes of one instance exclude each other under a softmax head. "joint" is exact, "independent"
ignores it, "tilted" and "loop" approximate it for counts and multi-instance labels; "auto" decides
bag by bag.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.errors import CouplingError, name_bags, where
from fastbus.inference.blocks import joint_blocks
from fastbus.inference.chain import Chain
from fastbus.inference.class_coupling import ClassCoupling, solve_classes
from fastbus.inference.count_routes import solve_counts
from fastbus.inference.ending import Ending
from fastbus.inference.exact import beyond_budget, partition_chain, solve_binary, solve_rules
from fastbus.inference.independent import solve_independent
from fastbus.inference.loop import solve_loop
from fastbus.inference.problem import Problem
from fastbus.inference.solution import Solution
from fastbus.inference.tilt import exact_counts, solve_tilted
from fastbus.numerics import NEG_INF

COUPLINGS = ("auto", "independent", "joint", "tilted", "loop")


class Coupled(NamedTuple):
    """A solution with the way each bag was solved."""

    solution: Solution
    route: list[str]
    exact: Tensor  # (B,)
    loop_deltas: Tensor | None = None  # (S, B) changes of the messages between classes, sweep by sweep
    informed: Tensor | None = None  # (B, K, C) if the classes' weak labels speak about each other


def solve(problem: Problem, coupling: str, class_loop: ClassCoupling | None = None) -> Coupled:
    """Solve every bag of a problem."""
    if class_loop is not None:
        return _solve_tied(problem, coupling, class_loop)
    if problem.view == "coupled":
        return _solve_coupled(problem, coupling)
    if coupling in ("tilted", "loop"):
        raise CouplingError(
            f'coupling="{coupling}" without classes to couple; expected a softmax head and a rule that '
            'reads one class at a time. Leave coupling="auto": this problem is solved exactly.'
        )
    name = "independent" if problem.head == "sigmoid" else "joint"
    sizes = problem.sizes
    exact = torch.ones_like(sizes, dtype=torch.bool)
    if problem.view == "categorical":
        log_posterior, likelihood = solve_rules(problem.log_potential, sizes, problem.rules, problem.budget)
    else:
        log_posterior, per_chain = solve_binary(problem.log_potential, sizes, problem.rules, problem.budget)
        likelihood = per_chain.sum(1)
    return Coupled(Solution(log_posterior, likelihood, exact), [name] * len(sizes), exact)


def _solve_tied(problem: Problem, coupling: str, class_loop: ClassCoupling) -> Coupled:
    if coupling not in ("auto", "independent"):
        raise CouplingError(
            f'coupling="{coupling}" with a class loop; expected "auto": the loop is what ties the classes together. '
            'Leave coupling="auto".'
        )
    tied = solve_classes(problem, class_loop, lambda: solve(problem, coupling).solution)
    return Coupled(tied.solution, [tied.route] * len(tied.exact), tied.exact, tied.deltas, tied.informed)


# -- classes that exclude each other -----------------------------------------------------------


def _solve_coupled(problem: Problem, coupling: str) -> Coupled:
    parts: list[tuple[Tensor, Solution, str]] = []
    everything = torch.arange(len(problem.sizes), device=problem.sizes.device)
    if coupling in ("auto", "joint"):
        blocks, left = joint_blocks(problem)
        parts = [(bags, _solve_block(problem, bags, chain), "joint") for bags, chain in blocks]
        if coupling == "joint" and len(left):
            raise beyond_budget(problem.budget, name_bags(left, problem.layout.num_bags))
    else:
        left = everything
    if len(left):
        parts += _solve_approximately(problem, left, coupling)
    return _assemble(problem, parts)


def _solve_block(problem: Problem, bags: Tensor, chain: Chain) -> Solution:
    longest = int(chain.lengths.max())
    u = problem.log_potential[bags, :longest]
    log_posterior, likelihood = partition_chain(u, chain)
    short = problem.layout.max_size - longest
    log_posterior = torch.nn.functional.pad(log_posterior, (0, 0, 0, short), value=NEG_INF)
    return Solution(log_posterior, likelihood, torch.ones_like(bags, dtype=torch.bool))


def _solve_approximately(problem: Problem, bags: Tensor, coupling: str) -> list[tuple[Tensor, Solution, str]]:
    """The fallbacks, for bags (n,)."""
    rules = problem.rules
    fold = rules[0].fold if len(rules) == 1 else ""
    if coupling == "independent" or (coupling == "auto" and fold == "chain"):
        return [(bags, _independent(problem, bags), "independent")]
    if fold == "any" and coupling == "auto":
        return _loop_or_tilted(problem, bags)
    if fold == "any" and coupling == "loop":
        return [(bags, _looped(problem, bags), "loop")]
    if fold == "count" and coupling in ("auto", "tilted"):
        counts, exact = exact_counts(rules[0].support(), rules[0].informed, problem.sizes)
        if coupling == "tilted" and not bool(exact.all()):
            raise CouplingError(
                f'coupling="tilted" with intervals, noisy or soft counts; expected exact counts; '
                f'{where(~exact)}. Pass coupling="auto" or "joint".'
            )
        return _tilted_or_independent(problem, bags, counts, exact)
    if coupling == "auto":
        raise beyond_budget(problem.budget, name_bags(bags, problem.layout.num_bags))
    needs = "label proportions" if coupling == "tilted" else "multi-instance labels"
    raise CouplingError(
        f'coupling="{coupling}" with {" & ".join(problem.evidence.names)}; expected {needs} alone '
        'under a softmax head. Pass coupling="auto".'
    )


def _tilted_or_independent(
    problem: Problem, bags: Tensor, counts: Tensor, exact: Tensor
) -> list[tuple[Tensor, Solution, str]]:
    parts = []
    tilted, others = bags[exact[bags]], bags[~exact[bags]]
    if len(tilted):
        mask = problem.layout.mask[tilted]
        chains = partial(_count_chains, sizes=problem.sizes[tilted])
        u = problem.log_potential[tilted]
        parts.append((tilted, solve_tilted(u, counts[tilted], mask, chains), "tilted"))
    if len(others):
        parts.append((others, _independent(problem, others), "independent"))
    return parts


def _looped(problem: Problem, bags: Tensor) -> Solution:
    evidence = problem.rules[0].log_evidence[bags]
    return solve_loop(problem.log_potential[bags], evidence, problem.layout.mask[bags])


def _loop_or_tilted(problem: Problem, bags: Tensor) -> list[tuple[Tensor, Solution, str]]:
    """Bags with as many classes to be seen as instances hold each of them once: exact counts.

    Messages would go round in circles there, since every instance is needed by some class.
    """
    rule = problem.rules[0]
    must = rule.observed & (rule.log_evidence[..., 0] == NEG_INF)  # (B, C)
    full = must.sum(1) == problem.sizes
    counts = must.long()
    parts = _tilted_or_independent(problem, bags[full[bags]], counts, full) if bool(full[bags].any()) else []
    rest = bags[~full[bags]]
    return parts + ([(rest, _looped(problem, rest), "loop")] if len(rest) else [])


def _count_chains(binary: Tensor, counts: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Exact counts (n, P) of one-vs-rest chains (n, K, P, 2)."""
    n, K, P, _ = binary.shape
    chains = binary.transpose(1, 2).reshape(n * P, K, 2)
    lengths = sizes.repeat_interleave(P)
    wanted = counts.reshape(-1).long()
    states = torch.arange(int(wanted.max()) + 1, device=sizes.device)
    log_evidence = torch.where(states == wanted[:, None], 0.0, NEG_INF).to(binary.dtype)
    log_posterior, likelihood = solve_counts(chains, lengths, Ending(log_evidence))
    return log_posterior.reshape(n, P, K, 2).transpose(1, 2), likelihood.reshape(n, P)


def _independent(problem: Problem, bags: Tensor) -> Solution:
    if not all(rule.per_class and rule.positive_class is None for rule in problem.rules):
        raise CouplingError(
            f'coupling="independent" with {" & ".join(problem.evidence.names)}; expected rules that '
            'read one class at a time. Pass coupling="auto" or "joint".'
        )
    rules = tuple(rule.rows(bags) for rule in problem.rules)
    sizes = problem.sizes[bags]
    chains = partial(solve_binary, sizes=sizes, rules=rules, budget=problem.budget)
    return solve_independent(problem.log_potential[bags], problem.layout.mask[bags], chains)


def _assemble(problem: Problem, parts: list[tuple[Tensor, Solution, str]]) -> Coupled:
    """Put the groups back into the order of the bags."""
    order = torch.argsort(torch.cat([bags for bags, _, _ in parts]))
    solution = Solution(
        torch.cat([part.log_posterior for _, part, _ in parts])[order],
        torch.cat([part.log_likelihood for _, part, _ in parts])[order],
        torch.cat([part.converged for _, part, _ in parts])[order],
    )
    route = [""] * len(order)
    for bags, _, name in parts:
        for bag in bags.tolist():
            route[bag] = name
    exact = torch.tensor([name == "joint" for name in route], device=order.device)
    return Coupled(solution, route, exact)
