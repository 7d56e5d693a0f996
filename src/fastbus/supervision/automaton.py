"""The table behind a rule: next states (L, Z, Y) for every state and label, reachable ones only.

L is 1, or the bag size where the rule looks at positions. Unreachable entries hold Z, one past the
last state: a sink that no message enters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.supervision.base import Supervision, takes_position


def transition_table(supervision: Supervision, bag_size: int, Z: int, Y: int) -> Tensor:
    """Call `step` on all states and labels, and keep what a bag of that size can reach."""
    states = torch.arange(Z)[:, None].expand(Z, Y)
    labels = torch.arange(Y)[None, :].expand(Z, Y)
    if not takes_position(supervision):
        table = _checked_step(supervision, supervision.step(states, labels), Z, Y)
        reachable = _closure(supervision, table, bag_size, Z)
        return table.masked_fill(~reachable[:, None], Z).unsqueeze(0)
    layers, reachable = [], torch.arange(Z) == 0
    for position in range(bag_size):
        raw = supervision.step(states, labels, position=position)  # type: ignore[call-arg]
        table = _checked_step(supervision, raw, Z, Y)
        layers.append(table.masked_fill(~reachable[:, None], Z))
        reachable = _reach(supervision, table, reachable, Z)
    return torch.stack(layers)


def _checked_step(supervision: Supervision, table: object, Z: int, Y: int) -> Tensor:
    if not isinstance(table, Tensor) or table.shape != (Z, Y) or table.is_floating_point():
        got = f"{table.dtype} of shape {tuple(table.shape)}" if isinstance(table, Tensor) else type(table).__name__
        raise SupervisionError(
            f"{supervision.title}: step returned {got}; expected an integer tensor of shape "
            f"({Z}, {Y}), as state and label have. Write step with elementwise tensor operations."
        )
    return table.long()


def _reach(supervision: Supervision, table: Tensor, reachable: Tensor, Z: int) -> Tensor:
    targets = table[reachable]
    outside = (targets < 0) | (targets >= Z)
    if bool(outside.any()):
        state_at, label = torch.nonzero(outside)[0].tolist()
        state = int(torch.nonzero(reachable)[state_at])
        raise SupervisionError(
            f"{supervision.title}: step(state={state}, label={label}) is {int(targets[outside][0])}; "
            f"expected a state 0 to {Z - 1}. Return more from num_states, or clamp the state."
        )
    return torch.zeros_like(reachable).index_fill(0, targets.flatten(), True)


def _closure(supervision: Supervision, table: Tensor, bag_size: int, Z: int) -> Tensor:
    """States from which a label may still be read, over all positions of the bag."""
    frontier = torch.arange(Z) == 0
    reached = frontier.clone()
    for _ in range(bag_size - 1):
        frontier = _reach(supervision, table, frontier, Z)
        if not bool((frontier & ~reached).any()):
            break
        reached |= frontier
    _reach(supervision, table, reached if bag_size > 0 else frontier, Z)
    return reached
