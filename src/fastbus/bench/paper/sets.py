"""The images of the grid: which there are, what is positive in them, and how they are read.

Images are uint8 (N, channels, height, width). The digits of scikit-learn stand in where no folder of images is given:
real, small, and at hand everywhere; their 8×8 pixels are padded to 12×12, so that views can be cut from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastbus.data.images import load_images
from fastbus.errors import DataError

Array = NDArray[Any]


@dataclass(frozen=True)
class ImageSource:
    """What is known of a set before its files are read."""

    shape: tuple[int, int, int]
    num_classes: int
    num_train: int
    positives: tuple[int, ...]  # of the binary settings
    prior: float  # share of positives among the training images, to two digits
    official: str | None  # the loader's name


class Images(NamedTuple):
    """Training and test images with true labels (N,)."""

    train: Array
    train_labels: Array
    test: Array
    test_labels: Array


_ANIMALS_OR_NOT = (0, 1, 8, 9)  # aeroplane, car, ship, lorry
SETS = {
    "cifar10": ImageSource((3, 32, 32), 10, 50_000, _ANIMALS_OR_NOT, 0.4, "cifar10"),
    "cifar10n": ImageSource((3, 32, 32), 10, 50_000, _ANIMALS_OR_NOT, 0.4, "cifar10"),
    # 40 of the 100 classes; which of them the paper takes is not known
    "cifar100": ImageSource((3, 32, 32), 100, 50_000, tuple(range(40)), 0.4, "cifar100"),
    "stl10": ImageSource((3, 96, 96), 10, 5_000, (0, 2, 8, 9), 0.4, "stl10"),
    "mnist": ImageSource((1, 28, 28), 10, 60_000, (0, 1, 2, 3, 4), 0.51, "mnist"),
    "fashion_mnist": ImageSource((1, 28, 28), 10, 60_000, (5, 7, 9), 0.3, "fashion_mnist"),
    "digits": ImageSource((1, 12, 12), 10, 1_347, (0, 1, 2, 3, 4), 0.5, None),
}
MISSING_FILES = ("cifar100", "stl10")  # official files needed: their cells are never run without them


def load_set(name: str, root: Path | None) -> Images:
    """The images of a set, from the official files in `root`."""
    official = SETS[name].official
    if official is None:
        return _digits()
    if root is None:
        raise DataError(f"{name}: no folder of images; expected the official files. Pass their folder as --images.")
    found = load_images(official, root, verify=False)
    return Images(found.train_images, found.train_labels, found.test_images, found.test_labels)


def human_labels(folder: Path, column: str) -> Array:
    """Labels that people gave to the 50,000 training images of CIFAR-10, in their official order."""
    path = folder / "cifar10n.npz"
    if not path.is_file():
        raise DataError(f"no {path.name} in {folder}; expected the labels of CIFAR-10N. Pass their folder as --data.")
    with np.load(path, allow_pickle=False) as arrays:
        if column not in arrays:
            raise DataError(f"{path}: no column {column!r}; expected one of {', '.join(arrays)}. Check the file.")
        return np.asarray(arrays[column], dtype=np.int64)


def _digits() -> Images:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = np.pad(pixels.reshape(-1, 1, 8, 8) * 15, ((0, 0), (0, 0), (2, 2), (2, 2))).astype(np.uint8)
    train, test = train_test_split(np.arange(len(labels)), test_size=450, stratify=labels, random_state=0)
    return Images(images[train], labels[train], images[test], labels[test])
