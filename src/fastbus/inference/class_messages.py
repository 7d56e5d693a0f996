"""Dependencies between the weak labels of a bag's classes: marginals and partition sum of a pairwise field.

    P(W) ~ prod_c node_c(W_c) * prod_{i<j} factor_ij(W_i, W_j)

`enumerate_field` visits every configuration; `sum_product` sends messages along the pairs until they stand still,
which is exact where the pairs with a factor form no loop, and Bethe's approximation elsewhere.
Shapes: B bags, C classes, V values of a weak label, M = V**C configurations, all in logs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.inference.memory import turns
from fastbus.numerics import NEG_INF, logsumexp, safe_log, scatter_logsumexp


class Field(NamedTuple):
    """Marginals of the nodes and the log of the partition sum."""

    log_belief: Tensor  # (B, C, V), normalised; -inf throughout where nothing is possible
    log_partition: Tensor  # (B,)
    deltas: Tensor  # (S, B) largest change of a message in each sweep; no rows where none were made
    converged: Tensor  # (B,)


class Target(NamedTuple):
    """Distributions that some nodes are set to (Jeffrey's rule), independently of each other."""

    probability: Tensor  # (B, C, V)
    active: Tensor  # (B, C)


# -- every configuration ------------------------------------------------------------------------


def enumerate_field(log_node: Tensor, log_factor: Tensor, target: Target | None = None) -> Field:
    """Exact marginals of log_node (B, C, V) under log_factor (C, C, V, V).

    With a target the field's own distribution over the targeted nodes is replaced by theirs, everything else
    follows its conditional, and `log_partition` is sum_s target(s) log field(s).
    """
    B, C, V = log_node.shape
    log_prior = _configuration_factor(log_factor)  # (M,)
    shares, partitions = [], []
    for rows in turns(B, len(log_prior)):
        score = log_prior + _outer_sum(log_node[rows])
        if target is None:
            partition = logsumexp(score, 1)
            share = (score - _or_zero(partition)[:, None]).exp()
        else:
            share, partition = _redistribute(score, Target(target.probability[rows], target.active[rows]))
        shares.append(share @ _indicators(C, V).to(share))
        partitions.append(partition)
    log_belief = safe_log(torch.cat(shares).reshape(B, C, V))
    return Field(
        log_belief,
        torch.cat(partitions),
        log_node.new_zeros(0, B),
        torch.ones(B, dtype=torch.bool, device=log_node.device),
    )


@lru_cache(maxsize=32)
def configurations(C: int, V: int) -> Tensor:
    """All values of all nodes, (M, C), the last class running fastest."""
    index = torch.arange(V**C)
    return torch.stack([index // V ** (C - 1 - c) % V for c in range(C)], 1)


@lru_cache(maxsize=32)
def _indicators(C: int, V: int) -> Tensor:
    """Which values a configuration has, (M, C * V)."""
    return torch.nn.functional.one_hot(configurations(C, V), V).flatten(1)


def _outer_sum(log_node: Tensor) -> Tensor:
    """Sum of the nodes' logs for every configuration, (B, M)."""
    total = log_node[:, 0]
    for c in range(1, log_node.shape[1]):
        total = (total[:, :, None] + log_node[:, c, None, :]).flatten(1)
    return total


def _configuration_factor(log_factor: Tensor) -> Tensor:
    """Sum of the pairs' log factors for every configuration, (M,)."""
    C, V = log_factor.shape[0], log_factor.shape[-1]
    values = configurations(C, V).to(log_factor.device)
    first, second = torch.triu_indices(C, C, 1, device=log_factor.device)
    return log_factor[first, second, values[:, first], values[:, second]].sum(1)


def _redistribute(score: Tensor, target: Target) -> tuple[Tensor, Tensor]:
    """Shares of the configurations (B, M) once the targeted nodes have their new distribution."""
    C, V = target.probability.shape[1:]
    M = score.shape[1]
    place = V ** torch.arange(C - 1, -1, -1, device=score.device)
    # configurations with the same values at the targeted nodes are one group, numbered by those values
    group = (target.active * place).to(score) @ configurations(C, V).to(score).T
    group = group.round().long()
    log_target = _outer_sum(safe_log(target.probability).masked_fill(~target.active[..., None], 0.0))
    log_group = scatter_logsumexp(score, group, M)
    first = group == torch.arange(M, device=score.device)
    weight = torch.where(first, log_target.exp(), 0.0)
    lost = (weight > 0) & (log_group == NEG_INF)
    partition = (weight * _or_zero(log_group)).sum(1).masked_fill(lost.any(1), NEG_INF)
    share = (score + log_target - _or_zero(log_group).gather(1, group)).exp()
    return share, partition


def _or_zero(log_total: Tensor) -> Tensor:
    return log_total.masked_fill(log_total == NEG_INF, 0.0)


# -- messages -----------------------------------------------------------------------------------


def sum_product(log_node: Tensor, log_factor: Tensor, sweeps: int, damping: float, tolerance: float) -> Field:
    """Damped messages between all pairs at once, until no entry moves by more than `tolerance`.

    A bag that has settled is left alone, so that its numbers do not depend on the others of its batch. Beliefs are
    differentiable through the sweeps. The partition sum is differentiated at fixed messages: it does not move with
    them once they stand still, and where they do not, a gradient through the sweeps would grow without bound.
    """
    B, C, V = log_node.shape
    message = log_node.new_zeros(B, C, C, V)  # [b, i, j, v]: what i says about value v of j; the largest entry is 0
    itself = torch.eye(C, dtype=torch.bool, device=log_node.device)[..., None]
    moving = torch.ones(B, dtype=torch.bool, device=log_node.device)
    deltas = []
    for _ in range(sweeps):
        said = logsumexp(_cavity(log_node, message)[..., None] + log_factor, -2)
        said = (said - _or_zero(said.detach().amax(-1, keepdim=True))).masked_fill(itself, 0.0)
        if damping:
            said = damping * message + (1 - damping) * said
        delta = (said.detach().exp() - message.detach().exp()).abs().amax((1, 2, 3))
        deltas.append(delta.masked_fill(~moving, 0.0))
        message = torch.where(moving[:, None, None, None], said, message)
        moving = moving & (delta > tolerance)
        if not bool(moving.any()):
            break
    log_belief = _bethe(log_node, log_factor, message)[0]
    log_partition = _bethe(log_node, log_factor, message.detach())[1]
    return Field(log_belief, log_partition, torch.stack(deltas), ~moving)


def _cavity(log_node: Tensor, message: Tensor) -> Tensor:
    """What node i knows without hearing j, [b, i, j, v]. Impossible values are counted, not subtracted."""
    blocked = message == NEG_INF
    finite = message.masked_fill(blocked, 0.0)
    total = (log_node + finite.sum(1))[:, :, None] - finite.transpose(1, 2)
    by_others = blocked.sum(1)[:, :, None] > blocked.transpose(1, 2).long()
    return total.masked_fill(by_others, NEG_INF)


def _bethe(log_node: Tensor, log_factor: Tensor, message: Tensor) -> tuple[Tensor, Tensor]:
    """Beliefs (B, C, V) and the log of Bethe's partition sum (B,)."""
    C = log_node.shape[1]
    score = log_node + message.sum(1)
    node = logsumexp(score, -1)  # (B, C)
    lost = (node == NEG_INF).any(1)
    cavity = _cavity(log_node, message)
    first, second = torch.triu_indices(C, C, 1, device=log_node.device)
    one, other = cavity[:, first, second], cavity[:, second, first]  # (B, P, V)
    pair = logsumexp((one[..., None] + other[..., None, :] + log_factor[first, second]).flatten(-2), -1)
    heard = logsumexp(one + message[:, second, first], -1) + logsumexp(other + message[:, first, second], -1)
    terms = _or_zero(pair) - _or_zero(heard)
    partition = _or_zero(node).sum(1) + terms.sum(1)
    return score - _or_zero(node)[..., None], partition.masked_fill(lost, NEG_INF)


# -- structure ----------------------------------------------------------------------------------


def connected(log_factor: Tensor) -> Tensor:
    """Which classes a chain of factors ties together, (C, C); every class to itself."""
    C = log_factor.shape[0]
    reach = (log_factor.detach() != 0).flatten(2).any(-1) | torch.eye(C, dtype=torch.bool, device=log_factor.device)
    for _ in range(C.bit_length()):
        reach = (reach.double() @ reach.double()) > 0
    return reach


def is_forest(log_factor: Tensor) -> bool:
    """Whether the pairs with a factor form no loop, so that messages are exact."""
    edges = int((log_factor.detach() != 0).flatten(2).any(-1).sum()) // 2
    trees = len(connected(log_factor).unique(dim=0))
    return edges == log_factor.shape[0] - trees
