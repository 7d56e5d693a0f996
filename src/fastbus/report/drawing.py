"""Drawings of chains: states layer by layer, labels on the moves, the weak label at the end; beliefs of a bag.

d = draw_chain(fastbus.LabelProportion(), bag_size=4); d.write("chain.svg")
d = draw_beliefs(fastbus.infer(...), bag=3); d.write("bag.png")
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastbus.errors import InputError, SupervisionError
from fastbus.inference.posterior import Posterior
from fastbus.report.beliefs import Beliefs, bag_beliefs, rule_beliefs
from fastbus.report.style import INK, MAIN, QUIET, SECOND, SERIES, THIRD, plotting, png_bytes, svg_text
from fastbus.supervision.base import Supervision, resolve

LAYERS = 8  # labels drawn in full; of longer bags, the first and the last four
STATES = 12  # drawn in a layer
LABELS = 80  # moves, beyond which their labels would lie on each other


@dataclass(frozen=True)
class Drawing:
    """A picture, and what it leaves out."""

    note: str
    figure: Any = field(repr=False)

    def svg(self) -> str:
        return svg_text(self.figure, "drawing", "white")

    def png(self) -> bytes:
        return png_bytes(self.figure)

    def write(self, path: str | Path) -> Path:
        """To a .svg or .png file, as its name says."""
        place = Path(path)
        kind = place.suffix.lower()
        if kind not in (".svg", ".png"):
            raise InputError(f"{place.name!r}; expected a name that ends in .svg or .png. Rename the file.")
        data = self.svg().encode() if kind == ".svg" else self.png()
        place.write_bytes(data)
        return place


@dataclass(frozen=True)
class _Layout:
    """Which layers and states are drawn, and where."""

    layers: list[int]
    x: dict[int, float]
    y: dict[tuple[int, int], float]
    notes: list[str]


def draw_chain(supervision: Supervision | str, bag_size: int, num_labels: int = 2, weak: object = None) -> Drawing:
    """The chain of a rule for bags of that size; with `weak`, the last states that it allows."""
    rule = resolve(supervision)
    beliefs = rule_beliefs(rule, bag_size, num_labels, weak)
    ends = _endings(rule, bag_size, beliefs) if weak is None else {}
    name = rule.title if rule.name else "a rule of its own"
    title = f"{name}: a bag of {bag_size}" + ("" if weak is None else f", weak label {weak}")
    return _draw(beliefs, rule, title, ends, with_mass=False, told=weak is not None)


def draw_beliefs(posterior: Posterior, bag: int = 0, column: int = 0, title: str | None = None) -> Drawing:
    """The chain of one bag with its beliefs: thick moves and dark states are probable; posteriors as bars."""
    beliefs = bag_beliefs(posterior, bag, column)
    problem = posterior._problem
    rules = problem.rules
    rule = rules[0].supervision if len(rules) == 1 and problem.view != "coupled" else None
    chance = float(posterior.log_likelihood[bag].exp())
    shown = f"bag {bag}: the weak label has probability {chance:.3g}"
    return _draw(beliefs, rule, title or shown, {}, with_mass=True, told=True)


def _draw(
    beliefs: Beliefs, rule: Supervision | None, title: str, ends: dict[int, str], *, with_mass: bool, told: bool
) -> Drawing:
    layout = _place(beliefs, with_mass)
    tallest = max(sum(1 for layer, _ in layout.y if layer == at) for at in layout.layers)
    width = max(4.2, 1.15 * len(layout.layers) + (1.6 if ends else 0.9))
    height = max(1.9, 0.62 * tallest + 0.8)
    with plotting() as new:
        bars = 1.3 if with_mass else 0.0
        figure = new(figsize=(width, height + bars), facecolor="white")
        if with_mass:
            upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(height, bars))
            _bars(lower, beliefs, layout)
        else:
            upper = figure.subplots()
        _edges(upper, beliefs, layout, with_mass)
        _nodes(upper, beliefs, layout, rule, ends, with_mass, told)
        upper.set_title(title, loc="left", fontweight="bold")
        upper.set_axis_off()
        upper.margins(x=0.08, y=0.16)
        note = "; ".join(layout.notes)
        if note:
            figure.text(0.01, -0.02, note, fontsize=8, color=QUIET, va="top")
        figure.tight_layout()
    return Drawing(note, figure)


def _place(beliefs: Beliefs, with_mass: bool) -> _Layout:
    """Centred layers; of large chains the first and last layers, and the states with most mass."""
    K = beliefs.moves.shape[0]
    notes = []
    layers = list(range(K + 1))
    if K > LAYERS:
        layers = [*range(LAYERS // 2 + 1), *range(K - LAYERS // 2, K + 1)]
        notes.append(f"labels {LAYERS // 2 + 1} to {K - LAYERS // 2} of {K} are left out")
    x: dict[int, float] = {}
    y: dict[tuple[int, int], float] = {}
    hidden = 0
    for at, layer in enumerate(layers):
        gap = 0.5 if K > LAYERS and at > LAYERS // 2 else 0.0
        x[layer] = at + gap
        mass = beliefs.states[layer]
        present = torch.nonzero(mass > (1e-4 if with_mass else 0)).flatten()
        if len(present) > STATES:
            hidden += len(present) - STATES
            order = mass[present].argsort(descending=True, stable=True)[:STATES]
            present = present[order].sort().values
        for rank, state in enumerate(present.tolist()):
            y[layer, state] = (len(present) - 1) / 2 - rank
    if hidden:
        notes.append(f"{hidden} of the states are left out")
    if with_mass:
        notes.append("states and moves of less than 0.01 % are not drawn")
    return _Layout(layers, x, y, notes)


def _edges(axes: Any, beliefs: Beliefs, layout: _Layout, with_mass: bool) -> None:
    """Moves between drawn states, all labels that lead the same way on one line."""
    K, _, Y = beliefs.moves.shape
    lines: dict[tuple[int, int, int], list[int]] = {}
    mass: dict[tuple[int, int, int], float] = {}
    for k in range(K):
        if k + 1 not in layout.x or k not in layout.x:
            continue
        for state, label in torch.nonzero(beliefs.moves[k] > (1e-4 if with_mass else 0)).tolist():
            target = int(beliefs.table[k, state, label])
            if (k, state) in layout.y and (k + 1, target) in layout.y:
                lines.setdefault((k, state, target), []).append(label)
                key = (k, state, target)
                mass[key] = mass.get(key, 0.0) + float(beliefs.moves[k, state, label])
    for (k, state, target), labels in lines.items():
        start = (layout.x[k], layout.y[k, state])
        end = (layout.x[k + 1], layout.y[k + 1, target])
        weight = mass[k, state, target] if with_mass else 0.25
        colour = SERIES[labels[0] % len(SERIES)] if len(labels) == 1 and Y > 2 else _binary_colour(labels, Y)
        axes.plot(
            *zip(start, end, strict=True), color=colour, lw=0.7 + 6 * weight if with_mass else 1.3,
            alpha=0.35 + 0.6 * weight if with_mass else 0.8, zorder=1, solid_capstyle="butt",
        )  # fmt: skip
        if len(lines) <= LABELS:  # else the colours have to do
            # nearer to the start, where moves that cross later are still apart
            at = [a + 0.33 * (b - a) for a, b in zip(start, end, strict=True)]
            axes.text(
                *at, _label_text(labels, Y), fontsize=7.5, ha="center", va="center", zorder=2, color=INK,
                bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
            )  # fmt: skip
    if K > LAYERS:
        middle = (layout.x[LAYERS // 2] + layout.x[K - LAYERS // 2]) / 2
        axes.text(middle, 0, "⋯", fontsize=16, ha="center", va="center", color=QUIET)


def _binary_colour(labels: list[int], Y: int) -> str:
    if Y == 2 and len(labels) == 1:
        return SECOND if labels[0] else MAIN
    return QUIET


def _label_text(labels: list[int], Y: int) -> str:
    if len(labels) == Y and Y > 2:
        return "any"
    if len(labels) > 3:
        rest = [label for label in range(Y) if label not in labels]
        return f"not {rest[0]}" if len(rest) == 1 else f"{labels[0]}, {labels[1]}, …"
    return ", ".join(map(str, labels))


def _nodes(
    axes: Any, beliefs: Beliefs, layout: _Layout, rule: Supervision | None, ends: dict[int, str], with_mass: bool,
    told: bool,
) -> None:  # fmt: skip
    """Circles, shaded by belief; a ring at the end says whether the weak label allows the state."""
    K = beliefs.moves.shape[0]
    colours: dict[str, str] = {}
    top = float(beliefs.evidence.max()) or 1.0
    for (layer, state), height in layout.y.items():
        x = layout.x[layer]
        share = float(beliefs.states[layer, state]) if with_mass else 0.0
        ring, text = INK, ""
        if layer == K and told:
            weight = float(beliefs.evidence[state]) / top
            ring = THIRD if weight > 0 else "#c94f5d"
            text = "" if with_mass else ("allowed" if weight == 1 else "ruled out" if weight == 0 else f"{weight:.2f}")
        elif layer == K and state in ends:
            text = ends[state]
            ring = colours.setdefault(text, SERIES[len(colours) % len(SERIES)])
        axes.plot(x, height, "o", ms=19, mfc="white", mec=ring, mew=2.2 if layer == K else 1.1, zorder=3, clip_on=False)
        if share:
            axes.plot(x, height, "o", ms=19, mfc=MAIN, mec="none", alpha=0.75 * share, zorder=4, clip_on=False)
        name = _state_name(rule, layer, state, K)
        axes.text(x, height, name, ha="center", va="center", fontsize=8 if len(name) < 3 else 6.5, zorder=5)
        if text:
            axes.annotate(text, (x, height), (14, 0), textcoords="offset points", va="center", fontsize=8.5, color=ring)
        if with_mass and layer == K:
            axes.annotate(f"{share:.0%}", (x, height), (14, 0), textcoords="offset points", va="center", fontsize=8.5)


def _state_name(rule: Supervision | None, layer: int, state: int, K: int) -> str:
    """What the state remembers, in two or three letters; nothing for lattices of several classes."""
    if rule is None:
        return ""
    if rule.fold == "any":
        return ("no", "yes")[state]
    if rule.fold == "similar":
        return {0: "·", 1: "≠", 2: "="}.get(state, str(state - 3))
    if rule.title in ("pair_comparison", "confidence_difference"):
        return "·" if state == 0 else str(state - 1) if state < 3 else f"{(state - 3) // 2}{(state - 3) % 2}"
    return str(state) if rule.fold == "count" else ("·" if layer == 0 else f"s{state}")


def _endings(rule: Supervision, bag_size: int, beliefs: Beliefs) -> dict[int, str]:
    """The weak label that each last state makes most probable, where these are finitely many."""
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


def _bars(axes: Any, beliefs: Beliefs, layout: _Layout) -> None:
    """P(label) of every drawn instance: predictions hollow, posteriors filled."""
    K, _, Y = beliefs.moves.shape
    posterior = beliefs.moves.sum(1)  # (K, Y)
    drawn = [k for k in range(K) if k in layout.x and k + 1 in layout.x]
    first = True
    for k in drawn:
        middle = (layout.x[k] + layout.x[k + 1]) / 2
        if Y == 2:
            prior, after = float(beliefs.prior[k, 1]), float(posterior[k, 1])
            names = ("P(label 1) predicted", "with the weak label") if first else (None, None)
            axes.bar(middle - 0.13, prior, 0.22, color="white", edgecolor=SECOND, lw=1.3, label=names[0])
            axes.bar(middle + 0.13, after, 0.22, color=SECOND, alpha=0.85, edgecolor=SECOND, lw=1.3, label=names[1])
        else:
            for offset, shares in ((-0.13, beliefs.prior[k]), (0.13, posterior[k])):
                base = np.concatenate([[0.0], np.cumsum(shares.numpy())])
                for label in range(Y):
                    name = f"label {label}" if first and offset > 0 and label < len(SERIES) else None
                    alpha = 0.35 if offset < 0 else 0.9
                    axes.bar(
                        middle + offset, float(shares[label]), 0.22, bottom=base[label], alpha=alpha,
                        color=SERIES[label % len(SERIES)], label=name,
                    )  # fmt: skip
        first = False
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 1])
    axes.set_xticks([(layout.x[k] + layout.x[k + 1]) / 2 for k in drawn], [str(k + 1) for k in drawn])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("instance" if Y == 2 else "instance (left: predicted, right: with the weak label)")
    axes.set_ylabel("probability")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.42), ncol=2 if Y == 2 else 5, columnspacing=1.0)
