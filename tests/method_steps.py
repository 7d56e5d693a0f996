"""Steps whose images are their own logits, so that an objective can be looked at without a network."""

import numpy as np
import torch
from torch import Tensor

from fastbus.inference.fixed import Step
from fastbus.training.step_objective import StepInputs

SPARE = 2  # rows that belong to no bag


def step_of(sizes: list[int], empty: int = 1) -> Step:
    """All bags of a set in order, then some places for bags that hold none."""
    held = torch.tensor(sizes)
    none = torch.zeros(empty, dtype=torch.long)
    starts = torch.cat([held.cumsum(0) - held, none])
    rows = torch.cat([torch.arange(int(held.sum())), torch.zeros(SPARE, dtype=torch.long)])
    return Step(rows, torch.cat([torch.arange(len(sizes)), none]), starts, torch.cat([held, none]))


def single_rows(rows: Tensor) -> Step:
    """Single instances, these rows (M,) of the set, and none to spare."""
    return Step(rows, rows, torch.arange(len(rows)), torch.ones(len(rows), dtype=torch.long))


def inputs_of(weak: Tensor, strong: Tensor, step: Step, progress: float = 0.5) -> StepInputs:
    """weak, strong: logits (M, C) of all rows, the spare ones too."""

    def read(x: Tensor) -> Tensor:
        return x.flatten(1)

    images = [x[..., None, None] for x in (weak, strong)]
    real = torch.arange(len(weak)) < int(step.sizes.sum())
    generator = torch.Generator().manual_seed(0)
    return StepInputs(step, real, *images, read, read, read, read, read, generator, torch.tensor(progress))


def random_logits(rows: int, classes: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def softmax(logits: Tensor | np.ndarray) -> np.ndarray:
    """Over the last axis, in float64 and apart from torch."""
    weight = np.exp(np.asarray(logits, dtype=float) - np.asarray(logits, dtype=float).max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def sigmoid(scores: Tensor | np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(scores, dtype=float)))
