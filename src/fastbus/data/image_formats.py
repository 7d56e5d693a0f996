"""Binary formats of image files: CIFAR records, STL-10 planes, idx arrays. Everything is uint8.

Files are read as they are and held against what they must be; no pickle is ever opened.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastbus.data.downloads import Checksum
from fastbus.errors import DataError

Array = npt.NDArray[Any]
PIXELS = 3 * 32 * 32
STL_SHAPE = (3, 96, 96)
LARGEST_IDX = 1 << 31  # bytes; no header may ask for more


def read_cifar(path: Path, label_bytes: int, num_classes: int) -> tuple[Array, Array]:
    """Records of `label_bytes` labels and 3 planes of 32 x 32: images (N, 3, 32, 32), labels (N, bytes)."""
    raw = np.fromfile(path, dtype=np.uint8)
    record = label_bytes + PIXELS
    if len(raw) == 0 or len(raw) % record:
        raise DataError(
            f"{path}: {len(raw)} bytes; expected records of {record} bytes, one an image. "
            "The file is cut short or of another format: get it again."
        )
    records = raw.reshape(-1, record)
    labels = records[:, :label_bytes].astype(np.int64)
    _check_labels(labels[:, -1], num_classes, path)
    return records[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def read_stl_images(path: Path, *, mapped: bool = False) -> Array:
    """Images (N, 3, 96, 96) from planes stored column by column; `mapped` leaves them on the disk."""
    size = path.stat().st_size
    count, rest = divmod(size, int(np.prod(STL_SHAPE)))
    if rest or not count:
        raise DataError(
            f"{path}: {size} bytes; expected 3 planes of 96 x 96 bytes an image. "
            "The file is cut short or of another format: get it again."
        )
    if mapped:
        return np.memmap(path, dtype=np.uint8, mode="r", shape=(count, *STL_SHAPE)).swapaxes(2, 3)
    planes = np.fromfile(path, dtype=np.uint8).reshape(count, *STL_SHAPE)
    return np.ascontiguousarray(planes.swapaxes(2, 3))


def read_stl_labels(path: Path, count: int, num_classes: int) -> Array:
    """Labels (N,) from 0; the file counts from 1."""
    labels = np.fromfile(path, dtype=np.uint8).astype(np.int64) - 1
    _check_count(len(labels), count, path)
    _check_labels(labels, num_classes, path)
    return labels


def read_idx(path: Path, dims: int, checksum: Checksum | None = None) -> Array:
    """A uint8 array of `dims` axes from an idx file, plain or .gz; `checksum` is that of the plain one."""
    cure = "The file is cut short or of another format: get it again."
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as stream:
            header = stream.read(4 + 4 * dims)
            if len(header) != 4 + 4 * dims or header[:4] != bytes((0, 0, 8, dims)):
                raise DataError(
                    f"{path}: starts with {header[:4].hex() or 'nothing'}; expected an idx file of bytes "
                    f"with {dims} axes (0000080{dims}). {cure}"
                )
            shape = struct.unpack(f">{dims}I", header[4:])
            size = int(np.prod(shape, dtype=object))
            body = stream.read(min(size, LARGEST_IDX) + 1)
    except (EOFError, OSError) as problem:
        raise DataError(f"{path} cannot be read ({problem}); expected an idx file. {cure}") from None
    if len(body) != size or not size:
        raise DataError(
            f"{path}: {len(body)} bytes of data (or more); expected {size}, as its header {shape} says. {cure}"
        )
    if checksum is not None:
        digest = hashlib.new(checksum.algorithm, header + body, usedforsecurity=False).hexdigest()
        if digest != checksum.digest:
            raise DataError(
                f"{path}: {checksum.algorithm} {digest}; expected {checksum.digest}. It is not the official "
                "file: get it again, or pass verify=False for other files of this format."
            )
    return np.frombuffer(bytearray(body), dtype=np.uint8).reshape(shape)


def idx_set(images: Path, labels: Path, num_classes: int, sums: tuple[Any, Any]) -> tuple[Array, Array]:
    """Images (N, 1, H, W) and labels (N,) from a pair of idx files."""
    pictures = read_idx(images, 3, sums[0])[:, None]
    names = read_idx(labels, 1, sums[1]).astype(np.int64)
    _check_count(len(names), len(pictures), labels)
    _check_labels(names, num_classes, labels)
    return pictures, names


def read_names(path: Path, num_classes: int) -> tuple[str, ...]:
    """Class names, one a line."""
    names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    if len(names) != num_classes:
        raise DataError(f"{path}: {len(names)} class names; expected {num_classes}, one a line. Get the file again.")
    return names


def _check_count(got: int, expected: int, path: Path) -> None:
    if got != expected:
        raise DataError(
            f"{path}: {got} labels; expected {expected}, one for every image. "
            "Put images and labels of the same set side by side."
        )


def _check_labels(labels: Array, num_classes: int, path: Path) -> None:
    bad = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(bad):
        raise DataError(
            f"{path}: label {labels[bad[0]]} of image {bad[0]}; expected 0 to {num_classes - 1}. "
            "The file is damaged or of another set: get it again."
        )
