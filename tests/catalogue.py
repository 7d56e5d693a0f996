"""Every row of the catalogue with its variants, and random feasible batches of each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import fastbus
from fastbus import (
    ComplementaryLabel,
    ConfidenceDifference,
    CrowdLabel,
    LabelProportion,
    MultiInstance,
    NoisyLabel,
    PairComparison,
    PairSimilarity,
    PartialLabel,
    PositiveConfidence,
    PositiveUnlabeled,
    SemiSupervised,
    SimilarityConfidence,
    Supervision,
    UnlabeledUnlabeled,
)
from fastbus.bench.own_rules import AtLeast, LastPositive, SumModulo, majority
from fastbus.testing_examples import example_weak

CONFUSION = torch.tensor([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.1, 0.25, 0.65]], dtype=torch.float64)
NEVER = torch.tensor([[0.9, 0.1, 0.0], [0.0, 0.7, 0.3], [0.2, 0.0, 0.8]], dtype=torch.float64)
CROWD = torch.stack([CONFUSION, CONFUSION.roll((1, 1), (0, 1)), CONFUSION.roll((2, 2), (0, 1))])
COUNT_NOISE = {-1: 0.1, 0: 0.7, 1: 0.2}
FLIPS = (0.1, 0.2)


@dataclass(frozen=True)
class Case:
    """A supervision with a head, a number of classes and the size of the largest bag."""

    supervision: Supervision
    head: str
    classes: int
    K: int
    binary: bool = False  # two softmax classes with one weak label (B,) about the second
    weak_labels: tuple[int, ...] | None = None  # where the rule does not tell them

    @property
    def ragged(self) -> bool:
        """Whether bags of several sizes make sense."""
        return self.K > 1 and self.supervision.bag_size is None


@dataclass(frozen=True)
class Batch:
    """float64 logits (B, K, C), weak labels that some labelling satisfies, and the mask (B, K)."""

    logits: torch.Tensor
    weak: Any
    mask: torch.Tensor


def _sum_of_pair(labels: tuple[int, ...]) -> int:
    return sum(labels)


def _rows() -> dict[str, Case]:
    rows: dict[str, Case] = {}

    def everywhere(name: str, supervision: Supervision, K: int) -> None:
        """Rules that read one class at a time serve every head."""
        rows[f"{name}-sigmoid1"] = Case(supervision, "sigmoid", 1, K)
        rows[f"{name}-sigmoid2"] = Case(supervision, "sigmoid", 2, K)
        rows[f"{name}-softmax2"] = Case(supervision, "softmax", 2, K)
        rows[f"{name}-softmax3"] = Case(supervision, "softmax", 3, K)
        rows[f"{name}-binary"] = Case(supervision, "softmax", 2, K, binary=True)

    def two_valued(name: str, supervision: Supervision, K: int) -> None:
        rows[f"{name}-sigmoid1"] = Case(supervision, "sigmoid", 1, K)
        rows[f"{name}-softmax2"] = Case(supervision, "softmax", 2, K)

    def single_label(name: str, supervision: Supervision, K: int, classes: int = 3) -> None:
        rows[f"{name}-softmax{classes}"] = Case(supervision, "softmax", classes, K)

    everywhere("multi_instance", MultiInstance(), 3)
    everywhere("multi_instance-noise", MultiInstance(noise=FLIPS), 3)
    everywhere("label_proportion", LabelProportion(), 3)
    everywhere("label_proportion-noise", LabelProportion(noise=COUNT_NOISE), 3)
    everywhere("label_proportion-fraction", LabelProportion(unit="fraction"), 3)
    everywhere("label_proportion-interval", LabelProportion("interval"), 3)
    everywhere("label_proportion-interval-fraction", LabelProportion("interval", unit="fraction"), 3)
    everywhere("label_proportion-soft", LabelProportion("soft"), 3)
    everywhere("label_proportion-virtual", LabelProportion("soft", soft="virtual"), 3)
    for pairs in ("sorted", "labelled"):
        two_valued(f"pair_comparison-{pairs}", PairComparison(pairs=pairs), 2)
        two_valued(f"pair_comparison-{pairs}-noise", PairComparison(pairs=pairs, noise=FLIPS), 2)
    two_valued("confidence_difference", ConfidenceDifference(), 2)
    two_valued("positive_confidence", PositiveConfidence(), 1)
    for constraint in ("jeffrey", "likelihood", "count", "mean"):
        two_valued(f"positive_unlabeled-{constraint}", PositiveUnlabeled(0.4, constraint=constraint), 3)
        unlabelled = UnlabeledUnlabeled((0.2, 0.7), constraint=constraint)
        two_valued(f"unlabeled_unlabeled-{constraint}", unlabelled, 3)
    pairs_of_one_class = {
        "pair_similarity": PairSimilarity(),
        "pair_similarity-noise": PairSimilarity(noise=FLIPS),
        "similarity_confidence": SimilarityConfidence(),
        "similarity_confidence-virtual": SimilarityConfidence(soft="virtual"),
    }
    for name, pair in pairs_of_one_class.items():
        rows[f"{name}-sigmoid1"] = Case(pair, "sigmoid", 1, 2)
        single_label(name, pair, 2)
    about_instances = {
        "partial_label": PartialLabel(),
        "complementary_label": ComplementaryLabel(),
        "noisy_label-rate": NoisyLabel(rate=0.2),
        "crowd_label-rate": CrowdLabel(rate=0.2),
        "semi_supervised": SemiSupervised(),
    }
    for name, kind in about_instances.items():
        rows[f"{name}-sigmoid1"] = Case(kind, "sigmoid", 1, 2)
        single_label(name, kind, 1)
        rows[f"{name}-larger-bags"] = Case(kind, "softmax", 3, 2)
    single_label("noisy_label", NoisyLabel(CONFUSION), 1)
    single_label("noisy_label-zeros", NoisyLabel(NEVER), 1)
    single_label("crowd_label", CrowdLabel(CROWD), 1)
    rows["semi_supervised-multi-label"] = Case(SemiSupervised(), "sigmoid", 2, 2)

    single_label("noisy & partial", NoisyLabel(CONFUSION) & PartialLabel(), 1)
    single_label("noisy & partial & semi", NoisyLabel(CONFUSION) & PartialLabel() & SemiSupervised(), 2)
    single_label("proportion & semi", LabelProportion() & SemiSupervised(), 3)
    rows["proportion & semi-sigmoid2"] = Case(LabelProportion() & SemiSupervised(), "sigmoid", 2, 3)
    drawn = PositiveUnlabeled(0.4, constraint="likelihood")
    two_valued("multi_instance & positive_unlabeled", MultiInstance() & drawn, 3)
    single_label("multi_instance & proportion", MultiInstance() & LabelProportion(), 3)
    single_label("soft proportion & crowd", LabelProportion("soft") & CrowdLabel(CROWD), 2)
    single_label("similarity & noisy", PairSimilarity() & NoisyLabel(CONFUSION), 2)
    two_valued("comparison & difference", PairComparison(noise=FLIPS) & ConfidenceDifference(), 2)

    everywhere("at_least", AtLeast(2), 3)
    rows["last_positive-sigmoid1"] = Case(LastPositive(), "sigmoid", 1, 3, weak_labels=(0, 1, 2, 3))
    two_valued("from_function-majority", Supervision.from_function(majority, 3), 3)
    single_label("from_function-sum", Supervision.from_function(_sum_of_pair, 2, 3), 2)
    single_label("sum_modulo & partial", SumModulo(2, slip=0.1) & PartialLabel(), 3)
    return rows


CASES = _rows()


def random_batch(case: Case, seed: int = 0, bags: int = 4, scale: float = 1.5) -> Batch:
    """Random logits and weak labels; bags of all sizes, the largest first, padding at the end."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    sizes = case.K - torch.arange(bags) % case.K if case.ragged else torch.full((bags,), case.K)
    mask = torch.arange(case.K) < sizes[:, None]
    logits = scale * torch.randn(bags, case.K, case.classes, generator=generator, dtype=torch.float64)
    weak = example_weak(case.supervision, case.head, case.classes, mask, rng, case.weak_labels)
    if case.binary:
        # of soft counts only those of the first class are drawn
        weak = weak[:, 0 if getattr(case.supervision, "kind", "") == "soft" else 1]
    return Batch(logits, _tensors(weak), mask)


def infer(case: Case, batch: Batch, logits: torch.Tensor | None = None, **options: Any) -> fastbus.Posterior:
    """The engine's answer for a batch, at other logits if they are given."""
    at = batch.logits if logits is None else logits
    return fastbus.infer(case.supervision, at, batch.weak, batch.mask, head=case.head, **options)


def prior_of(case: Case, logits: torch.Tensor) -> torch.Tensor:
    """The predicted probabilities, in the shape of the logits."""
    return torch.softmax(logits, -1) if case.head == "softmax" else torch.sigmoid(logits)


def _tensors(weak: Any) -> Any:
    return tuple(_tensors(part) for part in weak) if isinstance(weak, tuple) else torch.as_tensor(weak)
