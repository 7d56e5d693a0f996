"""Beliefs over a chain: the posterior of every state and every move, by the same messages as inference.

    state_k(z) ~ alpha_k(z) beta_k(z)        move_k(z, y) ~ alpha_k(z) p_k(y) beta_{k+1}(next(z, y))

K labels of Y values, Z states.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.errors import InputError
from fastbus.inference.chain import Chain, forward_messages, look_ahead, step_back
from fastbus.inference.ending import close
from fastbus.inference.posterior import Posterior
from fastbus.numerics import NEG_INF
from fastbus.supervision.automaton import transition_table
from fastbus.supervision.base import Supervision


class Beliefs(NamedTuple):
    """One chain. The last two are None where there are no predictions, only the rule."""

    table: Tensor  # (K, Z, Y) next states, Z where forbidden
    evidence: Tensor  # (Z,) what the weak label says of the last state, at most 1
    prior: Tensor  # (K, Y) predictions
    states: Tensor  # (K + 1, Z) posterior of the state before each label, and after the last
    moves: Tensor  # (K, Z, Y) posterior of each move


def chain_beliefs(log_potential: Tensor, chain: Chain) -> Beliefs:
    """Beliefs of a single chain with potentials (1, K, Y); its padding is cut off."""
    K = int(chain.lengths[0])
    u = log_potential[:, :K].detach()
    alpha = forward_messages(u, chain)
    beta, _ = close(alpha[-1], chain.ending)
    Y = u.shape[-1]
    states = [_normalised(alpha[-1] + beta)]
    moves: list[Tensor] = []
    evidence = beta[0]
    for k in reversed(range(K)):
        ahead = look_ahead(beta, chain.moves(k, 1), Y)
        moves.append(_normalised(alpha[k][:, :, None] + u[:, k, None, :] + ahead))
        beta = step_back(ahead, u[:, k], beta, k < chain.lengths)
        states.append(_normalised(alpha[k] + beta))
    layers = torch.stack([chain.moves(k, 1).reshape(-1, Y) for k in range(K)])
    prior = u[0].softmax(-1)
    weight = (evidence - evidence.max()).exp()
    return Beliefs(layers, weight, prior, torch.stack(states[::-1]), torch.stack(moves[::-1]))


def _normalised(log_mass: Tensor) -> Tensor:
    """Probabilities of one chain's log masses (1, ...), without the leading axis."""
    flat = log_mass.reshape(-1)
    return flat.softmax(0).reshape(log_mass.shape[1:]) if bool((flat > NEG_INF).any()) else flat * 0


def bag_beliefs(posterior: Posterior, bag: int = 0, column: int = 0) -> Beliefs:
    """Beliefs of one bag; `column` picks the class where each class has a chain of its own."""
    problem = posterior._problem
    B = problem.layout.num_bags
    if not 0 <= bag < B:
        raise InputError(f"bag {bag} of {B}; expected 0 to {B - 1}. Give the position of a bag.")
    blocks, _ = posterior._blocks
    for bags, u, chain in blocks:
        at = torch.nonzero(bags == bag).flatten()
        if not len(at):
            continue
        groups = u.shape[0] // len(bags)
        if not 0 <= column < groups:
            raise InputError(f"column {column}; expected 0 to {groups - 1}. Give the position of a class.")
        row = int(at[0]) * groups + column
        return chain_beliefs(u[row : row + 1], chain.rows(slice(row, row + 1)))
    raise InputError(f"bag {bag} has no exact chain within the budget; expected one. Raise budget= in infer.")


def rule_beliefs(supervision: Supervision, bag_size: int, num_labels: int, weak: object = None) -> Beliefs:
    """The rule alone: what can be reached, and what the weak label, where given, says at the end."""
    if supervision.level == "instance" or hasattr(supervision, "parts") or hasattr(supervision, "terms"):
        raise InputError(
            f"{supervision.title} has no chain of its own; expected a rule over a bag. Draw multi_instance, "
            "label_proportion, a pair or a rule of your own."
        )
    wanted = supervision.bag_size
    if wanted is not None and bag_size != wanted:
        raise InputError(f"{supervision.title}: bags of {bag_size}; expected {wanted}. Pass bag_size={wanted}.")
    if isinstance(bag_size, bool) or not isinstance(bag_size, int) or bag_size < 1 or num_labels < 2:
        raise InputError(f"bag_size={bag_size!r}, num_labels={num_labels!r}; expected at least 1 and 2. Raise them.")
    Y = num_labels if supervision.labels == "categorical" else 2
    similar = supervision.fold == "similar"
    Z = 3 + Y if similar else supervision.checked_num_states(bag_size)
    table = transition_table(supervision, bag_size, Z, Y)
    layers = torch.stack([table[min(k, len(table) - 1)] for k in range(bag_size)])
    reached = torch.zeros(bag_size + 1, Z + 1, dtype=torch.float64)
    reached[0, 0] = 1
    for k in range(bag_size):
        at = torch.nonzero(reached[k, :Z]).flatten()
        reached[k + 1, layers[k][at].flatten()] = 1
    states = reached[:, :Z]
    moves = (states[:-1, :, None] > 0).double() * (layers < Z)
    evidence = torch.ones(Z, dtype=torch.float64)
    if weak is not None:
        evidence = supervision.evidence(torch.arange(Z), torch.as_tensor([[weak]]))[0].double()
    return Beliefs(layers, evidence, torch.full((bag_size, Y), 1 / Y), states, moves)
