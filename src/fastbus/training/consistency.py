"""Consistency: what the weak view of an instance without evidence says becomes the target of its strong view.

For softmax heads, with p the prediction from the weak view (or the averaged network),
    aligned   a_c  =  p_c * known_c / predicted_c, normalised      (distribution alignment)
    target    t    =  argmax a, taken where max a >= confidence
    loss         =  -log strong_t
`known` is the running share of the classes among instances with evidence, `predicted` that of the predictions of
the others. Sigmoid heads decide each class by itself, without alignment. Instances with evidence take no part:
the posterior speaks for them.

With I instances with evidence and U without seen so far, a term of consistency weighs I / U times one of the
risk, so that both halves of the loss weigh alike however few the labels are, and one denominator serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

Reduce = Callable[[Tensor], Tensor]


class PseudoTargets(NamedTuple):
    """Targets as class indices (N,) or 0/1 (N, C), and which of them are sure enough to be learnt."""

    labels: Tensor
    sure: Tensor


class ConsistencySums(NamedTuple):
    """Weighted sum of the losses of one batch, and the weight of its instances without evidence, sure or not."""

    total: Tensor
    terms: Tensor


def align(probs: Tensor, known: Tensor, predicted: Tensor) -> Tensor:
    """Predictions (N, C) moved so that their mean comes closer to the known shares (C,)."""
    moved = probs * (known / predicted)
    return moved / moved.sum(-1, keepdim=True)


def pseudo_targets(probs: Tensor, confidence: float, head: Literal["softmax", "sigmoid"]) -> PseudoTargets:
    """The most probable label, and whether it is probable enough."""
    if head == "softmax":
        top, labels = probs.max(-1)
        return PseudoTargets(labels, top >= confidence)
    labels = (probs >= 0.5).to(probs.dtype)
    return PseudoTargets(labels, torch.maximum(probs, 1 - probs) >= confidence)


class Consistency(nn.Module):
    """The loss, and the running averages it needs: buffers, so that a checkpoint holds them."""

    known: Tensor
    predicted: Tensor
    informed: Tensor
    uninformed: Tensor

    def __init__(self, confidence: float, alignment: float, head: Literal["softmax", "sigmoid"]) -> None:
        super().__init__()
        self.confidence = confidence
        self.alignment = alignment  # decay of the running shares, 0 for no alignment
        self.head = head
        for name in ("known", "predicted"):  # shares of classes, empty until the first batch tells their number
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("informed", "uninformed"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    def forward(
        self, teacher: Tensor, strong: Tensor, posterior: Tensor, informed: Tensor, weights: Tensor, reduce: Reduce
    ) -> ConsistencySums:
        """Logits (N, C) of both views; posterior and informed (N, C); weights (N,); `reduce` adds over processes."""
        with torch.no_grad():
            probs = torch.softmax(teacher, -1) if self.head == "softmax" else torch.sigmoid(teacher)
            free = ~informed.any(-1) if self.head == "softmax" else ~informed
            weight = weights.to(strong.dtype) if self.head == "softmax" else weights.to(strong.dtype)[:, None]
            self._count(probs, posterior, free, weights, reduce)
            if self.head == "softmax" and self.alignment and bool((self.known > 0).all()):
                probs = align(probs, self.known.to(probs), self.predicted.to(probs))
            labels, sure = pseudo_targets(probs, self.confidence, self.head)
            share = (self.informed / self.uninformed.clamp(min=1)).to(strong.dtype)
            every = torch.where(free, share * weight, 0)
        if self.head == "softmax":
            losses = cross_entropy(strong, labels, reduction="none")
        else:
            losses = binary_cross_entropy_with_logits(strong, labels, reduction="none")
        return ConsistencySums((losses * every * sure).sum(), every.sum())

    def _count(self, probs: Tensor, posterior: Tensor, free: Tensor, weights: Tensor, reduce: Reduce) -> None:
        """Take a batch into the running totals and shares."""
        weight = weights.double() if self.head == "softmax" else weights.double()[:, None]
        on = torch.where(free, weight, 0.0)
        off = torch.where(free, 0.0, weight.expand_as(free).double())
        counts = reduce(torch.stack([off.sum(), on.sum()]))
        self.informed += counts[0]
        self.uninformed += counts[1]
        if self.head != "softmax" or not self.alignment:
            return
        sums = reduce(torch.stack([off @ posterior.double(), on @ probs.double()]))  # (2, C)
        if not len(self.known):
            self.known, self.predicted = torch.zeros_like(sums[0]), torch.zeros_like(sums[0])
        for kept, total, count in zip((self.known, self.predicted), sums, counts, strict=True):
            if float(count):
                first = not bool(kept.any())
                kept.copy_(total / count if first else torch.lerp(total / count, kept, self.alignment))
        self.predicted.clamp_(min=1e-12)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        """Shares of a checkpoint have the classes that a new module does not know yet."""
        for name in ("known", "predicted"):
            if prefix + name in state_dict:
                setattr(self, name, torch.zeros_like(state_dict[prefix + name], device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
