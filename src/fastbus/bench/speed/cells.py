"""The cells of the benchmark and their inputs: which weak labels, how many bags, instances and classes.

Predictions come from a seeded generator; true labels are drawn from the predictions and weakened, so that every
weak label is possible and none is a surprise.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fastbus.inference.infer import Head
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision
from fastbus.supervision.pairwise import (
    ConfidenceDifference,
    PairComparison,
    PairSimilarity,
    SimilarityConfidence,
)

RULES: dict[str, type[Supervision]] = {
    "label_proportion": LabelProportion,
    "multi_instance": MultiInstance,
    "pair_comparison": PairComparison,
    "pair_similarity": PairSimilarity,
    "similarity_confidence": SimilarityConfidence,
    "confidence_difference": ConfidenceDifference,
}
PAIRS = tuple(RULES)[2:]
CIFAR_SIZES = (
    ("multi_instance", 8, 1.0),
    ("multi_instance", 5, 1.0),
    ("label_proportion", 10, 2.0),
    ("label_proportion", 12, 2.0),
)
LEVEL, SCALE = -1.0, 1.0  # of the logits under a sigmoid head: probabilities around .3


@dataclass(frozen=True)
class Cell:
    """One row of the table. Bag sizes are K, or with `std` draws of Normal(K, std)."""

    group: str
    kind: str
    B: int
    K: int
    C: int
    head: Head
    std: float = 0.0
    cuda_only: bool = False

    @property
    def name(self) -> str:
        kind = "" if self.kind == self.group else f"{self.kind}-"
        return f"{self.group}/{kind}B{self.B}-K{self.K}-C{self.C}" + ("-ragged" if self.std else "")


class Inputs(NamedTuple):
    """The arguments of `infer` and what the kernels below it take."""

    cell: Cell
    rule: Supervision
    logits: Tensor  # (B, K, C), K the longest bag
    weak: Tensor  # (B, C), for pairs (B,)
    sizes: Tensor  # (B,)
    mask: Tensor | None  # (B, K), None where all bags have the same size


def grid() -> list[Cell]:
    """All cells, in the order of the table."""
    cells = []
    for kind in ("label_proportion", "multi_instance"):
        cells += [Cell(kind, kind, B, K, C, "sigmoid") for C in (10, 100) for K in (5, 10, 20, 50) for B in (4, 8, 16)]
        cells += [Cell(kind, kind, 16, K, C, "sigmoid", std=K / 5) for K, C in ((10, 10), (20, 100))]
        if kind == "label_proportion":
            cells.append(Cell(kind, kind, 1024, 100, 100, "sigmoid", cuda_only=True))
    cells += [Cell("pairs", kind, B, 2, 2, "softmax") for kind in PAIRS for B in (64, 1024)]
    cells += [Cell("lattice", kind, B, K, 10, "softmax", std) for kind, K, std in CIFAR_SIZES for B in (4, 8, 16)]
    return cells


QUICK = (
    "label_proportion/B4-K5-C10",
    "label_proportion/B4-K20-C10",
    "label_proportion/B4-K20-C100",
    "label_proportion/B16-K10-C10-ragged",
    "multi_instance/B4-K5-C10",
    "multi_instance/B4-K20-C100",
    "pairs/pair_comparison-B64-K2-C2",
    "pairs/confidence_difference-B64-K2-C2",
    "lattice/multi_instance-B4-K8-C10-ragged",
    "lattice/label_proportion-B4-K10-C10-ragged",
)


def make_inputs(cell: Cell, device: str = "cpu", seed: int = 0) -> Inputs:
    """The same numbers for the same cell and seed, on any device."""
    # torch's generator hears 32 bits of a seed
    generator = torch.Generator().manual_seed(zlib.crc32(f"{cell.name} {seed}".encode()))
    sizes = torch.full((cell.B,), cell.K)
    if cell.std:
        drawn = cell.K + cell.std * torch.randn(cell.B, generator=generator)
        sizes = drawn.round().long().clamp(min=2)
    longest = int(sizes.max())
    level, scale = (LEVEL, SCALE) if cell.head == "sigmoid" else (0.0, 2.0)
    logits = level + scale * torch.randn(cell.B, longest, cell.C, generator=generator)
    real = torch.arange(longest) < sizes[:, None]
    weak = _weaken(cell, logits, real, generator)
    rule = RULES[cell.kind]()
    mask = real.to(device) if cell.std else None
    return Inputs(cell, rule, logits.to(device), weak.to(device), sizes.to(device), mask)


def _weaken(cell: Cell, logits: Tensor, real: Tensor, generator: torch.Generator) -> Tensor:
    if cell.group == "pairs":
        return _weak_of_pairs(cell.kind, logits, generator)
    if cell.head == "sigmoid":
        truth = torch.rand(logits.shape, generator=generator) < torch.sigmoid(logits)
    else:
        chosen = torch.softmax(logits, -1).flatten(0, 1).multinomial(1, generator=generator)
        truth = torch.nn.functional.one_hot(chosen[:, 0], cell.C).reshape(logits.shape) > 0
    counts = (truth & real[..., None]).sum(1)
    return counts if cell.kind == "label_proportion" else (counts > 0).long()


def _weak_of_pairs(kind: str, logits: Tensor, generator: torch.Generator) -> Tensor:
    p = torch.softmax(logits, -1)[..., 1]  # (B, 2)
    first, second = (torch.rand(p.shape, generator=generator) < p).unbind(1)
    if kind == "similarity_confidence":
        return p[:, 0] * p[:, 1] + (1 - p[:, 0]) * (1 - p[:, 1])
    if kind == "confidence_difference":
        return 0.9 * (second.float() - first.float())
    if kind == "pair_similarity":
        return (first == second).long()
    tie = torch.rand(len(p), generator=generator) < 0.5
    return torch.where(first == second, tie, first).long()
