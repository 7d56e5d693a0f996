"""The rows of the ablation: real data, the weak labels made of it, and how a network is trained on them.

Images and labels of the training and test sets are the official ones; digits are split once a seed. Weak labels
are drawn from the seed, the same for every variant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastbus.data.draws import draw_bags
from fastbus.data.images import load_images
from fastbus.data.weaken import weaken
from fastbus.errors import DataError
from fastbus.inference.infer import Head
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision
from fastbus.training.bag_set import BagSet
from fastbus.training.config import TrainConfig

Array = NDArray[Any]


class Images(NamedTuple):
    """Inputs and true labels, (N,) classes or (N, C) 0/1, to train and to test on."""

    train: Array
    train_labels: Array
    test: Array
    test_labels: Array


@dataclass(frozen=True)
class Setting:
    """One row: a data set, bags whose sizes are draws of Normal(mean, std), and the training."""

    data: str
    kind: str  # label_proportion or multi_instance
    num_bags: int
    mean: float
    std: float
    backbone: str
    config: TrainConfig
    head: Head = "softmax"
    missing: float = 0.0  # share of the bags' labels that are lost
    backbone_options: tuple[tuple[str, Any], ...] = ()

    @property
    def supervision(self) -> Supervision:
        return LabelProportion() if self.kind == "label_proportion" else MultiInstance()


class Drawn(NamedTuple):
    """The weak labels of a seed, and what to test on."""

    bags: BagSet
    test: torch.Tensor
    test_labels: Array
    num_classes: int


_SMALL = TrainConfig(epochs=30, max_bags=16, learning_rate=3e-3, weight_decay=1e-3)
_LENET = TrainConfig(epochs=12, max_bags=16, learning_rate=2e-3, weight_decay=1e-3)
_WIDE = TrainConfig(
    epochs=20,
    max_bags=16,
    optimizer="sgd",
    learning_rate=0.03,
    weight_decay=5e-4,
    warmup=100,
    ema=0.999,
    views=True,
    precision="bf16",
)
_MLP = (("hidden", (128, 64)), ("dropout", 0.2))

SETTINGS = {
    "digits proportions": Setting("digits", "label_proportion", 120, 10, 2, "mlp", _SMALL, backbone_options=_MLP),
    "digits bags": Setting("digits", "multi_instance", 150, 8, 1, "mlp", _SMALL, backbone_options=_MLP),
    "fashion proportions": Setting("fashion_mnist", "label_proportion", 300, 10, 2, "lenet5", _LENET),
    "fashion bags": Setting("fashion_mnist", "multi_instance", 500, 6, 1, "lenet5", _LENET),
    "yeast bags": Setting(
        "yeast", "multi_instance", 400, 4, 1, "mlp", _SMALL, head="sigmoid", missing=0.3, backbone_options=_MLP
    ),
    "scene bags": Setting(
        "scene", "multi_instance", 400, 3, 1, "mlp", _SMALL, head="sigmoid", missing=0.3, backbone_options=_MLP
    ),
    "cifar10 proportions": Setting("cifar10", "label_proportion", 1200, 10, 2, "wrn_28_2", _WIDE),
    "cifar10 bags": Setting("cifar10", "multi_instance", 1200, 5, 1, "wrn_28_2", _WIDE),
}
"""The rows in the order in which they are shown."""


def draw(setting: Setting, seed: int, source: Path) -> Drawn:
    """The bags of a seed, with their weak labels."""
    images = _READERS[setting.data](source, seed)
    rng = np.random.default_rng([seed, setting.num_bags])
    drawn = draw_bags(len(images.train), setting.num_bags, setting.mean, setting.std, rng)
    truth = images.train_labels[drawn.rows]
    num_classes = truth.shape[1] if truth.ndim == 2 else int(images.test_labels.max()) + 1
    weak = np.asarray(weaken(setting.supervision, truth, drawn.sizes, num_classes=num_classes))
    if setting.missing:
        weak = np.where(rng.random(weak.shape) < setting.missing, -1, weak)
    bags = BagSet(
        setting.supervision,
        torch.from_numpy(images.train[drawn.rows]),
        torch.from_numpy(drawn.sizes),
        torch.from_numpy(weak),
    )
    return Drawn(bags, torch.from_numpy(images.test), images.test_labels, num_classes)


def _digits(source: Path, seed: int) -> Images:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    train, test = train_test_split(np.arange(len(labels)), test_size=0.25, stratify=labels, random_state=seed)
    scaled = ((pixels - pixels[train].mean()) / pixels[train].std()).astype(np.float32)
    return Images(scaled[train], labels[train], scaled[test], labels[test])


def _official(name: str) -> Callable[[Path, int], Images]:
    def read(source: Path, seed: int) -> Images:
        found = load_images(name, source, verify=False)
        return Images(found.train_images, found.train_labels, found.test_images, found.test_labels)

    return read


def _multi_label(name: str) -> Callable[[Path, int], Images]:
    def read(source: Path, seed: int) -> Images:
        path = source / f"multilabel_{name}.npz"
        if not path.is_file():
            raise DataError(f"no {path.name} in {source}; expected the multi-label set there. Pass its folder, --data.")
        with np.load(path, allow_pickle=False) as arrays:
            x, y, test, test_y = (arrays[key] for key in ("x_train", "y_train", "x_test", "y_test"))
        mean, scale = x.mean(0), x.std(0) + 1e-6
        return Images(
            ((x - mean) / scale).astype(np.float32),
            y.astype(np.int64),
            ((test - mean) / scale).astype(np.float32),
            test_y.astype(np.int64),
        )

    return read


_READERS: dict[str, Callable[[Path, int], Images]] = {
    "digits": _digits,
    "fashion_mnist": _official("fashion_mnist"),
    "cifar10": _official("cifar10"),
    "yeast": _multi_label("yeast"),
    "scene": _multi_label("scene"),
}
