"""From images and true labels to the weak labels of a cell: one function a setting, all rates as the paper states them.

Bag sizes are rounded draws of Normal(mean, std), at least 2; instances are drawn without replacement where the set
is large enough (`facts["replaced"]` says where not). What a draw came out as is kept in `facts`, for the record.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastbus.bench.paper.grid import Cell
from fastbus.bench.paper.held_out import Weak, keep_back
from fastbus.bench.paper.sets import SETS, Array, Images, human_labels
from fastbus.data.draws import Grouping, binary_labels, draw_bags, draw_pairs, draw_positive_unlabeled
from fastbus.data.weaken import weaken
from fastbus.errors import InputError
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision
from fastbus.supervision.imperfect import NoisyLabel, PartialLabel
from fastbus.supervision.incomplete import PositiveUnlabeled, SemiSupervised
from fastbus.supervision.pairwise import ConfidenceDifference, PairComparison, PairSimilarity, SimilarityConfidence

SCORED = ("similarity_confidence", "confidence_difference")  # settings whose weak labels are a scorer's
PAIRED = ("pair_comparison", "pair_similarity", *SCORED)
BINARY = (*PAIRED, "positive_unlabeled")
WHOLE = ("partial_label", "noisy_label", "semi_supervised")  # settings of single images, all of a set or some


class Task(NamedTuple):
    """What a run trains on, what it is watched by, and what it is tested on."""

    supervision: Supervision
    train: Weak
    held_out: Weak | None  # weak labels kept back; none of their images trains
    labels: Array  # true classes of all training images: the ceiling and the facts need them
    num_classes: int
    facts: dict[str, Any]


class Source(NamedTuple):
    """What a draw may look at."""

    images: Images
    scores: Array | None  # P(positive) of each training image under the scorer, NaN where it was trained on
    tables: Path  # folder of the labels of people


def is_binary(cell: Cell) -> bool:
    return cell.setting in BINARY or "positives" in cell.draw


def true_labels(cell: Cell, labels: Array) -> Array:
    """Class indices, or 0/1 where the cell asks of a positive and a negative class."""
    if not is_binary(cell):
        return np.asarray(labels, dtype=np.int64)
    return binary_labels(labels, cell.draw.get("positives", SETS[cell.data].positives))


def num_classes(cell: Cell) -> int:
    return 2 if is_binary(cell) else SETS[cell.data].num_classes


def expected_size(cell: Cell) -> tuple[int, int]:
    """Images and bags of a cell, as its recipe is chosen by before anything is drawn."""
    draw = cell.draw
    if "bags" in draw:
        return round(draw["bags"] * draw["mean"]), draw["bags"]
    if "pairs" in draw:
        return 2 * draw["pairs"], draw["pairs"]
    number = min(draw.get("images", SETS[cell.data].num_train), SETS[cell.data].num_train)
    return number, number


def supervision_of(cell: Cell) -> Supervision:
    """The statement its weak labels make. The share of noise is not told; that of positives is."""
    if cell.setting == "positive_unlabeled":
        return PositiveUnlabeled(_prior(cell))
    return _KINDS[cell.setting]()


def draw_task(cell: Cell, source: Source, seed: int, held_out: float = 0.0) -> Task:
    """The weak labels of a seed. `held_out`: the share of the cell's own weak labels that is kept back."""
    rng = np.random.default_rng([seed, zlib.crc32(cell.title.encode())])
    labels = true_labels(cell, source.images.train_labels)
    rule = supervision_of(cell)
    weak, facts = _MAKERS[cell.setting](cell, rule, labels, source, rng)
    facts |= {"images": len(weak.rows), "bags": len(weak.sizes)}
    told = weak.weak >= 0 if cell.setting == "semi_supervised" else None
    train, kept = keep_back(weak, held_out, rng, told)
    return Task(rule, train, kept, labels, num_classes(cell), facts)


def gold_task(task: Task) -> Task:
    """The same images with their true labels, one candidate each: the ceiling of the cell."""
    rows = task.train.rows
    gold = np.eye(task.num_classes, dtype=np.int64)[task.labels[rows]]
    return task._replace(
        supervision=PartialLabel(), train=Weak(rows, np.ones(len(rows), dtype=np.int64), gold), held_out=None
    )


def ceiling_cell(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """The first cell of the setting with the same training images, or as many random ones: one ceiling serves all."""
    if cell.setting not in WHOLE:
        return cell
    official, number = SETS[cell.data].official, expected_size(cell)
    same = (
        other
        for other in cells
        if other.setting == cell.setting and SETS[other.data].official == official and expected_size(other) == number
    )
    return next(same, cell)


def takes_all(cell: Cell) -> bool:
    """Whether every image of the set trains."""
    return cell.setting in WHOLE and cell.draw.get("images", math.inf) >= SETS[cell.data].num_train


# -- settings -------------------------------------------------------------------------------------

Made = tuple[Weak, dict[str, Any]]


def _bags(cell: Cell, rule: Supervision, labels: Array, source: Source, rng: np.random.Generator) -> Made:
    drawn = draw_bags(len(labels), cell.draw["bags"], cell.draw["mean"], cell.draw["std"], rng)
    weak = np.asarray(weaken(rule, labels[drawn.rows], drawn.sizes, num_classes=num_classes(cell)))
    facts = {
        "mean size": float(drawn.sizes.mean()),
        "mean weak label": float(weak.mean()),
        "replaced": drawn.replaced,
    }
    return Weak(drawn.rows, drawn.sizes, weak), facts


def _pairs(cell: Cell, rule: Supervision, labels: Array, source: Source, rng: np.random.Generator) -> Made:
    kind: Any = "comparison" if cell.setting == "pair_comparison" else "similarity"
    pool = np.arange(len(labels))
    if cell.setting in SCORED:
        pool = np.flatnonzero(~np.isnan(_scores(cell, source)))
    drawn = draw_pairs(labels[pool], cell.draw["pairs"], rng, kind=kind, prior=cell.draw["prior"])
    rows = pool[drawn.rows]
    pairs = labels[rows].reshape(-1, 2)
    facts = {
        "share of positives": float(pairs.mean()),
        "share of similar pairs": float((pairs[:, 0] == pairs[:, 1]).mean()),
        "replaced": drawn.replaced,
    }
    return Weak(rows, drawn.sizes, _pair_labels(cell, rule, labels, rows, drawn, source)), facts


def _pair_labels(cell: Cell, rule: Supervision, labels: Array, rows: Array, drawn: Grouping, source: Source) -> Array:
    if cell.setting not in SCORED:
        assert drawn.weak is not None
        return drawn.weak
    positive = at_prior(_scores(cell, source)[rows].astype(np.float64), SETS[cell.data].prior, cell.draw["prior"])
    chances = np.stack([1 - positive, positive], axis=1)
    return np.asarray(weaken(rule, labels[rows], drawn.sizes, probabilities=chances), dtype=np.float32)


def at_prior(positive: Array, scored: float, drawn: float) -> Array:
    """P(positive) of a scorer whose images hold the share `scored` of positives, where the share `drawn` does."""
    odds = drawn * (1 - scored) / (scored * (1 - drawn))
    return np.asarray(odds * positive / (1 - positive + odds * positive))


def _partial(cell: Cell, rule: Supervision, labels: Array, source: Source, rng: np.random.Generator) -> Made:
    rows = _some(cell, labels, rng)
    sets = np.asarray(weaken(rule, labels[rows], rng=rng, ratio=cell.draw["ratio"], num_classes=num_classes(cell)))
    wrong = (sets.sum() - len(rows)) / (len(rows) * (num_classes(cell) - 1))
    return _alone(rows, sets), {"share of wrong candidates": float(wrong), "mean candidates": float(sets.sum(1).mean())}


def _noisy(cell: Cell, rule: Supervision, labels: Array, source: Source, rng: np.random.Generator) -> Made:
    rows = _some(cell, labels, rng)
    if "human" in cell.draw:
        told = human_labels(source.tables, cell.draw["human"])
        if len(told) != len(labels):
            raise InputError(f"{len(told)} labels of people; expected {len(labels)}, one an image. Check the file.")
        told = told[rows]
    else:
        told = np.asarray(weaken(rule, labels[rows], rng=rng, rate=cell.draw["ratio"], num_classes=num_classes(cell)))
    return _alone(rows, told), {"share of wrong labels": float((told != labels[rows]).mean())}


def _positive_unlabeled(cell: Cell, rule: Supervision, labels: Array, source: Source, rng: np.random.Generator) -> Made:
    """All images that keep the prior: what is left of the positives, or of the negatives, runs out first."""
    known, prior = cell.draw["labelled"], _prior(cell)
    rows = _some(cell, labels, rng)
    positives = int(labels[rows].sum()) - known
    negatives = len(rows) - known - positives
    unlabelled = math.floor(min(positives / prior, negatives / (1 - prior)))
    drawn = draw_positive_unlabeled(labels[rows], known, unlabelled, prior, rng)
    assert drawn.weak is not None
    chosen = rows[drawn.rows]
    hidden = labels[chosen][drawn.weak == -1]
    facts = {"labelled": known, "stated prior": prior, "share of positives among unlabelled": float(hidden.mean())}
    return _alone(chosen, drawn.weak), facts


def _semi_supervised(cell: Cell, rule: Supervision, labels: Array, source: Source, rng: np.random.Generator) -> Made:
    rows = _some(cell, labels, rng)
    told = np.asarray(
        weaken(rule, labels[rows], rng=rng, labelled=cell.draw["labelled"], num_classes=num_classes(cell))
    )
    counts = np.bincount(told[told >= 0], minlength=num_classes(cell))
    return _alone(rows, told), {
        "labelled": int(counts.sum()),
        "labelled of a class": [int(counts.min()), int(counts.max())],
    }


_KINDS: dict[str, Callable[[], Supervision]] = {
    "multi_instance": MultiInstance,
    "label_proportion": LabelProportion,
    "pair_comparison": PairComparison,
    "pair_similarity": PairSimilarity,
    "similarity_confidence": SimilarityConfidence,
    "confidence_difference": ConfidenceDifference,
    "partial_label": PartialLabel,
    "noisy_label": NoisyLabel,
    "semi_supervised": SemiSupervised,
}
_MAKERS: dict[str, Callable[[Cell, Supervision, Array, Source, np.random.Generator], Made]] = {
    "multi_instance": _bags,
    "label_proportion": _bags,
    **dict.fromkeys(PAIRED, _pairs),
    "partial_label": _partial,
    "noisy_label": _noisy,
    "positive_unlabeled": _positive_unlabeled,
    "semi_supervised": _semi_supervised,
}


# -- pieces ---------------------------------------------------------------------------------------


def _prior(cell: Cell) -> float:
    return float(cell.draw.get("prior", SETS[cell.data].prior))


def _scores(cell: Cell, source: Source) -> Array:
    if source.scores is None:
        raise InputError(f"{cell.title}: no scores; expected those of a scorer. Train it first.")
    return source.scores


def _some(cell: Cell, labels: Array, rng: np.random.Generator) -> Array:
    """As many random images as the cell says, all of them if it does not."""
    number = cell.draw.get("images", len(labels))
    return rng.permutation(len(labels))[:number] if number < len(labels) else np.arange(len(labels))


def _alone(rows: Array, weak: Array) -> Weak:
    return Weak(rows, np.ones(len(rows), dtype=np.int64), weak)
