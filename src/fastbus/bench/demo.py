"""The demonstration: learn to read digits from label proportions alone.

scikit-learn's digits (real scans, shipped with the package) are cut into bags, and for each bag
only the number of times each class occurs is kept. A small network is trained on that with
`WeakLoss` and scored on unseen single images, beside a majority guess and the same network trained
on the true labels.

Shapes: images (B, K, D) in bags, labels (B, K), counts (B, C), test images (N, D).
"""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbus.errors import InputError
from fastbus.objective import WeakLoss

if TYPE_CHECKING:
    from rich.table import Table

NUM_CLASSES = 10
TEST_FRACTION = 0.25
HIDDEN = 128
BAGS_PER_STEP = 8
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-4

Objective = Callable[[Tensor, Tensor], Tensor]
"""From logits (b, K, C) and the indices (b,) of their bags to a scalar loss."""
Progress = Callable[[str, int, int], None]
"""Told the name of the training, the epochs done and the epochs in all."""


class BaggedDigits(NamedTuple):
    """Digits cut into bags; `counts` is all that weakly supervised training may see of `labels`."""

    images: Tensor  # (B, K, D)
    labels: Tensor  # (B, K)
    counts: Tensor  # (B, C)
    test_images: Tensor  # (N, D)
    test_labels: Tensor  # (N,)


class Score(NamedTuple):
    """One row of the outcome: who learned from what, and how well it reads unseen digits."""

    name: str
    supervision: str
    accuracy: float
    seconds: float


class DemoResult(NamedTuple):
    """Outcome of the demonstration, with the settings that produced it."""

    majority: Score
    weak: Score
    supervised: Score
    bags: int
    bag_size: int
    test_images: int
    epochs: int
    seed: int

    @property
    def scores(self) -> tuple[Score, Score, Score]:
        """The rows in the order in which they are shown."""
        return self.majority, self.weak, self.supervised


def bagged_digits(bags: int, bag_size: int, seed: int) -> BaggedDigits:
    """Split the digits into training bags and single test images, standardised by the former."""
    # Imported here because loading scikit-learn takes longer than everything else in this module.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    for name, value in (("bags", bags), ("bag_size", bag_size)):
        if value < 1:
            raise InputError(f"{name}={value}; expected at least 1")
    pixels, classes = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(classes)), test_size=TEST_FRACTION, stratify=classes, random_state=seed
    )
    if bags * bag_size > len(train):
        raise InputError(
            f"{bags} bags of {bag_size} need {bags * bag_size} images; expected at most "
            f"{len(train)}, the training images there are. Ask for fewer or smaller bags"
        )
    chosen = np.random.default_rng(seed).permutation(train)[: bags * bag_size]
    spread = pixels[chosen].std(axis=0)
    # Pixels that never change, such as the corners, have no spread to divide by.
    standardised = (pixels - pixels[chosen].mean(axis=0)) / np.where(spread > 0, spread, 1)

    images = torch.from_numpy(standardised).float()  # (N, D)
    labels = torch.from_numpy(classes).long()  # (N,)
    bagged = torch.from_numpy(chosen).view(bags, bag_size)
    return BaggedDigits(
        images=images[bagged],
        labels=labels[bagged],
        counts=F.one_hot(labels[bagged], NUM_CLASSES).sum(dim=1),
        test_images=images[test],
        test_labels=labels[test],
    )


def train(images: Tensor, objective: Objective, epochs: int, seed: int, on_epoch: Callable[[int], None]) -> nn.Module:
    """Train the digit network on `images` (B, K, D) and return it; the global generator is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(images.shape[-1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, NUM_CLASSES))
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for epoch in range(epochs):
        for rows in torch.randperm(len(images), generator=order).split(BAGS_PER_STEP):
            loss = objective(network(images[rows]), rows)  # logits (b, K, C)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        on_epoch(epoch + 1)
    return network.eval()


def run_demo(
    bags: int = 120,
    bag_size: int = 10,
    epochs: int = 40,
    seed: int = 0,
    progress: Progress | None = None,
) -> DemoResult:
    """Train on label proportions and on true labels, and score both on unseen images.

    Both trainings share the network, its first weights, the images, their order and the number of
    steps, so the gap between them is what the weak labels cost.
    """
    if epochs < 1:
        raise InputError(f"epochs={epochs}; expected at least 1")
    digits = bagged_digits(bags, bag_size, seed)
    weak_loss = WeakLoss("label_proportion", head="softmax")

    def from_counts(logits: Tensor, rows: Tensor) -> Tensor:
        loss: Tensor = weak_loss(logits, digits.counts[rows])
        return loss

    def from_labels(logits: Tensor, rows: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), digits.labels[rows].flatten())

    def score(name: str, supervision: str, objective: Objective) -> Score:
        def on_epoch(done: int) -> None:
            if progress is not None:
                progress(name, done, epochs)

        start = time.perf_counter()
        network = train(digits.images, objective, epochs, seed, on_epoch)
        seconds = time.perf_counter() - start
        with torch.no_grad():
            predicted = network(digits.test_images).argmax(dim=-1)
        return Score(name, supervision, _accuracy(predicted, digits.test_labels), seconds)

    # The counts alone tell which class is the most frequent one.
    most_frequent = digits.counts.sum(dim=0).argmax().expand_as(digits.test_labels)
    chance = _accuracy(most_frequent, digits.test_labels)
    counts = f"class counts of {bags} bags"
    return DemoResult(
        majority=Score("majority class", counts, chance, 0.0),
        weak=score("FastBUS", counts, from_counts),
        supervised=score("fully supervised", f"{bags * bag_size} true labels", from_labels),
        bags=bags,
        bag_size=bag_size,
        test_images=len(digits.test_labels),
        epochs=epochs,
        seed=seed,
    )


def _accuracy(predicted: Tensor, labels: Tensor) -> float:
    return (predicted == labels).double().mean().item()


def as_table(result: DemoResult) -> "Table":
    """The outcome as a table for the terminal."""
    from rich.table import Table

    table = Table(
        title=f"Digits from label proportions: {result.bags} bags of {result.bag_size}",
        caption=f"accuracy on {result.test_images} unseen single images, {result.epochs} epochs, seed {result.seed}",
    )
    table.add_column("method")
    table.add_column("learned from")
    table.add_column("test accuracy", justify="right")
    table.add_column("seconds", justify="right")
    for row in result.scores:
        table.add_row(
            row.name,
            row.supervision,
            f"{row.accuracy:.1%}",
            f"{row.seconds:.1f}",
            style="bold" if row is result.weak else None,
        )
    return table


def as_json(result: DemoResult) -> str:
    """The outcome as one JSON object."""
    settings = {name: value for name, value in result._asdict().items() if not isinstance(value, Score)}
    scores = [row._asdict() for row in result.scores]
    return json.dumps({**settings, "scores": scores}, indent=2)


def show_demo(bags: int, bag_size: int, epochs: int, seed: int, json_output: bool) -> None:
    """Run the demonstration with a progress bar and print the outcome."""
    from rich.console import Console
    from rich.progress import Progress as ProgressBar
    from rich.progress import TaskID

    # The bar goes to stderr, so that stdout carries the outcome and nothing else.
    stderr = Console(stderr=True)
    with ProgressBar(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"training: {name}", total=total)
            bar.update(tasks[name], completed=done)

        result = run_demo(bags, bag_size, epochs, seed, progress)
    if json_output:
        print(as_json(result))
    else:
        Console().print(as_table(result))
