"""Drawings of chains: states layer by layer, labels on the moves, the weak label at the end; beliefs of a bag.

d = draw_chain(fastbus.LabelProportion(), bag_size=4); d.write("chain.svg")
d = draw_beliefs(fastbus.infer(...), bag=3); d.write("bag.png")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbus.errors import InputError
from fastbus.inference.posterior import Posterior
from fastbus.report.beliefs import Beliefs, bag_beliefs, rule_beliefs
from fastbus.report.state_names import Names, count_names, ending_texts, rule_names
from fastbus.report.style import INK, MAIN, QUIET, SECOND, SERIES, THIRD, plotting, png_bytes, svg_text
from fastbus.supervision.base import Supervision, resolve
from fastbus.training.checkpoint import write_atomically

LAYERS = 8  # labels drawn in full; of longer bags, the first and the last four
STATES = 12  # drawn in a layer
NAME, TITLE = 18, 120  # letters of a class in the legend, and above the picture
LABELS = 80  # moves, beyond which their labels would lie on each other


@dataclass(frozen=True)
class Drawing:
    """A picture, what it leaves out, and how many states each drawn layer has."""

    note: str
    states: tuple[int, ...]
    figure: Any = field(repr=False)

    def svg(self) -> str:
        return svg_text(self.figure, "drawing", "white")

    def png(self) -> bytes:
        return png_bytes(self.figure)

    def write(self, path: str | Path) -> Path:
        """To a .svg or .png file, as its name says; it is there whole or not at all."""
        place = Path(path)
        kind = place.suffix.lower()
        if kind not in (".svg", ".png"):
            raise InputError(f"{place.name!r}; expected a name that ends in .svg or .png. Rename the file.")
        data = self.svg().encode() if kind == ".svg" else self.png()
        write_atomically(data, place)
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
    asked = resolve(supervision)
    rule = getattr(asked, "terms", (asked,))[0]
    beliefs = rule_beliefs(rule, bag_size, num_labels, weak)
    notes = []
    if rule is not asked:
        notes.append("the chain of its pairs; unlabelled instances are counted as in unlabeled_unlabeled")
    if rule.level == "instance":
        notes.append("each instance has a weak label of its own, so that nothing is remembered")
    name = asked.title if asked.name else "a rule of its own"
    title = f"{name}: a bag of {bag_size}" + ("" if weak is None else f", weak label {weak}")
    ends = ending_texts(rule, bag_size, beliefs) if weak is None else {}
    return _draw(beliefs, rule_names(rule, beliefs), title, ends, notes, told=weak is not None)


def draw_beliefs(
    posterior: Posterior, bag: int = 0, column: int = 0, title: str | None = None, classes: Sequence[str] | None = None
) -> Drawing:
    """The chain of one bag with its beliefs: thick moves and dark states are probable; posteriors as bars.

    column: the class, where each has a chain of its own (sigmoid heads). classes: names for the legend.
    """
    beliefs = bag_beliefs(posterior, bag, column)
    problem = posterior._problem
    rules, coupled = problem.rules, problem.view == "coupled"
    names: Names = {}
    if not rules:
        names = {(layer, 0): "·" for layer in range(len(beliefs.states))}
    elif len(rules) == 1 and not coupled:
        names = rule_names(rules[0].supervision, beliefs)
    elif len(rules) == 1 and rules[0].fold == "count":
        names = count_names(beliefs)
    notes = [] if posterior.exact_bags[bag] else ["the exact chain; this posterior was approximated"]
    if coupled and names:
        notes.append("states: how often each label was read so far")
    chance = float(posterior.log_likelihood[bag].exp())
    shown = title or f"bag {bag}: the weak label has probability {chance:.3g}"
    return _draw(beliefs, names, shown, {}, notes, told=True, legend=_legend(posterior, column, classes))


def _legend(posterior: Posterior, column: int, classes: Sequence[str] | None) -> list[str]:
    """A text for each label of the chain."""
    problem = posterior._problem
    if problem.head == "sigmoid":
        if classes is None:
            return ["label 0", "label 1" if problem.num_classes == 1 else f"class {column}"]
        return [f"not {_short(str(classes[column]))}", _short(str(classes[column]))]
    if classes is None:
        return [f"label {label}" for label in range(problem.num_classes)]
    return [f"{label} {_short(str(name))}" for label, name in enumerate(classes)]


def _short(text: str, length: int = NAME) -> str:
    """At most so many letters, and none that a picture cannot hold."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= length else f"{shown[: length - 1]}…"


def _draw(
    beliefs: Beliefs, names: Names, title: str, ends: dict[int, str], notes: list[str], *, told: bool,
    legend: list[str] | None = None,
) -> Drawing:  # fmt: skip
    """Chain, and below it bars where there are predictions, hence a legend of labels."""
    with_mass = legend is not None
    layout = _place(beliefs, with_mass, told)
    drawn = tuple(sum(1 for layer, _ in layout.y if layer == at) for at in layout.layers)
    width = max(4.2, 1.15 * len(layout.layers) + (1.6 if ends or not with_mass else 0.9))
    height = 0.62 * max(drawn) + 0.5
    with plotting() as new:
        bars = 1.3 if with_mass else 0.0
        figure = new(figsize=(width, height + bars + (1.0 if with_mass else 0.2)), facecolor="white")
        if legend is not None:
            upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(height, bars))
            _bars(lower, beliefs, layout, legend)
        else:
            upper = figure.subplots()
        _edges(upper, beliefs, layout, with_mass)
        _nodes(upper, beliefs, layout, names, ends, with_mass, told)
        upper.set_title(_short(title, TITLE), loc="left", fontweight="bold")
        upper.set_axis_off()
        upper.margins(x=0.08)
        upper.set_ylim(-max(drawn) / 2 - 0.1, max(drawn) / 2 + 0.1)
        note = "; ".join([*notes, *layout.notes])
        if note:
            figure.text(0.01, -0.02, note, fontsize=8, color=QUIET, va="top")
        figure.tight_layout()
    return Drawing(note, drawn, figure)


def _place(beliefs: Beliefs, with_mass: bool, told: bool) -> _Layout:
    """Centred layers; of large chains the first and last layers, and the states that matter most."""
    K = beliefs.moves.shape[0]
    open_states = _open_states(beliefs) if told and not with_mass else None
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
            weight = mass[present] if open_states is None else _nearness(open_states[layer, present])
            order = weight.argsort(descending=True, stable=True)[:STATES]
            present = present[order].sort().values
        for rank, state in enumerate(present.tolist()):
            y[layer, state] = (len(present) - 1) / 2 - rank
    if hidden:
        notes.append(f"{hidden} of the states are left out")
    if with_mass:
        notes.append("states and moves of less than 0.01 % are not drawn")
    return _Layout(layers, x, y, notes)


def _open_states(beliefs: Beliefs) -> Tensor:
    """(K + 1, Z) states from which a last state can be reached that the weak label allows."""
    K = beliefs.moves.shape[0]
    nowhere = torch.zeros(1, dtype=torch.bool)
    found = [beliefs.evidence > 0]
    for k in reversed(range(K)):
        found.append(torch.cat([found[-1], nowhere])[beliefs.table[k]].any(-1))
    return torch.stack(found[::-1])


def _nearness(wanted: Tensor) -> Tensor:
    """(n,) minus the distance to the nearest entry that is wanted."""
    at = torch.nonzero(wanted).flatten()
    places = torch.arange(len(wanted))
    return -(places[:, None] - at).abs().amin(1) if len(at) else -places


def _edges(axes: Any, beliefs: Beliefs, layout: _Layout, with_mass: bool) -> None:
    """Moves between drawn states, all labels that lead the same way on one line."""
    K, _, Y = beliefs.moves.shape
    colours = _colours(beliefs) if with_mass else [SERIES[label % len(SERIES)] for label in range(Y)]
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
        colour = colours[labels[0]] if len(labels) == 1 and Y > 2 else _binary_colour(labels, Y)
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


def _colours(beliefs: Beliefs) -> list[str]:
    """A colour a label; where there are too many labels, for those of most mass, and grey for the others."""
    Y = beliefs.prior.shape[1]
    if len(SERIES) >= Y:
        return list(SERIES[:Y])
    mass = beliefs.prior.sum(0) + 2 * beliefs.moves.sum((0, 1))
    chosen = mass.argsort(descending=True, stable=True)[: len(SERIES) - 1].sort().values.tolist()
    return [SERIES[chosen.index(label)] if label in chosen else QUIET for label in range(Y)]


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
    axes: Any, beliefs: Beliefs, layout: _Layout, names: Names, ends: dict[int, str], with_mass: bool, told: bool
) -> None:
    """Circles, shaded by belief; a ring at the end says whether the weak label allows the state."""
    K = beliefs.moves.shape[0]
    colours: dict[str, str] = {}
    for (layer, state), height in layout.y.items():
        x = layout.x[layer]
        share = float(beliefs.states[layer, state]) if with_mass else 0.0
        ring, text = INK, ""
        if layer == K and told:
            weight = float(beliefs.evidence[state])
            ring = THIRD if weight > 0 else "#c94f5d"
            text = "" if with_mass else ("allowed" if weight == 1 else "ruled out" if weight == 0 else f"{weight:.2g}")
        elif layer == K and state in ends:
            text = ends[state]
            ring = colours.setdefault(text, SERIES[len(colours) % len(SERIES)])
        axes.plot(x, height, "o", ms=19, mfc="white", mec=ring, mew=2.2 if layer == K else 1.1, zorder=3, clip_on=False)
        if share:
            axes.plot(x, height, "o", ms=19, mfc=MAIN, mec="none", alpha=0.75 * share, zorder=4, clip_on=False)
        name = names.get((layer, state), "")
        axes.text(x, height, name, ha="center", va="center", fontsize=8 if len(name) < 3 else 6.5, zorder=5)
        if text:
            axes.annotate(text, (x, height), (14, 0), textcoords="offset points", va="center", fontsize=8.5, color=ring)
        if with_mass and layer == K:
            axes.annotate(f"{share:.0%}", (x, height), (14, 0), textcoords="offset points", va="center", fontsize=8.5)


def _bar_groups(colours: list[str], legend: list[str]) -> list[tuple[list[int], str, str]]:
    """Labels that share a part of a bar, its name and its colour: one label each, and all the others together."""
    if len(colours) <= len(SERIES):
        return [([label], legend[label], colour) for label, colour in enumerate(colours)]
    others = [label for label, colour in enumerate(colours) if colour == QUIET]
    single = [([label], legend[label], colour) for label, colour in enumerate(colours) if colour != QUIET]
    return [*single, (others, f"{len(others)} others", QUIET)]


def _bars(axes: Any, beliefs: Beliefs, layout: _Layout, legend: list[str]) -> None:
    """P(label) of every drawn instance: predictions hollow, posteriors filled."""
    K, _, Y = beliefs.moves.shape
    posterior = beliefs.moves.sum(1)  # (K, Y)
    drawn = [k for k in range(K) if k in layout.x and k + 1 in layout.x]
    groups = _bar_groups(_colours(beliefs), legend)
    first = True
    for k in drawn:
        middle = (layout.x[k] + layout.x[k + 1]) / 2
        if Y == 2:
            prior, after = float(beliefs.prior[k, 1]), float(posterior[k, 1])
            names = (f"P({legend[1]}) predicted", "with the weak label") if first else (None, None)
            axes.bar(middle - 0.13, prior, 0.22, color="white", edgecolor=SECOND, lw=1.3, label=names[0])
            axes.bar(middle + 0.13, after, 0.22, color=SECOND, alpha=0.85, edgecolor=SECOND, lw=1.3, label=names[1])
        else:
            for offset, shares, alpha in ((-0.13, beliefs.prior[k], 0.35), (0.13, posterior[k], 0.9)):
                base = 0.0
                for labels, name, colour in groups:
                    share = float(shares[labels].sum())
                    axes.bar(
                        middle + offset, share, 0.22, bottom=base, alpha=alpha, color=colour,
                        label=name if first and offset > 0 else None,
                    )  # fmt: skip
                    base += share
        first = False
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 1])
    axes.set_xticks([(layout.x[k] + layout.x[k + 1]) / 2 for k in drawn], [str(k + 1) for k in drawn])
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("instance" if Y == 2 else "instance (left: predicted, right: with the weak label)")
    axes.set_ylabel("probability")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.42), ncol=2 if Y == 2 else 5, columnspacing=1.0)
