"""What the states of a chain remember, in a few letters, and which weak label each last state speaks for."""

from __future__ import annotations

import torch

from fastbus.errors import SupervisionError
from fastbus.report.beliefs import Beliefs
from fastbus.supervision.base import Supervision

Names = dict[tuple[int, int], str]  # (layer, state); states without a name show an empty circle
LETTERS = 4  # that fit into a circle


def rule_names(rule: Supervision, beliefs: Beliefs) -> Names:
    """Names of the states of one rule over one label an instance."""
    return {(layer, state): _name(rule, layer, state) for layer, state in _present(beliefs)}


def _present(beliefs: Beliefs) -> list[tuple[int, int]]:
    return [(layer, state) for layer, state in torch.nonzero(beliefs.states).tolist()]


def _name(rule: Supervision, layer: int, state: int) -> str:
    if rule.level == "instance":
        return "·"
    if rule.fold == "any":
        return ("no", "yes")[state]
    if rule.fold == "similar":
        return {0: "·", 1: "≠", 2: "="}.get(state, str(state - 3))
    if rule.title in ("pair_comparison", "confidence_difference"):
        return "·" if state == 0 else str(state - 1) if state < 3 else f"{(state - 3) // 2}{(state - 3) % 2}"
    return str(state) if rule.fold == "count" else ("·" if layer == 0 else f"s{state}")


def count_names(beliefs: Beliefs) -> Names:
    """How often each label was read on the way to a state, where all ways agree and the digits fit."""
    K, _, Y = beliefs.moves.shape
    if Y > LETTERS or K > 9:  # one digit a class
        return {}
    names: dict[tuple[int, int], set[tuple[int, ...]]] = {(0, 0): {(0,) * Y}}
    for k, state, label in torch.nonzero(beliefs.moves).tolist():
        for counts in names.get((k, state), set()):
            more = tuple(count + (at == label) for at, count in enumerate(counts))
            names.setdefault((k + 1, int(beliefs.table[k, state, label])), set()).add(more)
    if any(len(ways) > 1 for ways in names.values()):
        return {}
    return {place: "".join(map(str, next(iter(ways)))) for place, ways in names.items()}


def ending_texts(rule: Supervision, bag_size: int, beliefs: Beliefs) -> dict[int, str]:
    """The weak label that each last state makes most probable, where these are finitely many."""
    if rule.level != "bag":
        return {}
    try:
        known = rule.weak_labels(bag_size)
        if known is None:
            return {}
        Z = beliefs.evidence.shape[0]
        said = rule.evidence(torch.arange(Z), torch.tensor(list(known))[:, None]).double()
    except (SupervisionError, TypeError, ValueError):
        return {}
    own = getattr(rule, "values", known)
    found = {}
    for state in torch.nonzero(beliefs.states[-1]).flatten().tolist():
        best = int(said[:, state].argmax())
        chance = float(said[best, state])
        ties = int((said[:, state] == said[best, state]).sum())
        tail = "" if chance > 0.999 else f" ({chance:.2g})"
        found[state] = f"either ({chance:.2g})" if ties > 1 else f"w = {own[best]}{tail}"
    return found
