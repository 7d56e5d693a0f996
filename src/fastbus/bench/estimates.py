"""Facts that weak labels keep to themselves, estimated: shares of wrong labels, and of positives among unlabelled.

    python -m fastbus.bench.estimates --images DIR [--dataset fashion_mnist] [--only labels] [--seeds 3] [--json]

Images are the official ones, their labels made weak by known rates; the estimators of the product see images and weak
labels alone. MNIST and Fashion-MNIST stand for themselves, CIFAR-10 wants a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastbus.bench.results import circumstances
from fastbus.data.draws import draw_positive_unlabeled
from fastbus.data.images import load_images
from fastbus.supervision.base import Supervision
from fastbus.supervision.imperfect import NoisyLabel
from fastbus.supervision.incomplete import PositiveUnlabeled
from fastbus.training.image_noise import with_known_confusions
from fastbus.training.image_prior import with_known_prior
from fastbus.training.recipes import recipe_for

POSITIVE = {"mnist": (0, 1, 2, 3, 4), "fashion_mnist": (5, 7, 9), "cifar10": (0, 1, 8, 9)}
RATES = (0.3, 0.7)
PRIORS = ((100, 0.4), (500, 0.2), (500, 0.6))  # known positives, share of positives among the unlabelled
NUM_CLASSES = 10

Array = NDArray[Any]
Estimate = dict[str, Any]


def wrong_labels(images: Array, labels: Array, rate: float, seed: int, device: str, flip: bool) -> Estimate:
    """The share of wrong labels, each replaced by one of the other classes."""
    rng = np.random.default_rng([seed, len(labels)])
    others = (labels + rng.integers(1, NUM_CLASSES, len(labels))) % NUM_CLASSES
    said = np.where(rng.random(len(labels)) < rate, others, labels)
    rule, seconds = _estimated(NoisyLabel(), images, said, seed, device, flip)
    assert isinstance(rule, NoisyLabel) and rule.transition is not None
    found = 1 - float(torch.as_tensor(rule.transition).diagonal().mean())
    facts = {
        "what": "wrong labels",
        "known positives": None,
        "images": len(labels),
        "true": float((said != labels).mean()),
    }
    return facts | {"estimated": found, "seed": seed, "seconds": seconds}


def hidden_positives(
    images: Array, positive: Array, known: int, prior: float, unlabelled: int, seed: int, device: str, flip: bool
) -> Estimate:
    """The share of positives among so many unlabelled images, beside so many known ones."""
    drawn = draw_positive_unlabeled(positive, known, unlabelled, prior, seed)
    assert drawn.weak is not None
    rule, seconds = _estimated(PositiveUnlabeled(), images[drawn.rows], drawn.weak, seed, device, flip)
    assert isinstance(rule, PositiveUnlabeled)
    facts = {"what": "hidden positives", "known positives": known, "images": unlabelled, "true": prior}
    return facts | {"estimated": rule.known_prior, "seed": seed, "seconds": seconds}


def _estimated(
    rule: Supervision, images: Array, weak: Array, seed: int, device: str, flip: bool
) -> tuple[Supervision, float]:
    pixels, said = torch.from_numpy(images), torch.from_numpy(weak)
    recipe = recipe_for(rule, num_images=len(said), num_bags=len(said), image_shape=tuple(pixels.shape[1:]))
    options: dict[str, Any] = {"recipe": recipe, "seed": seed, "device": device, "flip": flip}
    start = time.perf_counter()
    rule = with_known_prior(rule, pixels, said, **options)
    rule = with_known_confusions(rule, pixels, said, num_classes=NUM_CLASSES, **options)
    return rule, time.perf_counter() - start


def measure(name: str, folder: Path, number: int, seeds: int, device: str, only: str | None) -> Iterator[Estimate]:
    """All estimates of a data set, or one kind of them, from so many of its images."""
    found = load_images(name, folder, verify=False)
    flip = name == "cifar10"
    for seed in range(seeds):
        rows = np.random.default_rng(seed).permutation(len(found.train_labels))[:number]
        for rate in RATES if only != "positives" else ():
            yield {"data": name} | wrong_labels(
                found.train_images[rows], found.train_labels[rows], rate, seed, device, flip
            )
        positive = np.isin(found.train_labels, POSITIVE[name]).astype(np.int64)
        for known, prior in PRIORS if only != "labels" else ():
            yield {"data": name} | hidden_positives(
                found.train_images, positive, known, prior, number, seed, device, flip
            )


def show(records: list[Estimate]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="what weak labels keep to themselves")
    for column in ("images", "estimated share", "known positives", "seed", "true", "estimated", "off by", "seconds"):
        table.add_column(column, justify="left" if column in ("images", "estimated share") else "right")
    for r in records:
        off = r["estimated"] - r["true"]
        known = "" if r["known positives"] is None else str(r["known positives"])
        figures = (f"{r['true']:.3f}", f"{r['estimated']:.3f}", f"{off:+.3f}", f"{r['seconds']:.0f}")
        table.add_row(f"{r['data']}, {r['images']:,}", r["what"], known, str(r["seed"]), *figures)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of the official image files")
    parser.add_argument("--dataset", nargs="+", default=["mnist", "fashion_mnist"], choices=list(POSITIVE))
    parser.add_argument("--number", type=int, default=10_000, help="images to estimate from (default: 10000)")
    parser.add_argument("--only", choices=["labels", "positives"], help="shares of wrong labels, or hidden positives")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", action="store_true", help="print one JSON line an estimate instead")
    options = parser.parse_args()
    about = circumstances(options.device)
    records = []
    for name in options.dataset:
        for record in measure(name, options.images, options.number, options.seeds, options.device, options.only):
            records.append(record)
            if options.json:
                print(json.dumps(record | about), flush=True)
    if not options.json:
        show(records)


if __name__ == "__main__":
    main()
