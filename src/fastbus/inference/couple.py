"""Which bags are solved how: exact chains where there are any, the joint lattice, and its fallbacks.

Classes of one instance exclude each other under a softmax head. "joint" is exact, "independent"
ignores it, "tilted" and "loop" approximate it for counts and multi-instance labels; "auto" decides
bag by bag.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.errors import CouplingError, SupervisionError, name_bags, where
from fastbus.inference.chain import Chain, solve_chain
from fastbus.inference.closed_form import solve_any, solve_similar
from fastbus.inference.count import solve_count
from fastbus.inference.ending import Ending
from fastbus.inference.independent import solve_independent
from fastbus.inference.joint import lattice_axes, lattice_chain
from fastbus.inference.loop import solve_loop
from fastbus.inference.partition import partition
from fastbus.inference.problem import Problem, chain_of_rules, rule_ending
from fastbus.inference.product_blocks import product_chains
from fastbus.inference.solution import Solution
from fastbus.inference.tilt import exact_counts, solve_tilted
from fastbus.numerics import NEG_INF, log_softmax, logsumexp
from fastbus.supervision.evidence import Rule

COUPLINGS = ("auto", "independent", "joint", "tilted", "loop")
FAST = {"count": solve_count, "any": solve_any, "similar": solve_similar}
# numbers of messages kept at once; bags beyond it are solved in turns
MEMORY = 2**25


class Block(NamedTuple):
    """Some bags and the exact chain that solves them."""

    bags: Tensor
    chain: Chain


class Coupled(NamedTuple):
    """A solution with the way each bag was solved."""

    solution: Solution
    route: list[str]
    exact: Tensor  # (B,)


def solve(problem: Problem, coupling: str) -> Coupled:
    """Solve every bag of a problem."""
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
        log_posterior, likelihood = _solve_rules(problem.log_potential, sizes, problem.rules, problem.budget)
    else:
        log_posterior, per_chain = _solve_binary(problem.log_potential, sizes, problem.rules, problem.budget)
        likelihood = per_chain.sum(1)
    return Coupled(Solution(log_posterior, likelihood, exact), [name] * len(sizes), exact)


# -- chains that are exact as they stand -------------------------------------------------------


def _solve_binary(
    log_potential: Tensor, sizes: Tensor, rules: tuple[Rule, ...], budget: int
) -> tuple[Tensor, Tensor]:
    """(B, K, G, 2) to the log posterior of the same shape and log-likelihoods (B, G)."""
    B, K, G, Y = log_potential.shape
    chains = log_potential.transpose(1, 2).reshape(B * G, K, Y)
    lengths = sizes.repeat_interleave(G)
    log_posterior, likelihood = _solve_rules(chains, lengths, rules, budget)
    return log_posterior.reshape(B, G, K, Y).transpose(1, 2), likelihood.reshape(B, G)


def _solve_rules(
    log_potential: Tensor, lengths: Tensor, rules: tuple[Rule, ...], budget: int
) -> tuple[Tensor, Tensor]:
    """Chains (N, K, Y) under rules that read the same label."""
    N, K, Y = log_potential.shape
    if not rules:
        return _without_rules(log_potential, lengths)
    if len(rules) == 1 and rules[0].fold == "count":
        ending = rule_ending(rules[0])
        pieces = [
            _partition_count(log_potential[rows], lengths[rows], ending.rows(rows))
            for rows in _turns(N, K * ending.log_evidence.shape[-1])
        ]
    else:
        chain = chain_of_rules(rules, lengths, K, Y, budget)
        if chain is None:
            raise _beyond_budget(budget, "the combination")
        fold = rules[0].fold if len(rules) == 1 else "chain"
        pieces = [
            _partition_chain(log_potential[rows], chain.rows(rows), fold)
            for rows in _turns(N, K * chain.num_states + chain.num_states * Y)
        ]
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def _turns(N: int, each: int) -> Iterator[slice]:
    size = max(1, MEMORY // max(each, 1))
    return (slice(start, start + size) for start in range(0, N, size))


def _partition_count(u: Tensor, lengths: Tensor, ending: Ending) -> tuple[Tensor, Tensor]:
    def solver(u: Tensor, structure: tuple[Tensor, Ending]) -> tuple[Tensor, Tensor]:
        return solve_count(u, *structure)

    return partition(u, lengths, (lengths, ending), solver, solver)


def _partition_chain(u: Tensor, chain: Chain, fold: str = "chain") -> tuple[Tensor, Tensor]:
    def fast(u: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        return FAST[fold](u, chain.lengths, chain.ending) if fold in FAST else solve_chain(u, chain)

    return partition(u, chain.lengths, chain, fast, solve_chain)


def _without_rules(log_potential: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    K = log_potential.shape[1]
    real = torch.arange(K, device=lengths.device) < lengths[:, None]
    likelihood = logsumexp(log_potential, -1).masked_fill(~real, 0.0).sum(1)
    log_posterior = log_softmax(log_potential, -1)
    return log_posterior.masked_fill(~real[..., None], NEG_INF), likelihood


# -- classes that exclude each other -----------------------------------------------------------


def joint_blocks(problem: Problem) -> tuple[list[Block], Tensor]:
    """Exact chains for all bags that fit the budget, and the bags (n,) that do not."""
    _check_one_soft_class(problem)
    rules = problem.rules
    if len(rules) == 1 and rules[0].fold in ("count", "any"):
        return _lattice_blocks(problem, rules[0])
    return _product_blocks(problem)


def _check_one_soft_class(problem: Problem) -> None:
    active = [rule.soft.active.sum(1) for rule in problem.rules if rule.soft is not None]
    if not active:
        return
    several = torch.stack(active).sum(0) > 1
    if bool(several.any()):
        raise SupervisionError(
            "distributions over the counts of several classes in one bag; expected one at most under "
            f"a softmax head, since they do not commute; {where(several)}. Read them as virtual "
            'evidence with soft="virtual"; coupling="independent" takes the classes one by one, without map.'
        )


def _lattice_blocks(problem: Problem, rule: Rule) -> tuple[list[Block], Tensor]:
    axes = lattice_axes(rule, problem.sizes)
    fits = axes.log_size <= math.log(problem.budget) + 1e-9
    points = axes.log_size.exp().round().long()
    order = torch.argsort(points, stable=True)
    order = order[fits[order]]
    each = problem.num_classes + problem.layout.max_size
    blocks = [
        Block(bags, lattice_chain(rule, axes, problem.sizes, bags))
        for bags in _by_size(order, points[order].tolist(), each)
    ]
    return blocks, torch.nonzero(~fits).flatten()


def _by_size(order: Tensor, points: list[int], each: int) -> Iterator[Tensor]:
    """Groups of bags with lattices of similar size, each within the memory limit."""
    start = 0
    for end in range(1, len(points) + 1):
        full = end == len(points) or (
            points[end] > 4 * points[start] + 16 or (end + 1 - start) * points[end] * each > MEMORY
        )
        if full:
            yield order[start:end]
            start = end


def _product_blocks(problem: Problem) -> tuple[list[Block], Tensor]:
    blocks, left = [], []
    for bags, chain in product_chains(problem):
        if chain is None:
            left.append(bags)
        else:
            blocks.append(Block(bags, chain))
    nothing = torch.zeros(0, dtype=torch.long, device=problem.sizes.device)
    return blocks, torch.cat([nothing, *left])


def _solve_coupled(problem: Problem, coupling: str) -> Coupled:
    parts: list[tuple[Tensor, Solution, str]] = []
    everything = torch.arange(len(problem.sizes), device=problem.sizes.device)
    if coupling in ("auto", "joint"):
        blocks, left = joint_blocks(problem)
        parts = [(bags, _solve_block(problem, bags, chain), "joint") for bags, chain in blocks]
        if coupling == "joint" and len(left):
            raise _beyond_budget(problem.budget, name_bags(left, problem.layout.num_bags))
    else:
        left = everything
    if len(left):
        parts += _solve_approximately(problem, left, coupling)
    return _assemble(problem, parts)


def _solve_block(problem: Problem, bags: Tensor, chain: Chain) -> Solution:
    longest = int(chain.lengths.max())
    u = problem.log_potential[bags, :longest]
    log_posterior, likelihood = _partition_chain(u, chain)
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
        raise _beyond_budget(problem.budget, name_bags(bags, problem.layout.num_bags))
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
    pieces = [
        _partition_count(chains[rows], lengths[rows], Ending(log_evidence[rows]))
        for rows in _turns(n * P, K * len(states))
    ]
    log_posterior = torch.cat([piece[0] for piece in pieces])
    likelihood = torch.cat([piece[1] for piece in pieces])
    return log_posterior.reshape(n, P, K, 2).transpose(1, 2), likelihood.reshape(n, P)


def _independent(problem: Problem, bags: Tensor) -> Solution:
    if not all(rule.per_class and rule.positive_class is None for rule in problem.rules):
        raise CouplingError(
            f'coupling="independent" with {" & ".join(problem.evidence.names)}; expected rules that '
            'read one class at a time. Pass coupling="auto" or "joint".'
        )
    rules = tuple(rule.rows(bags) for rule in problem.rules)
    sizes = problem.sizes[bags]
    chains = partial(_solve_binary, sizes=sizes, rules=rules, budget=problem.budget)
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


def _beyond_budget(budget: int, place: str) -> CouplingError:
    return CouplingError(
        f"the joint states of {place} pass the budget; expected at most {budget}. Raise budget=, make "
        'bags smaller, or pass coupling="auto" or "independent" where they apply.'
    )
