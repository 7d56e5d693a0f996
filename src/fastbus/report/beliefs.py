"""Beliefs over a chain: the posterior of every state and every move, by the same messages as inference.

    state_k(z) ~ alpha_k(z) beta_k(z)        move_k(z, y) ~ alpha_k(z) p_k(y) beta_{k+1}(next(z, y))

K labels of Y values, Z states.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.errors import InputError, WeakLabelError
from fastbus.inference.chain import Chain, forward_messages, look_ahead, step_back
from fastbus.inference.ending import close
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior
from fastbus.inference.problem import Problem
from fastbus.numerics import NEG_INF
from fastbus.supervision.automaton import transition_table
from fastbus.supervision.base import Supervision

MAX_MOVES = 2**24


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
    _check_size(K, chain.num_states, log_potential.shape[-1])
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
    prior = u[0].softmax(-1)  # where instances have weak labels too, these are in it
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
        beliefs = chain_beliefs(u[row : row + 1], chain.rows(slice(row, row + 1)))
        return beliefs._replace(prior=_predicted(problem, bag, column)[: len(beliefs.prior)])
    raise InputError(
        f"bag {bag} has no exact chain within the budget; expected one. Draw a smaller bag, or raise budget= in infer."
    )


def _predicted(problem: Problem, bag: int, column: int) -> Tensor:
    """The predictions (K, Y) of a chain, without what weak labels of instances add to its potentials."""
    log_prior = problem.log_prior[bag].detach()
    return (log_prior[:, column] if log_prior.dim() == 3 else log_prior).softmax(-1)


def rule_beliefs(supervision: Supervision, bag_size: int, num_labels: int, weak: object = None) -> Beliefs:
    """The rule alone: what can be reached, and what the weak label, where given, says at the end."""
    if hasattr(supervision, "parts"):
        raise InputError(
            f"{supervision.title} has no chain of its own; expected a single rule. Draw its parts one by one, or the "
            "beliefs of a bag."
        )
    if isinstance(bag_size, bool) or not isinstance(bag_size, int) or bag_size < 1 or num_labels < 2:
        raise InputError(f"bag_size={bag_size!r}, num_labels={num_labels!r}; expected at least 1 and 2. Raise them.")
    wanted = supervision.bag_size
    if wanted is not None and bag_size != wanted:
        raise InputError(f"{supervision.title}: bags of {bag_size}; expected {wanted}. Pass bag_size={wanted}.")
    alone = supervision.level == "instance"
    Y = num_labels if alone or supervision.labels == "categorical" else 2
    Z = 1 if alone else 3 + Y if supervision.fold == "similar" else supervision.checked_num_states(bag_size)
    _check_size(bag_size, Z, Y)
    if alone:
        layers = torch.zeros(bag_size, 1, Y, dtype=torch.long)
    else:
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
        evidence = _weak_evidence(supervision, bag_size, Y, weak)
    return Beliefs(layers, evidence, torch.full((bag_size, Y), 1 / Y), states, moves)


def _check_size(K: int, Z: int, Y: int) -> None:
    if K * Z * Y > MAX_MOVES:
        raise InputError(f"a chain of {K * Z * Y} moves; expected at most {MAX_MOVES}. Draw a smaller bag.")


def _weak_evidence(supervision: Supervision, bag_size: int, Y: int, weak: object) -> Tensor:
    """What a weak label says of the last states (Z,): its likelihood, or the shares it asks of even predictions."""
    if supervision.level == "instance":
        raise InputError(
            f"{supervision.title}: a weak label at the end of the chain; expected none, since each instance has its "
            "own. Draw the beliefs of a bag."
        )
    try:
        values = torch.as_tensor([weak])
    except (TypeError, ValueError, RuntimeError):
        raise WeakLabelError(f"weak label {weak!r}; expected a number, or a list of them. Correct it.") from None
    categorical = supervision.labels == "categorical"
    even = torch.zeros(1, bag_size, Y if categorical else 1, dtype=torch.float64)
    posterior = infer(supervision, even, values, head="softmax" if categorical else "sigmoid")
    (rule,) = posterior._problem.rules
    if rule.soft is not None:
        return bag_beliefs(posterior).states[-1]
    return rule.log_evidence[0, 0].double().exp()
