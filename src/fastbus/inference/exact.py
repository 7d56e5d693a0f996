"""Chains that are exact as they stand: binary labels, or one label an instance, under rules that read it.

One rule takes its fast path, several rules become one product chain.
"""

from __future__ import annotations

from os import environ

import torch
from torch import Tensor

from fastbus.errors import CouplingError
from fastbus.inference.chain import Chain, solve_chain
from fastbus.inference.closed_form import solve_any, solve_free, solve_similar
from fastbus.inference.count import solve_count
from fastbus.inference.count_routes import solve_counts
from fastbus.inference.memory import turns
from fastbus.inference.partition import partition
from fastbus.inference.problem import chain_of_rules, rule_ending
from fastbus.supervision.evidence import Rule

FAST = {"count": solve_count, "any": solve_any, "similar": solve_similar}


def solve_binary(log_potential: Tensor, sizes: Tensor, rules: tuple[Rule, ...], budget: int) -> tuple[Tensor, Tensor]:
    """(B, K, G, 2) to the log posterior of the same shape and log-likelihoods (B, G)."""
    B, K, G, Y = log_potential.shape
    chains = log_potential.transpose(1, 2).reshape(B * G, K, Y)
    lengths = sizes.repeat_interleave(G)
    log_posterior, likelihood = solve_rules(chains, lengths, rules, budget)
    return log_posterior.reshape(B, G, K, Y).transpose(1, 2), likelihood.reshape(B, G)


def solve_rules(log_potential: Tensor, lengths: Tensor, rules: tuple[Rule, ...], budget: int) -> tuple[Tensor, Tensor]:
    """Chains (N, K, Y) under rules that read the same label."""
    N, K, Y = log_potential.shape
    if not rules:
        return solve_free(log_potential, lengths)
    if len(rules) == 1 and rules[0].fold == "count":
        return solve_counts(log_potential, lengths, rule_ending(rules[0]))
    chain = chain_of_rules(rules, lengths, K, Y, budget)
    if chain is None:
        raise beyond_budget(budget, "the combination")
    fold = rules[0].fold if len(rules) == 1 else "chain"
    pieces = [
        partition_chain(log_potential[rows], chain.rows(rows), fold)
        for rows in turns(N, K * chain.num_states + chain.num_states * Y)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([piece[0] for piece in pieces]), torch.cat([piece[1] for piece in pieces])


def partition_chain(u: Tensor, chain: Chain, fold: str = "chain") -> tuple[Tensor, Tensor]:
    def fast(u: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        if fold in FAST:
            return FAST[fold](u, chain.lengths, chain.ending)
        return _by_kernel(u, chain) or solve_chain(u, chain)

    return partition(u, chain.lengths, chain, fast, solve_chain)


def _by_kernel(u: Tensor, chain: Chain) -> tuple[Tensor, Tensor] | None:
    """The same by one launch on a GPU, where the chains have few states and hard endings."""
    if (
        not u.is_cuda
        or u.dtype != torch.float64
        or chain.ending.soft is not None
        or environ.get("FASTBUS_KERNELS") == "0"
    ):
        return None
    try:
        u.data_ptr()
        from fastbus.inference.kernels import gpu_chain
    except (RuntimeError, ImportError):
        # inside a function transform tensors have no values to hand to a kernel
        return None
    if not gpu_chain.fits(u, chain.table):
        return None
    log_posterior, likelihood, status = gpu_chain.solve_chain(u, chain.table, chain.lengths, chain.ending.log_evidence)
    return None if bool(status.any()) else (log_posterior, likelihood)


def beyond_budget(budget: int, place: str) -> CouplingError:
    return CouplingError(
        f"the joint states of {place} pass the budget; expected at most {budget}. Raise budget=, make "
        'bags smaller, or pass coupling="auto" or "independent" where they apply.'
    )
