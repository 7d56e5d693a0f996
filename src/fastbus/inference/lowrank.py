"""Low-rank messages: the transition T = U V' of a chain, cut to R of its Z states.

The nodes of the paper's chain are pairs (y, z), and T[(y', z'), (y, z)] = p(y') 1[z' = step(z, y')] does not read
y. So T = U V' exactly, with V' = (I I .. I) (Z rows: forget the label) and U[(y', z'), z] (one entry for each
(z, y')). Keeping the first R rows of V' drops the states z >= R: no message enters or leaves them, at the last
node neither. R = Z is exact; with counts R = 1 + the largest count is (`lossless_rank`). Mass that a soft
statement gives to dropped states is spread over the others in proportion.

Sparse U is a chain with fewer states, O(K Y R); dense U is a matrix, O(K Y R^2): the plain form it must equal.
"""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from fastbus.errors import ImpossibleError, InputError, sentence, where
from fastbus.inference.chain import Chain, forward_messages, look_ahead, start_message, step_back
from fastbus.inference.count_routes import partition_count
from fastbus.inference.couple import Coupled
from fastbus.inference.ending import Ending, SoftEnding, close
from fastbus.inference.exact import partition_chain
from fastbus.inference.memory import turns
from fastbus.inference.per_chain import chain_of_problem, check_chains, solve_chains
from fastbus.inference.problem import Problem
from fastbus.inference.solution import Solution
from fastbus.numerics import NEG_INF, log_softmax, logsumexp, safe_log
from fastbus.supervision.evidence import Rule


def check_rank(rank: object) -> None:
    """Refuse what is no number of states."""
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 1):
        raise InputError(f"rank={rank!r}; expected an integer from 1, or None for all states. Give a number of states.")


# -- cutting -------------------------------------------------------------------------------------


def truncate(chain: Chain, rank: int) -> Chain:
    """The same chain without the states z >= rank; moves into them are forbidden."""
    if rank >= chain.num_states:
        return chain
    table = chain.table[:, :, :rank].clamp(max=rank)
    return Chain(table, chain.lengths, truncate_ending(chain.ending, rank))


def truncate_ending(ending: Ending, rank: int) -> Ending:
    """What is known about the states that are left."""
    soft = ending.soft
    if soft is not None:
        soft = soft._replace(group=soft.group[:, :rank])
        if soft.kind == "jeffrey":
            soft = soft._replace(target=_within(soft))
    return Ending(ending.log_evidence[:, :rank], soft)


def _within(soft: SoftEnding) -> Tensor:
    """The target distribution given the groups that still have a state; unchanged if it has none of them."""
    N, S = soft.target.shape
    left = torch.zeros(N, S, dtype=torch.bool, device=soft.target.device)
    left = left.scatter(1, soft.group.expand(N, -1), True)
    kept = soft.target.masked_fill(~left, 0.0)
    total = kept.sum(1, keepdim=True)
    return torch.where(total > 0, kept / total.masked_fill(total == 0, 1.0), soft.target)


# -- dense U -------------------------------------------------------------------------------------


def dense_factors(table: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Where U (M, L, Y, R, R) has entries, [y', z', z], and V' (R, Y, Z), of a table (M, L, Z, Y)."""
    Z, Y = table.shape[2:]
    R = min(rank, Z)
    into = torch.arange(R, device=table.device)
    entries = table[:, :, :R].transpose(2, 3)[:, :, :, None, :] == into[:, None]
    forget = torch.eye(Z, device=table.device)[:R, None, :].expand(R, Y, Z)
    return entries, forget


def solve_dense(log_potential: Tensor, chain: Chain, rank: int) -> tuple[Tensor, Tensor]:
    """Log posterior (N, K, Y) and log-likelihood (N,) by matrices: mu' = U (V' mu), and its transpose back."""
    K = log_potential.shape[1]
    chain = truncate(chain, rank)
    entries, _ = dense_factors(chain.table, rank)
    log_entries = safe_log(entries.to(log_potential.dtype))
    # V' mu, the message with its label forgotten, is all that a step reads
    alpha = [start_message(log_potential, chain.num_states)]
    factors = []
    for k in range(K):
        layer = log_entries[:, min(k, log_entries.shape[1] - 1)]
        U = layer + log_potential[:, k, :, None, None]  # (N, Y, R, R)
        node = logsumexp(U + alpha[-1][:, None, None, :], -1)  # mu (N, Y, R)
        alpha.append(torch.where((k < chain.lengths)[:, None], logsumexp(node, 1), alpha[-1]))
        factors.append(U)
    beta, log_likelihood = close(alpha[-1], chain.ending)
    log_posterior: list[Tensor] = []
    for k in reversed(range(K)):
        edges = factors[k] + beta[:, None, :, None]  # (N, Y, R, R)
        back = logsumexp(edges, 2)  # U' beta before the sum over labels, (N, Y, R)
        log_posterior.append(log_softmax(logsumexp(back + alpha[k][:, None, :], -1), -1))
        beta = torch.where((k < chain.lengths)[:, None], logsumexp(back, 1), beta)
    padding = torch.arange(K, device=chain.lengths.device) >= chain.lengths[:, None]
    return torch.stack(log_posterior[::-1], 1).masked_fill(padding[..., None], NEG_INF), log_likelihood


# -- what a cut loses ----------------------------------------------------------------------------


def used_rank(chain: Chain, K: int, counts: bool = False) -> Tensor:
    """1 + the largest state on any path to a possible ending, (N,): the least rank that loses nothing.

    Reads the rule and the weak label, not the predictions; chains that agree in both are looked at once.
    """
    ending, soft = chain.ending, chain.ending.soft
    states = torch.arange(chain.num_states, device=chain.lengths.device)
    possible = ending.log_evidence > NEG_INF
    if soft is not None and soft.kind == "jeffrey":
        wanted = soft.target.gather(1, soft.group.expand(len(possible), -1)) > 0
        possible = possible & (wanted | ~soft.active[:, None])
    if counts:  # no path to a count passes a larger one
        return ((possible & (states <= chain.lengths[:, None])) * (states + 1)).amax(1)
    rows, of_chain = torch.unique(torch.cat([chain.lengths[:, None], possible.long()], 1), dim=0, return_inverse=True)
    few = Chain(chain.table, rows[:, 0], Ending(safe_log(rows[:, 1:].to(ending.log_evidence.dtype))))
    n, Y = len(rows), chain.table.shape[3]
    anything = ending.log_evidence.new_zeros(n, K, Y)
    alpha = forward_messages(anything, few)
    beta = few.ending.log_evidence
    used = alpha[-1] + beta > NEG_INF
    for k in reversed(range(K)):
        beta = step_back(look_ahead(beta, few.moves(k, n), Y), anything[:, k], beta, k < few.lengths)
        used = used | (alpha[k] + beta > NEG_INF)
    return (used * (states + 1)).amax(1)[of_chain]


def used_ranks(problem: Problem) -> Tensor:
    """The least rank that loses nothing of a bag, (B,)."""
    chain = chain_of_problem(problem)
    ranks = used_rank(chain, problem.layout.max_size, _counts(problem.rules))
    return ranks.reshape(len(problem.sizes), -1).amax(1)


def _counts(rules: tuple[Rule, ...]) -> bool:
    return len(rules) == 1 and rules[0].fold == "count"


# -- solving -------------------------------------------------------------------------------------


def solve_lowrank(problem: Problem, coupling: str, rank: int, validate: bool) -> Coupled:
    """Every bag with messages of at most `rank` states."""
    check_chains(problem, coupling, f"rank={rank}")
    chain = chain_of_problem(problem)
    solution = _solve(problem, chain, rank)
    if validate and rank < chain.num_states:
        _check_possible(problem, chain, rank, solution.log_likelihood.detach() == NEG_INF)
    lossless = used_ranks(problem) <= rank
    one_vs_rest = problem.view == "coupled"
    whole = "independent" if one_vs_rest or problem.head == "sigmoid" else "joint"
    route = [whole if kept else "lowrank" for kept in lossless.tolist()]
    return Coupled(solution, route, torch.zeros_like(lossless) if one_vs_rest else lossless)


def _solve(problem: Problem, chain: Chain, rank: int) -> Solution:
    """Sparse U: the chain with fewer states."""
    cut = truncate(chain, rank)

    def chains(prior: Tensor, instance: Tensor | None) -> tuple[Tensor, Tensor]:
        potential = prior if instance is None else prior + instance
        B, K, G, Y = potential.shape
        u = potential.transpose(1, 2).reshape(B * G, K, Y)
        pieces = []
        for rows in turns(B * G, (K + Y) * cut.num_states):
            part = cut.rows(rows)
            if _counts(problem.rules):
                pieces.append(partition_count(u[rows], part.lengths, part.ending))
            else:
                pieces.append(partition_chain(u[rows], part))
        log_posterior = torch.cat([piece[0] for piece in pieces]).reshape(B, G, K, Y).transpose(1, 2)
        return log_posterior, torch.cat([piece[1] for piece in pieces]).reshape(B, G)

    return solve_chains(problem, chains)


@torch.no_grad()
def _check_possible(problem: Problem, chain: Chain, rank: int, lost: Tensor) -> None:
    """Complain about bags whose evidence lies in dropped states alone, with the least rank that keeps it."""
    if not bool(lost.any()):
        return
    # what no rank helps is reported with all other contradictions
    cut = lost & ~_lost(problem, chain, chain.num_states)
    if not bool(cut.any()):
        return
    low, high = rank + 1, chain.num_states
    while low < high:
        middle = (low + high) // 2
        if bool((_lost(problem, chain, middle) & cut).any()):
            low = middle + 1
        else:
            high = middle
    raise ImpossibleError(
        sentence(
            f"{' & '.join(problem.evidence.names)}: rank={rank} drops every state that the weak label of a bag allows",
            f"a rank of at least {low}",
            where(cut),
            f"Pass rank={low} or more, or None for exact inference.",
        )
    )


def _lost(problem: Problem, chain: Chain, rank: int) -> Tensor:
    return _solve(problem, chain, rank).log_likelihood == NEG_INF
