"""The generic chain: forward and backward messages in logs, for any rule given as a table of next states.

    alpha_k(z) = P(y_1..y_k reach z, their evidence)        beta_k(z) = P(the rest, the weak label | z)
    posterior_k(y) ~ p_k(y) * sum_z alpha_{k-1}(z) beta_k(next(z, y))

Shapes: N chains, K labels, Y values of a label, Z states; tables (M, L, Z, Y) with M in {1, N} and
L in {1, K}. Entries of Z in a table are forbidden moves. O(K * Y * Z) per chain, exact, batched
over everything.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.inference.ending import Ending, close
from fastbus.numerics import NEG_INF, log_softmax, logsumexp, scatter_logsumexp


class Chain(NamedTuple):
    """Structure of N chains; the labels' log potentials are given separately, as (N, K, Y)."""

    table: Tensor  # (M, L, Z, Y) next states
    lengths: Tensor  # (N,) labels of each chain; later positions are padding
    ending: Ending

    @property
    def num_states(self) -> int:
        return int(self.table.shape[2])

    def moves(self, position: int, N: int) -> Tensor:
        """Next states of one position as an index (N, Z * Y)."""
        # positions past the table are padding of every chain
        layer = self.table[:, min(position, self.table.shape[1] - 1)]
        return layer.reshape(layer.shape[0], -1).expand(N, -1)

    def rows(self, index: Tensor | slice) -> Chain:
        """Some of the chains."""
        table = self.table if self.table.shape[0] == 1 else self.table[index]
        return Chain(table, self.lengths[index], self.ending.rows(index))


def start_message(log_potential: Tensor, Z: int) -> Tensor:
    """Certainty of state 0, (N, Z)."""
    message = log_potential.new_full((log_potential.shape[0], Z), NEG_INF)
    return message.index_fill(1, message.new_zeros(1, dtype=torch.long), 0.0)


def forward_messages(log_potential: Tensor, chain: Chain) -> list[Tensor]:
    """alpha_0 .. alpha_K, each (N, Z)."""
    N, K, _ = log_potential.shape
    Z = chain.num_states
    messages = [start_message(log_potential, Z)]
    for k in range(K):
        edges = (messages[-1][:, :, None] + log_potential[:, k, None, :]).reshape(N, -1)
        arrived = scatter_logsumexp(edges, chain.moves(k, N), Z + 1)[:, :Z]
        messages.append(torch.where((k < chain.lengths)[:, None], arrived, messages[-1]))
    return messages


def look_ahead(beta: Tensor, moves: Tensor, Y: int) -> Tensor:
    """beta at the state each label leads to, (N, Z, Y); -inf for forbidden moves."""
    N, Z = beta.shape
    padded = torch.cat([beta, beta.new_full((N, 1), NEG_INF)], 1)
    return padded.gather(1, moves).reshape(N, Z, Y)


def step_back(ahead: Tensor, log_potential: Tensor, beta: Tensor, active: Tensor) -> Tensor:
    """beta one label earlier, (N, Z)."""
    earlier = logsumexp(ahead + log_potential[:, None, :], -1)
    return torch.where(active[:, None], earlier, beta)


def solve_chain(log_potential: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
    """Log posterior of every label (N, K, Y) and log-likelihood (N,)."""
    N, K, Y = log_potential.shape
    alpha = forward_messages(log_potential, chain)
    beta, log_likelihood = close(alpha[-1], chain.ending)
    log_posterior: list[Tensor] = []
    for k in reversed(range(K)):
        ahead = look_ahead(beta, chain.moves(k, N), Y)
        belief = logsumexp(alpha[k][:, :, None] + ahead, 1)
        log_posterior.append(log_softmax(log_potential[:, k] + belief, -1))
        beta = step_back(ahead, log_potential[:, k], beta, k < chain.lengths)
    return torch.stack(log_posterior[::-1], 1), log_likelihood
