"""The pictures of a report: numbers in, one inline SVG and its caption out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.report.agreement import Agreement
from fastbus.report.channels import Channel
from fastbus.report.gold import Gold
from fastbus.report.likelihood import Likelihood
from fastbus.report.numbers import ClassShare, Confidence
from fastbus.report.style import INK, MAIN, QUIET, SECOND, SERIES, THIRD, WIDTH, inline_svg, plotting
from fastbus.report.words import percent

CELLS = 12  # rows of a heat map whose numbers are still written into it
FEWEST = 10  # predictions in a bin, below which the share of right ones is mostly chance
LONGEST = 16  # characters of a class name beside an axis


class Picture(NamedTuple):
    """An <svg> element, its heading, and what it shows in a sentence or two."""

    svg: str
    title: str
    caption: str


def short(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _axes(figure: Any, grid: str = "y") -> Any:
    axes = figure.add_subplot()
    if grid:
        axes.grid(True, axis=grid)
    return axes


def learning_curve(history: list[dict[str, float]], key: str, likelihood: Likelihood | None) -> Picture | None:
    """One column of the history over the epochs; with the baseline's likelihood where it is comparable."""
    rows = [(row["epoch"] + 1, row[key]) for row in history if key in row and np.isfinite(row[key])]
    if not rows:
        return None
    epochs, values = zip(*rows, strict=True)
    held = key == "held_out"
    with plotting() as new:
        figure = new(figsize=(WIDTH, 2.8))
        axes = _axes(figure)
        axes.plot(epochs, values, color=MAIN, marker="o" if len(rows) == 1 else None, markersize=4)
        axes.set_xlabel("epoch (passes over all bags)")
        axes.set_ylabel("−log likelihood of a bag (nats)" if held else "training loss (nats)")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if held:
            best = int(np.argmin(values))
            axes.plot(epochs[best], values[best], "o", color=SECOND, label="best epoch", zorder=3)
        if held and likelihood is not None and np.isfinite(likelihood.baseline_per_bag):
            axes.axhline(-likelihood.baseline_per_bag, color=QUIET, ls="--", lw=1.2, label="without looking at X")
        if held:
            axes.legend()
        figure.tight_layout()
        first, last = values[0], values[-1]
        title = "Held-out bags" if held else "Training loss"
        alt = f"{title} over {len(rows)} epochs, from {first:.3g} to {last:.3g}"
        svg = inline_svg(figure, f"curve-{key}", alt)
    if held:
        text = (
            "How badly the weak labels of bags that were not trained on are predicted; lower is better. "
            "The dashed line is a model that gives every instance the same class shares."
        )
    else:
        text = "What training makes small. It should fall and level off; a rising end asks for a lower learning rate."
    return Picture(svg, title, text)


def given_and_predicted(found: Agreement, number: int) -> Picture | None:
    """Points around the diagonal for numbers, a table for labels."""
    if found.kind == "labels":
        alt = f"Table of given against predicted weak labels; {percent(found.score.value)} agree"
        text = (
            f"Rows: the weak label that was given. Columns: the one that predictions make most probable. "
            f"Agreement {percent(found.score.value)}; {found.baseline_means}: {percent(found.baseline.value)}."
        )
        svg = _heat_map(found.table, found.names, found.names, "predicted", "given", f"weak-{number}", alt)
        return Picture(svg, "Given against predicted weak labels", text)
    if found.kind == "rate":
        return None
    with plotting() as new:
        figure = new(figsize=(WIDTH, 3.7))
        axes = _axes(figure, "both")
        low = min(0.0, float(found.given.min()), float(found.predicted.min()))
        high = max(float(found.given.max()), float(found.predicted.max()), low + 0.1)
        high = 1.0 if high > 0.85 else high * 1.06
        axes.plot([low, high], [low, high], color=QUIET, lw=1.2, ls="--", zorder=1)
        many = len(found.given) > 500
        kinds = np.unique(found.series)
        for kind in kinds.tolist():
            at = found.series == kind
            colour = SERIES[kind % len(SERIES)] if len(kinds) > 1 else MAIN
            label = short(found.names[kind]) if len(found.names) > 1 else None
            axes.scatter(
                found.given[at], found.predicted[at], s=14 if many else 20, color=colour, alpha=0.6, lw=0,
                rasterized=many, zorder=2, clip_on=False,
            )  # fmt: skip
            axes.plot([], [], "o", ms=5, color=colour, label=label)
        span = high - low
        axes.set_xlim(low - 0.02 * span, high + 0.02 * span)
        axes.set_ylim(low - 0.02 * span, high + 0.02 * span)
        axes.set_aspect("equal")
        axes.set_xlabel(f"given {found.what}")
        axes.set_ylabel("predicted")
        if 1 < len(kinds) <= len(SERIES):
            axes.legend(
                loc="center left", bbox_to_anchor=(1.0, 0.5), handletextpad=0.1, borderaxespad=0.3, title="class"
            )
        figure.tight_layout()
        alt = f"Predicted against given {found.what}, {found.points} points, mean distance {found.score.value:.3g}"
        svg = inline_svg(figure, f"weak-{number}", alt)
    shown = "" if len(found.given) == found.points else f" {len(found.given):,} of {found.points:,} points are drawn."
    text = (
        "On the dashed line predicted and given numbers agree. Mean distance "
        f"{found.score.value:.3f}; {found.baseline_means}: {found.baseline.value:.3f}.{shown}"
    )
    return Picture(svg, f"Given against predicted {found.what}", text)


def class_shares(shares: tuple[ClassShare, ...]) -> Picture:
    """Dots with intervals, one row a class."""
    names = [short(share.name) for share in shares]
    value = np.array([share.predicted.value for share in shares])
    low = np.array([share.predicted.low for share in shares])
    high = np.array([share.predicted.high for share in shares])
    at = np.arange(len(shares))
    with plotting() as new:
        figure = new(figsize=(WIDTH, 1.5 + 0.27 * min(len(shares), 40)))
        axes = _axes(figure, "x")
        axes.axvline(1 / len(shares), color=QUIET, ls="--", lw=1.2, label="all classes alike")
        if np.isfinite(low).all():
            axes.hlines(at, low, high, color=MAIN, lw=3, alpha=0.45)
        axes.plot(value, at, "o", color=MAIN, label="predicted, with 95 % interval")
        axes.plot(
            [share.with_weak for share in shares], at, "D", color=SECOND, ms=4.5, label="weak labels read as well"
        )
        if shares[0].true is not None:
            axes.plot([share.true for share in shares], at, "|", color=INK, ms=11, mew=1.6, label="true share")
        axes.set_yticks(at, names)
        axes.set_ylim(len(shares) - 0.5, -0.5)
        axes.set_xlim(left=0)
        axes.set_xlabel("share of all instances")
        figure.tight_layout()
        figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=2, columnspacing=1.2, handletextpad=0.5)
        alt = "Predicted share of each class: " + ", ".join(
            f"{share.name} {percent(share.predicted.value)}" for share in shares[:20]
        )
        svg = inline_svg(figure, "shares", alt)
    text = "How common each class is among all instances. Intervals: 1,000 bootstrap samples of whole bags."
    return Picture(svg, "Class shares", text)


def confidence_histogram(found: Confidence) -> Picture:
    """Steps before and after the weak labels are read."""
    with plotting() as new:
        figure = new(figsize=(WIDTH, 2.8))
        axes = _axes(figure)
        total = max(1, int(found.predicted.sum()))
        axes.stairs(found.with_weak / total, found.edges, fill=True, color=SECOND, alpha=0.35, label="weak labels read")
        axes.stairs(found.predicted / total, found.edges, color=MAIN, lw=1.8, label="prediction alone")
        axes.axvline(found.chance, color=QUIET, ls="--", lw=1.2, label="chance")
        axes.set_xlabel("probability of the most probable class")
        axes.set_ylabel("share of instances")
        figure.tight_layout()
        figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=3, columnspacing=1.2, handletextpad=0.5)
        alt = (
            f"Histogram of confidence: {percent(found.mean_predicted)} on average by prediction alone, "
            f"{percent(found.mean_with_weak)} once weak labels are read, {percent(found.chance)} by chance"
        )
        svg = inline_svg(figure, "confidence", alt)
    text = (
        f"How sure the classifier is: {percent(found.mean_predicted)} on average by its prediction alone, "
        f"{percent(found.mean_with_weak)} once the weak label of the bag is read; chance is {percent(found.chance)}."
    )
    return Picture(svg, "Confidence", text)


def noise_matrix(channel: Channel, number: int) -> tuple[Picture, ...]:
    """The matrix that training assumed, and the one this data counts."""
    alt = f"Noise matrix that training assumed for {channel.title}"
    svg = _heat_map(channel.assumed, channel.rows, channel.columns, "given label", "true", f"noise-{number}", alt, True)
    found = [Picture(svg, "Noise that training assumed", channel.what + " Each row sums to 1.")]
    if channel.counted.size:
        alt = f"Noise matrix counted from the posteriors for {channel.title}"
        name = f"counted-{number}"
        svg = _heat_map(channel.counted, channel.rows, channel.columns, "given label", "true", name, alt, True)
        text = (
            "The same, counted on this data: given labels against the classes that the posteriors believe in. "
            "Large differences from the assumed matrix say that it does not fit. Intervals are in the table."
        )
        found.append(Picture(svg, "Noise that the posteriors count", text))
    return tuple(found)


def annotators(channel: Channel, number: int) -> Picture | None:
    """How often each annotator is right, the least reliable first."""
    if len(channel.annotators) < 2:
        return None
    with plotting() as new:
        figure = new(figsize=(WIDTH, 2.8))
        axes = _axes(figure, "both")
        ranked = np.sort(channel.annotators)
        axes.plot(np.arange(1, len(ranked) + 1), ranked, "o", ms=4.5, color=MAIN, alpha=0.8, label="annotator")
        axes.axhline(1 / len(channel.rows), color=QUIET, ls="--", lw=1.2, label="guessing")
        axes.set_ylim(0, 1.03)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("annotators, the least reliable first")
        axes.set_ylabel("probability of a right answer")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.12))
        figure.tight_layout()
        worst = float(channel.annotators.min())
        alt = f"Reliability of {len(channel.annotators)} annotators, the least reliable {worst:.0%}"
        svg = inline_svg(figure, f"annotators-{number}", alt)
    text = "Each dot is an annotator: how often an answer is right, averaged over the classes."
    return Picture(svg, "Annotators", text)


def calibration_curve(gold: Gold) -> Picture:
    """Accuracy over confidence, counts as bars behind."""
    found = gold.calibration
    filled = found.counts >= min(FEWEST, int(found.counts.max()))
    with plotting() as new:
        figure = new(figsize=(WIDTH, 3.4))
        axes = _axes(figure, "both")
        left = float(found.edges[0])
        width = np.diff(found.edges)
        share = found.counts / found.counts.sum()
        axes.bar(found.edges[:-1], share, width, align="edge", color=QUIET, alpha=0.25, label="share of instances")
        axes.plot([left, 1], [left, 1], color=QUIET, ls="--", lw=1.2, label="as sure as right")
        axes.plot(found.confidence[filled], found.accuracy[filled], "o-", color=MAIN, ms=4.5, label="classifier")
        axes.set_xlim(left, 1.01)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("confidence of the prediction")
        axes.set_ylabel("share that is right")
        figure.tight_layout()
        figure.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncol=3, columnspacing=1.2, handletextpad=0.5)
        svg = inline_svg(figure, "calibration", f"Calibration curve, calibration error {found.error:.3f}")
    text = (
        "Above the dashed line predictions are right more often than they claim; bins of fewer than "
        f"{FEWEST} predictions are left out. Mean distance "
        f"{found.error:.3f}; Brier score {found.brier:.3f}, of the bare class shares {found.brier_baseline:.3f}."
    )
    return Picture(svg, "Calibration", text)


def confusion_matrix(gold: Gold) -> Picture:
    alt = f"Confusion matrix of {gold.labels} labels, {percent(gold.accuracy.value)} right"
    svg = _heat_map(gold.confusion, gold.names, gold.names, "predicted", "true", "confusion", alt)
    text = "Rows: true classes. Columns: predicted classes. Shades are shares of a row, numbers are counts."
    return Picture(svg, "Confusion", text)


def _heat_map(
    table: NDArray[Any], rows: Sequence[str], columns: Sequence[str], across: str, down: str, name: str, alt: str,
    shares: bool = False,
) -> str:  # fmt: skip
    """Shades of one colour by the share of a row, with the numbers where they fit."""
    R, C = table.shape
    weight = table / np.maximum(table.sum(1, keepdims=True), 1e-300)
    side = min(3.7, 1.5 + 0.36 * max(R, C))
    with plotting() as new:
        figure = new(figsize=(min(WIDTH, side + 0.8), side))
        axes = _axes(figure, "")
        for (row, column), share in np.ndenumerate(weight):
            # opacity instead of a colour map, so that empty cells have the page's own colour
            axes.add_patch(
                _rectangle((column - 0.5, row - 0.5), THIRD if row == column and R == C else MAIN, float(share))
            )
            if max(R, C) <= CELLS:
                value = table[row, column]
                text = f"{value:.2f}".removeprefix("0") if shares else f"{int(value)}"
                faint = (value < 0.005) if shares else value == 0
                size = 8.5 if max(R, C) <= 8 else 7
                axes.text(column, row, "" if faint else text, ha="center", va="center", fontsize=size)
        axes.set_xlim(-0.5, C - 0.5)
        axes.set_ylim(R - 0.5, -0.5)
        axes.set_aspect("equal")
        step = max(1, -(-max(R, C) // 25))
        long = max((len(short(text)) for text in columns), default=0) > 2
        axes.set_xticks(range(0, C, step), [short(text) for text in columns[::step]])
        if long:
            axes.tick_params(axis="x", rotation=35)
            for label in axes.get_xticklabels():
                label.set_ha("right")
                label.set_rotation_mode("anchor")
        axes.set_yticks(range(0, R, step), [short(text) for text in rows[::step]])
        axes.tick_params(length=0)
        axes.spines[["top", "right"]].set_visible(True)
        for spine in axes.spines.values():
            spine.set_color(QUIET)
        axes.set_xlabel(across)
        axes.set_ylabel(down)
        figure.tight_layout()
        return inline_svg(figure, name, alt)


def _rectangle(corner: tuple[float, float], colour: str, share: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, facecolor=colour, alpha=0.04 + 0.66 * share, edgecolor="none")
