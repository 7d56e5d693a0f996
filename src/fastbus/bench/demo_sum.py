"""A training loop of one's own on `WeakLoss`, for the kind that is a sum over differently grouped bags.

Pairs and the unlabelled set are grouped differently, so a step takes a batch of pairs and a draw of the set, as the
tuple that the supervision names. Network, optimiser, schedule and steps are those of `WeakClassifier`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.bench.demo_kinds import Array, Task
from fastbus.inference.infer import infer
from fastbus.objective import WeakLoss

PAIRS_PER_STEP = 64
UNLABELLED_PER_STEP = 128
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class SumClassifier:
    """A network with the scale of the images it was trained on."""

    network: nn.Module
    mean: Array
    spread: Array

    def scaled(self, images: Array) -> Tensor:
        return torch.from_numpy((images - self.mean) / self.spread).float()

    @torch.no_grad()
    def logits(self, images: Array) -> Tensor:
        logits: Tensor = self.network.eval()(self.scaled(images))
        return logits.double()

    def predict(self, images: Array) -> Array:
        return np.asarray(self.logits(images).argmax(-1).numpy())

    def predict_proba(self, images: Array) -> Array:
        return np.asarray(self.logits(images).softmax(-1).numpy())

    def likelihood(self, task: Task, images: Array) -> float:
        """Mean log P(w | x) of a pair; an unlabelled image has no weak label to be predicted."""
        similar, _ = (torch.as_tensor(weak) for weak in task.weak)
        pairs, _ = task.supervision.terms  # type: ignore[attr-defined]
        of_pairs, _ = _in_groups(self.logits(images[task.rows]), len(similar))
        return float(infer(pairs, of_pairs, similar).log_likelihood.mean())


def _in_groups(rows: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Pairs (P, 2, C), and the rows after them as one bag (1, K, C)."""
    return rows[: 2 * pairs].reshape(pairs, 2, -1), rows[2 * pairs :][None]


def fit_sum(
    task: Task, network: nn.Module, images: Array, epochs: int, weight_decay: float, seed: int
) -> SumClassifier:
    """Train on pairs and an unlabelled set."""
    seen = images[task.rows]
    spread = seen.std(0)
    classifier = SumClassifier(network, seen.mean(0), np.where(spread > 0, spread, 1))
    with torch.random.fork_rng(devices=[]):  # dropout draws from the global random numbers
        torch.manual_seed(seed)
        _train(classifier, task, classifier.scaled(seen), epochs, weight_decay, seed)
    return classifier


def _train(classifier: SumClassifier, task: Task, inputs: Tensor, epochs: int, weight_decay: float, seed: int) -> None:
    network, loss = classifier.network, WeakLoss(task.supervision)
    similar, _ = (torch.as_tensor(weak) for weak in task.weak)
    cut = 2 * len(similar)
    pairs, unlabelled = inputs[:cut].reshape(len(similar), 2, -1), inputs[cut:]
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=weight_decay)
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
        value = loss(_in_groups(logits, len(rows)), (similar[rows], torch.zeros(1, dtype=torch.long)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def _batches(count: int, size: int, steps: int, generator: torch.Generator) -> list[Tensor]:
    """So many batches of that size, pass after pass in a new order."""
    batches: list[Tensor] = []
    while len(batches) < steps:
        batches.extend(torch.randperm(count, generator=generator).split(size))
    return batches[:steps]
