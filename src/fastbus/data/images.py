"""Image sets from their official files: CIFAR-10, CIFAR-100, STL-10, MNIST, Fashion-MNIST.

Images are uint8 (N, C, H, W), as networks take them; labels int64 (N,) from 0. Each loader looks in
`root` for the folder that the official archive unpacks to, or for its files themselves, and checks them
against published checksums (verify=False reads any files of the same format). download=True fetches what
is not there. The pickled Python versions of CIFAR are refused: loading a pickle runs code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fastbus.data.downloads import Checksum, fetch, unpack, verify_file
from fastbus.data.image_formats import (
    Array,
    idx_set,
    read_cifar,
    read_names,
    read_stl_images,
    read_stl_labels,
)
from fastbus.data.image_sources import CIFAR10, CIFAR100, FASHION_MNIST, MNIST, STL10, Official
from fastbus.errors import DataError, InputError, choice

LARGEST_MEMBER = 3 << 30  # bytes; STL-10's unlabelled images are 2.8 GB


class ImageSet(NamedTuple):
    """A training and a test set of images (N, C, H, W) uint8 with labels (N,) int64."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array
    classes: tuple[str, ...]
    unlabelled: Array | None = None  # STL-10's further images, read from the disk where they are used


def load_cifar10(root: str | Path, *, download: bool = False, verify: bool = True) -> ImageSet:
    """CIFAR-10, 50,000 + 10,000 images (3, 32, 32), from cifar-10-batches-bin."""
    folder = _folder(CIFAR10, Path(root), download, list(CIFAR10.files), verify)
    *train, test = [read_cifar(folder / name, 1, 10) for name in CIFAR10.files]
    images = np.concatenate([batch for batch, _ in train])
    labels = np.concatenate([batch[:, 0] for _, batch in train])
    return ImageSet(images, labels, test[0], test[1][:, 0], CIFAR10.classes)


def load_cifar100(root: str | Path, *, coarse: bool = False, download: bool = False, verify: bool = True) -> ImageSet:
    """CIFAR-100, images (3, 32, 32), from cifar-100-binary; coarse=True: its 20 superclasses."""
    folder = _folder(CIFAR100, Path(root), download, list(CIFAR100.files), verify)
    train, train_labels = read_cifar(folder / "train.bin", 2, 100)
    test, test_labels = read_cifar(folder / "test.bin", 2, 100)
    column, num_classes = (0, 20) if coarse else (1, 100)
    names = read_names(folder / f"{'coarse' if coarse else 'fine'}_label_names.txt", num_classes)
    return ImageSet(train, train_labels[:, column], test, test_labels[:, column], names)


def load_stl10(root: str | Path, *, unlabelled: bool = True, download: bool = False, verify: bool = True) -> ImageSet:
    """STL-10, images (3, 96, 96), from stl10_binary; unlabelled=False leaves the 2.8 GB of others out."""
    wanted = [name for name in STL10.files if unlabelled or name != "unlabeled_X.bin"]
    folder = _folder(STL10, Path(root), download, wanted, verify)
    train, test = read_stl_images(folder / "train_X.bin"), read_stl_images(folder / "test_X.bin")
    labels = [
        read_stl_labels(folder / f"{part}_y.bin", len(images), len(STL10.classes))
        for part, images in (("train", train), ("test", test))
    ]
    further = read_stl_images(folder / "unlabeled_X.bin", mapped=True) if unlabelled else None
    return ImageSet(train, labels[0], test, labels[1], STL10.classes, further)


def load_mnist(root: str | Path, *, download: bool = False, verify: bool = True) -> ImageSet:
    """MNIST, 60,000 + 10,000 images (1, 28, 28), from MNIST/raw; idx files, plain or .gz."""
    return _load_idx(MNIST, Path(root), download, verify)


def load_fashion_mnist(root: str | Path, *, download: bool = False, verify: bool = True) -> ImageSet:
    """Fashion-MNIST, 60,000 + 10,000 images (1, 28, 28), from FashionMNIST/raw; idx files, plain or .gz."""
    return _load_idx(FASHION_MNIST, Path(root), download, verify)


LOADERS: dict[str, Callable[..., ImageSet]] = {
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "stl10": load_stl10,
    "mnist": load_mnist,
    "fashion_mnist": load_fashion_mnist,
}


def load_images(name: str, root: str | Path, *, download: bool = False, verify: bool = True) -> ImageSet:
    """An image set by name: cifar10, cifar100, stl10, mnist or fashion_mnist."""
    choice(name, LOADERS, "image set", InputError)
    return LOADERS[name](root, download=download, verify=verify)


def _load_idx(official: Official, root: Path, download: bool, verify: bool) -> ImageSet:
    names = list(official.files)
    folder = _found(official, root, names)
    if folder is None and download:
        folder = root / official.folder
        for name, digest in zip(names, official.packed, strict=True):
            if not (folder / name).is_file():
                fetch(f"{official.url}{name}.gz", folder / f"{name}.gz", Checksum("md5", digest))
    if folder is None:
        raise _absent(official, root, names)
    paths = [path if (path := folder / name).is_file() else folder / f"{name}.gz" for name in names]
    sums = [official.files[name] if verify else None for name in names]
    train = idx_set(paths[0], paths[1], len(official.classes), (sums[0], sums[1]))
    test = idx_set(paths[2], paths[3], len(official.classes), (sums[2], sums[3]))
    return ImageSet(*train, *test, official.classes)


def _folder(official: Official, root: Path, download: bool, wanted: list[str], verify: bool) -> Path:
    """The folder that holds the wanted files, fetched and unpacked if need be, its files verified."""
    folder = _found(official, root, wanted)
    if folder is None and download:
        assert official.archive is not None and official.checksum is not None
        archive = fetch(official.url, root / official.archive, official.checksum)
        folder = root / official.folder
        members = {f"{official.folder}/{name}": folder / name for name in wanted}
        unpack(archive, members, LARGEST_MEMBER)
    if folder is None:
        raise _absent(official, root, wanted)
    for name in wanted if verify else ():
        known = official.files[name]
        if isinstance(known, Checksum):
            verify_file(folder / name, known, official.url)
        elif known is not None and (folder / name).stat().st_size != known:
            raise DataError(
                f"{folder / name}: {(folder / name).stat().st_size} bytes; expected {known}. Get it again "
                f"from {official.url}, or pass verify=False for other files of this format."
            )
    return folder


def _found(official: Official, root: Path, wanted: list[str]) -> Path | None:
    """The official folder within root, or root itself, if all files are there, packed or not."""
    for folder in (root / official.folder, root):
        present = ((folder / name).is_file() or _packed(official, folder, name) for name in wanted)
        if all(present):
            return folder
    return None


def _packed(official: Official, folder: Path, name: str) -> bool:
    return bool(official.packed) and (folder / f"{name}.gz").is_file()


def _absent(official: Official, root: Path, wanted: list[str]) -> DataError:
    pickled = official.pickled
    if pickled is not None and any((root / f"{pickled}{end}").exists() for end in ("", ".tar.gz")):
        return DataError(
            f"{root / pickled}: the Python version of {official.name}, which is pickled; expected the binary "
            f"version, since loading a pickle can run any code. Get {official.url} instead and unpack it in "
            f"{root}, or in Python pass download=True."
        )
    folder = root / official.folder
    lacking = [name for name in wanted if not (folder / name).is_file()]
    source = official.url if official.archive else f"{official.url}*.gz"
    return DataError(
        f"{official.name}: no {lacking[0] if lacking else official.folder} in {folder}; expected the "
        f"official files. Get {source} and put the files there, or in Python pass download=True where there is "
        "a network."
    )
