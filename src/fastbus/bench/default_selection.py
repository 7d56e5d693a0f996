"""How defaults of `WeakClassifier` were chosen: `python -m fastbus.bench.default_selection`.

Real tables, a fifth of the rows kept apart before weak labels are made, and every option but those compared left at its
default, the number of steps among them. The score is the mean log P(w | x) of the bags kept apart: no true label is
read after the weak labels are made.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.data.draws import binary_labels, draw_pairs
from fastbus.data.weaken import weaken

Array = NDArray[Any]
HELD_OUT = 0.2
BAG = 5
OPTIONS: dict[str, tuple[float, ...]] = {"weight_decay": (1e-3, 1e-2), "dropout": (0.2, 0.5)}
CASES = {
    "weight_decay": [
        (kind, table) for kind in ("label_proportion", "multi_instance") for table in ("digits", "wine", "cancer")
    ],
    "dropout": [
        ("complementary_label", "digits"),
        ("pair_comparison", "digits"),
        ("complementary_label", "wine"),
        ("pair_comparison", "cancer"),
    ],
}
"""Where each option is compared: a table of two classes has no complementary labels worth the name."""


class Part(NamedTuple):
    rows: Array  # (M, F)
    weak: Any
    bags: Array | None  # (M,)


def table(name: str) -> tuple[Array, Array]:
    """Rows and classes of a table that comes with scikit-learn."""
    from sklearn import datasets

    load = {"digits": datasets.load_digits, "wine": datasets.load_wine, "cancer": datasets.load_breast_cancer}[name]
    rows, labels = load(return_X_y=True)
    return rows, labels


def weak_part(kind: str, rows: Array, labels: Array, rng: np.random.Generator) -> Part:
    """These rows with weak labels; the larger half of the classes is the positive one of comparisons."""
    classes = int(labels.max()) + 1
    if kind == "pair_comparison":
        positive = binary_labels(labels, tuple(range(classes // 2, classes)))
        drawn = draw_pairs(positive, len(rows) // 2, rng, kind="comparison")
        return Part(rows[drawn.rows], drawn.weak, drawn.bags)
    if kind == "complementary_label":
        return Part(rows, weaken(kind, labels, rng=rng, num_classes=classes), None)
    bags = np.arange(len(rows)) // BAG
    return Part(rows, weaken(kind, labels, bags, num_classes=classes), bags)


def score(kind: str, name: str, seed: int, **options: float) -> float:
    """Mean log P(w | x) of the bags kept apart."""
    from fastbus.learner import WeakClassifier

    rng = np.random.default_rng(seed)
    rows, labels = table(name)
    order = rng.permutation(len(rows))
    cut = round(HELD_OUT * len(rows))
    held, training = (weak_part(kind, rows[part], labels[part], rng) for part in (order[:cut], order[cut:]))
    classes = 2 if kind == "pair_comparison" else int(labels.max()) + 1
    classifier = WeakClassifier(kind, n_classes=classes, random_state=seed, **options)  # type: ignore[arg-type]
    classifier.fit(training.rows, training.weak, bags=training.bags)
    return float(classifier.weak_log_likelihood(held.rows, held.weak, held.bags))


def compare(option: str, seeds: int, show: Callable[[str], None]) -> Array:
    """Scores (values, seeds, cases) of one option."""
    values, cases = OPTIONS[option], CASES[option]
    scores = np.zeros((len(values), seeds, len(cases)))
    for seed in range(seeds):
        for column, (kind, name) in enumerate(cases):
            for row, value in enumerate(values):
                scores[row, seed, column] = score(kind, name, seed, **{option: value})
            first, second = scores[:, seed, column]
            show(f"seed {seed}  {kind:20} {name:8} {option} {values[0]:g}: {first:.4f}  {values[1]:g}: {second:.4f}")
    for column, (kind, name) in enumerate(cases):
        gains = scores[1, :, column] - scores[0, :, column]
        gain = f"{gains.mean():+.4f} ({gains.min():+.4f} to {gains.max():+.4f})"
        show(f"{kind:20} {name:8} gain of {option} {values[1]:g}: {gain}")
    return scores


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="splits and first weights (default: 3)")
    parser.add_argument("--only", choices=list(OPTIONS), help="this option alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for option in OPTIONS if asked.only is None else [asked.only]:
        compare(option, asked.seeds, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
