"""Which chains of counts are solved how; all routes are exact.

hard   a single count in a large bag: quadrature, time in proportion to the bag
mean   an expected count: one shift of all log odds
free   nothing known: the labels are independent
chain  everything else, and small bags: the recursion over counts
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.inference.closed_form import solve_free
from fastbus.inference.count import solve_count
from fastbus.inference.ending import Ending, SoftEnding
from fastbus.inference.memory import turns
from fastbus.inference.partition import partition
from fastbus.inference.quadrature import solve_hard_count
from fastbus.inference.shift import solve_mean, unseen
from fastbus.numerics import NEG_INF

# Instances times states from which quadrature is the quicker one. Measured: a single chain gains from 16
# instances on (64: about 10 times), 64 chains at once from 32, 512 chains from about 64 x 32.
LARGE = 2**11

Solved = tuple[Tensor, Tensor]


def solve_counts(log_potential: Tensor, lengths: Tensor, ending: Ending) -> Solved:
    """Chains (N, K, 2) whose state is the number of positives, to log posterior and log-likelihood."""
    routes = _routes(log_potential, ending)
    order, pieces = [], []
    for name, index in routes.items():
        everything = len(routes) == 1
        u = log_potential if everything else log_potential[index]
        own = ending if everything else ending.rows(index)
        pieces.append(_solve(name, u, lengths if everything else lengths[index], own))
        order.append(index)
    if len(pieces) == 1:
        return pieces[0]
    back = torch.cat(order).argsort()
    return torch.cat([piece[0] for piece in pieces])[back], torch.cat([piece[1] for piece in pieces])[back]


def _solve(name: str, u: Tensor, lengths: Tensor, ending: Ending) -> Solved:
    """All chains by one route, in turns that fit the memory."""
    N, K, _ = u.shape
    if name == "free":
        return solve_free(u, lengths)
    each = K * (ending.log_evidence.shape[-1] if name == "chain" else 16)
    solve = {"hard": _hard, "mean": _mean, "chain": partition_count}[name]
    pieces = [solve(u[rows], lengths[rows], ending.rows(rows)) for rows in turns(N, each)]
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def partition_count(u: Tensor, lengths: Tensor, ending: Ending) -> Solved:
    def solver(u: Tensor, structure: tuple[Tensor, Ending]) -> Solved:
        return solve_count(u, *structure)

    return partition(u, lengths, (lengths, ending), solver, solver)


def _hard(u: Tensor, lengths: Tensor, ending: Ending) -> Solved:
    def solver(u: Tensor, structure: tuple[Tensor, Tensor]) -> Solved:
        return solve_hard_count(u, *structure)

    return partition(u, lengths, (lengths, ending.log_evidence), solver, solver)


def _mean(u: Tensor, lengths: Tensor, ending: Ending) -> Solved:
    def solver(u: Tensor, structure: tuple[Tensor, Tensor]) -> Solved:
        return solve_mean(u, *structure)

    assert ending.soft is not None
    return partition(u, lengths, (lengths, ending.soft.target), solver, solver)


def _routes(u: Tensor, ending: Ending) -> dict[str, Tensor]:
    """The chains of each route, by number."""
    log_evidence, soft = ending
    everything = torch.arange(len(log_evidence), device=u.device)
    Z = log_evidence.shape[-1]
    large = u.shape[1] * Z >= LARGE
    by_mean = soft is not None and _sets_mean_count(soft)
    # counts beyond the last state are impossible, so a cut range of states says something by itself
    complete = u.shape[1] < Z
    if u.dtype != torch.float64 or not (large or (by_mean and complete)):
        return {"chain": everything}
    spoken = torch.zeros_like(everything, dtype=torch.bool) if soft is None else soft.active
    silent = (log_evidence == 0).all(-1) if complete else torch.zeros_like(spoken)
    single = (log_evidence > NEG_INF).sum(-1) == 1
    member = {
        "mean": silent & spoken & by_mean,
        "free": silent & ~spoken & large,
        "hard": single & ~spoken & large,
    }
    member["chain"] = ~(member["mean"] | member["free"] | member["hard"])
    try:
        return {name: everything[flags] for name, flags in member.items() if bool(flags.any())}
    except RuntimeError as problem:
        # inside a function transform over weak labels nothing can be told apart by its values
        if unseen(problem):
            return {"chain": everything}
        raise


def _sets_mean_count(soft: SoftEnding) -> bool:
    """Whether a mean is meant, and of the count itself."""
    states = torch.arange(soft.group.shape[-1], device=soft.value.device)
    return soft.kind == "mean" and bool((soft.value[soft.group] == states).all())
