"""Whole labellings of a chain: the most probable one, and exact samples.

Both walk forward from state 0 and look ahead with backward messages, so every labelling they return
satisfies the weak label. Shapes: N chains, K labels, Y values, Z states; labellings are long (N,
K), padding arbitrary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.inference.chain import Chain, forward_messages, look_ahead, step_back
from fastbus.inference.ending import close


def _last_weights(log_potential: Tensor, chain: Chain) -> Tensor:
    """Weights of the last states (N, Z); soft endings need the forward pass to be turned into them."""
    if chain.ending.soft is None:
        return chain.ending.log_evidence
    return close(forward_messages(log_potential, chain)[-1], chain.ending)[0]


def most_probable(log_potential: Tensor, chain: Chain) -> Tensor:
    """argmax over labellings of their posterior, (N, K)."""
    N, K, Y = log_potential.shape
    best = _last_weights(log_potential, chain)
    choices: list[Tensor] = []
    for k in reversed(range(K)):
        score = look_ahead(best, chain.moves(k, N), Y) + log_potential[:, k, None, :]
        top, label = score.max(-1)
        active = (k < chain.lengths)[:, None]
        best = torch.where(active, top, best)
        choices.append(label)
    choices.reverse()
    state = torch.zeros(N, dtype=torch.long, device=log_potential.device)
    labels: list[Tensor] = []
    for k in range(K):
        label = choices[k].gather(1, state[:, None]).squeeze(1)
        labels.append(label)
        state = _move(chain, k, state, label, N, Y)
    return torch.stack(labels, 1)


def draw(log_potential: Tensor, chain: Chain, n: int, generator: torch.Generator) -> Tensor:
    """n independent labellings of each chain from its posterior, (n, N, K)."""
    N, K, Y = log_potential.shape
    messages = [_last_weights(log_potential, chain)]
    for k in reversed(range(K)):
        ahead = look_ahead(messages[-1], chain.moves(k, N), Y)
        messages.append(step_back(ahead, log_potential[:, k], messages[-1], k < chain.lengths))
    messages.reverse()
    state = torch.zeros(n, N, dtype=torch.long, device=log_potential.device)
    labels: list[Tensor] = []
    for k in range(K):
        ahead = look_ahead(messages[k + 1], chain.moves(k, N), Y) + log_potential[:, k, None, :]
        rows = torch.arange(N, device=state.device).expand(n, N)
        probability = torch.softmax(ahead[rows, state], -1)  # (n, N, Y)
        label = _choose(probability, generator)
        labels.append(label)
        state = _move(chain, k, state, label, N, Y)
    return torch.stack(labels, -1)


def _choose(probability: Tensor, generator: torch.Generator) -> Tensor:
    """One label by inverting the cumulative distribution; never one of probability zero."""
    uniform = torch.rand(probability.shape[:-1], generator=generator, dtype=torch.float64, device=generator.device).to(
        probability.device
    )
    cumulative = probability.cumsum(-1)
    threshold = uniform[..., None] * cumulative[..., -1:]
    label = (cumulative <= threshold).sum(-1)
    last_possible = probability.shape[-1] - 1 - (probability.flip(-1) > 0).to(torch.int8).argmax(-1)
    return torch.minimum(label, last_possible)


def _move(chain: Chain, k: int, state: Tensor, label: Tensor, N: int, Y: int) -> Tensor:
    moves = chain.moves(k, N).expand(*state.shape[:-1], N, -1)
    following = moves.gather(-1, (state * Y + label)[..., None]).squeeze(-1)
    active = k < chain.lengths
    return torch.where(active, following, state).clamp(max=chain.num_states - 1)
