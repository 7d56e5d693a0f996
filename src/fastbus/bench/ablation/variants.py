"""The columns of the ablation: exact inference, cuts of it, and what the paper learns instead.

"exact" ties the classes together wherever that fits; "one-vs-rest" is exact for each class by itself, which is what
the paper's chains compute and what a learned module starts from. Both train as EM. "joint objective" adds the
terms that learned modules need, so that the module and its objective can be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastbus.inference.class_loop import ClassLoop
from fastbus.inference.evolution import Variant as EvolutionVariant
from fastbus.inference.evolution_build import build_evolution
from fastbus.models.backbone import Backbone
from fastbus.objective import WeakLoss

if TYPE_CHECKING:
    from fastbus.bench.ablation.settings import Drawn, Setting


@dataclass(frozen=True)
class Variant:
    """Options of the loss, and what is built for it."""

    meaning: str
    loss: dict[str, Any] = field(default_factory=dict)
    module: EvolutionVariant | None = None
    rank: int | None = None  # states that are kept
    class_loop: bool = False
    kinds: tuple[str, ...] = ("label_proportion", "multi_instance")
    heads: tuple[str, ...] = ("softmax", "sigmoid")

    def applies(self, setting: Setting) -> bool:
        return setting.kind in self.kinds and setting.head in self.heads


def _learned(variant: EvolutionVariant, meaning: str) -> Variant:
    return Variant(meaning, {"mode": "joint", "coupling": "independent"}, module=variant)


_COUNTS = ("label_proportion",)
_ONE_VS_REST = {"coupling": "independent"}
_MULTI = ("sigmoid",)

VARIANTS = {
    "exact": Variant("exact inference, classes tied together"),
    "one-vs-rest": Variant("exact inference, class by class", _ONE_VS_REST, heads=("softmax",)),
    "joint objective": Variant("one-vs-rest, learned modules' objective", {"mode": "joint", **_ONE_VS_REST}),
    "exact, joint objective": Variant("exact, learned modules' objective", {"mode": "joint"}, heads=("softmax",)),
    "rank 3": Variant("one-vs-rest, 3 states: larger counts unheard", _ONE_VS_REST, rank=3, kinds=_COUNTS),
    "rank 2": Variant("one-vs-rest, 2 states: larger counts unheard", _ONE_VS_REST, rank=2, kinds=_COUNTS),
    "learned": _learned("full", "state evolution"),
    "learned, mlp": _learned("mlp", "without attention and encoder"),
    "learned, no attention": _learned("no_attention", "without attention to the features"),
    "learned, relu": _learned("relu", "ReLU in the encoder"),
    "learned, gelu": _learned("gelu", "GELU in the encoder"),
    "class loop": Variant(
        "exact, pairwise factors between classes from the labels", {"likelihood": 1.0}, class_loop=True, heads=_MULTI
    ),
}
"""The columns in the order in which they are shown."""


def heard(variant: Variant, weak: Tensor) -> Tensor:
    """The weak labels that a chain of that rank can tell: a count beyond its states is as good as missing."""
    return weak if variant.rank is None else weak.masked_fill(weak >= variant.rank, -1)


def build_loss(variant: Variant, setting: Setting, network: Backbone, drawn: Drawn, seed: int) -> WeakLoss:
    """The loss of a variant, with its module where it has one."""
    options: dict[str, Any] = {"head": setting.head, **variant.loss}
    bags = drawn.bags
    largest = int(bags.sizes.max())
    if variant.rank is not None:
        options["rank"] = variant.rank
    if variant.class_loop:
        options["class_loop"] = ClassLoop.from_labels(bags.weak)
    if variant.module is not None:
        few = torch.arange(min(4, len(bags)))
        part = bags.batch(few)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            options["evolution"] = build_evolution(
                setting.supervision,
                torch.zeros(len(part.instances), drawn.num_classes),
                part.weak,
                network.num_features,
                bag_sizes=part.sizes,
                head=setting.head,
                max_bag_size=largest,
                variant=variant.module,
            )
    return WeakLoss(setting.supervision, **options)
