"""A training loop of one's own on `WeakLoss`, for the kind that is a sum over differently grouped bags.

Pairs and the unlabelled set are grouped differently, so a step takes a batch of pairs and a draw of the set, as the
tuple that the supervision names. Network, optimiser, schedule and steps are those of `WeakClassifier`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.bench.demo_kinds import Array, Task
from fastbus.objective import WeakLoss

PAIRS_PER_STEP = 64
UNLABELLED_PER_STEP = 128
LEARNING_RATE = 3e-3
WEIGHT_DECAY = 1e-3


def fit_sum(task: Task, network: nn.Module, images: Array, epochs: int, seed: int) -> Callable[[Array], Array]:
    """Train on pairs and an unlabelled set, and return what predicts the classes of images."""
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global random numbers
        torch.manual_seed(seed)
        return _fit(task, network, images, epochs, seed)


def _fit(task: Task, network: nn.Module, images: Array, epochs: int, seed: int) -> Callable[[Array], Array]:
    similar, _ = (torch.as_tensor(weak) for weak in task.weak)
    mean, spread = images[task.rows].mean(0), images[task.rows].std(0)
    spread = np.where(spread > 0, spread, 1)

    def scaled(pixels: Array) -> Tensor:
        return torch.from_numpy((pixels - mean) / spread).float()

    inputs = scaled(images[task.rows])
    cut = 2 * len(similar)
    pairs, unlabelled = inputs[:cut].reshape(len(similar), 2, -1), inputs[cut:]
    loss = WeakLoss(task.supervision)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    order = torch.Generator().manual_seed(seed)
    steps = epochs * math.ceil(len(inputs) / (2 * PAIRS_PER_STEP + UNLABELLED_PER_STEP))
    batches = zip(
        _batches(len(pairs), PAIRS_PER_STEP, steps, order),
        _batches(len(unlabelled), UNLABELLED_PER_STEP, steps, order),
        strict=True,
    )
    for step, (rows, draw) in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        logits = network(torch.cat([pairs[rows].flatten(0, 1), unlabelled[draw]]))
        of_pairs = logits[: 2 * len(rows)].reshape(len(rows), 2, -1)
        of_set = logits[2 * len(rows) :][None]  # one bag, (1, K, C)
        value = loss((of_pairs, of_set), (similar[rows], torch.zeros(1, dtype=torch.long)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    def predict(pixels: Array) -> Array:
        with torch.no_grad():
            return np.asarray(network.eval()(scaled(pixels)).argmax(-1).numpy())

    return predict


def _batches(count: int, size: int, steps: int, generator: torch.Generator) -> list[Tensor]:
    """So many batches of that size, pass after pass in a new order."""
    batches: list[Tensor] = []
    while len(batches) < steps:
        batches.extend(torch.randperm(count, generator=generator).split(size))
    return batches[:steps]
