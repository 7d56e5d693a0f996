"""Official image files: formats byte by byte, checksums, refused pickles, downloads that cannot go half way.

Real files are read where FASTBUS_DATA points to a folder of them; the formats of all sets are checked on
tiny files made here.
"""

import gzip
import hashlib
import http.server
import io
import os
import struct
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastbus
from fastbus.data import downloads, images
from fastbus.data.downloads import Checksum, fetch, unpack
from fastbus.data.image_sources import BINARY_POSITIVES, CIFAR10, MNIST

RNG = np.random.default_rng(0)
REAL = os.environ.get("FASTBUS_DATA")


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def cifar_bytes(labels: np.ndarray, pictures: np.ndarray) -> bytes:
    """Label bytes, then the red, green and blue plane, row by row."""
    return np.concatenate([labels.reshape(len(labels), -1), pictures.reshape(len(labels), -1)], 1).tobytes()


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def cifar10(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    labels, pictures = RNG.integers(0, 10, 12, dtype=np.uint8), pixels(12, 3, 32, 32)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i, name in enumerate(CIFAR10.files):
        part = slice(2 * i, 2 * i + 2)
        (folder / name).write_bytes(cifar_bytes(labels[part], pictures[part]))
    return tmp_path, labels, pictures


@pytest.fixture
def mnist(tmp_path: Path) -> tuple[Path, list[np.ndarray]]:
    arrays = [
        pixels(5, 28, 28),
        np.arange(5, dtype=np.uint8),
        pixels(3, 28, 28),
        np.arange(3, dtype=np.uint8),
    ]
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, array in zip(MNIST.files, arrays, strict=True):
        (folder / name).write_bytes(idx_bytes(array))
    return tmp_path, arrays


# -- formats ---------------------------------------------------------------------------------------------


def test_cifar10(cifar10: tuple[Path, np.ndarray, np.ndarray]) -> None:
    root, labels, pictures = cifar10
    for place in (root, root / "cifar-10-batches-bin"):
        found = images.load_cifar10(place, verify=False)
        np.testing.assert_array_equal(found.train_images, pictures[:10])
        np.testing.assert_array_equal(found.test_images, pictures[10:])
        np.testing.assert_array_equal(found.train_labels, labels[:10])
        np.testing.assert_array_equal(found.test_labels, labels[10:])
    assert found.train_images.dtype == np.uint8 and found.train_labels.dtype == np.int64
    assert found.classes[8] == "ship" and found.unlabelled is None


@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100(tmp_path: Path, coarse: bool) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    labels, pictures = np.array([[3, 99], [19, 0]], dtype=np.uint8), pixels(2, 3, 32, 32)
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(cifar_bytes(labels, pictures))
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine{i}" for i in range(100)) + "\n\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{i}" for i in range(20)))
    found = images.load_cifar100(tmp_path, coarse=coarse, verify=False)
    np.testing.assert_array_equal(found.train_labels, labels[:, 0 if coarse else 1])
    np.testing.assert_array_equal(found.test_images, pictures)
    assert len(found.classes) == (20 if coarse else 100)
    with pytest.raises(fastbus.DataError, match="expected 153700000"):
        images.load_cifar100(tmp_path)


def test_stl10(tmp_path: Path) -> None:
    """Planes are stored column by column, labels count from 1."""
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    pictures = pixels(2, 3, 96, 96)
    for name in ("train_X.bin", "test_X.bin", "unlabeled_X.bin"):
        (folder / name).write_bytes(pictures.transpose(0, 1, 3, 2).tobytes())
    for name in ("train_y.bin", "test_y.bin"):
        (folder / name).write_bytes(bytes([1, 10]))
    found = images.load_stl10(tmp_path, verify=False)
    np.testing.assert_array_equal(found.train_images, pictures)
    np.testing.assert_array_equal(found.train_labels, [0, 9])
    assert found.unlabelled is not None
    np.testing.assert_array_equal(found.unlabelled, pictures)
    (folder / "unlabeled_X.bin").unlink()
    assert images.load_stl10(tmp_path, unlabelled=False, verify=False).unlabelled is None
    (folder / "test_y.bin").write_bytes(bytes([1, 0]))
    with pytest.raises(fastbus.DataError, match="label -1 of image 1"):
        images.load_stl10(tmp_path, unlabelled=False, verify=False)


@pytest.mark.parametrize("packed", [False, True])
def test_idx(mnist: tuple[Path, list[np.ndarray]], packed: bool) -> None:
    root, arrays = mnist
    for path in list(root.rglob("*-ubyte")) if packed else []:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    found = images.load_mnist(root, verify=False)
    np.testing.assert_array_equal(found.train_images, arrays[0][:, None])
    np.testing.assert_array_equal(found.train_labels, arrays[1])
    np.testing.assert_array_equal(found.test_images, arrays[2][:, None])
    assert found.train_images.shape == (5, 1, 28, 28) and found.train_images.flags.writeable
    with pytest.raises(fastbus.DataError, match=r"sha256 .* expected"):
        images.load_mnist(root)


# -- malformed files -------------------------------------------------------------------------------------


def test_damaged_cifar(cifar10: tuple[Path, np.ndarray, np.ndarray]) -> None:
    root = cifar10[0]
    path = root / "cifar-10-batches-bin" / "data_batch_2.bin"
    whole = path.read_bytes()
    with pytest.raises(fastbus.DataError, match=r"data_batch_1.bin: sha256 .* get it again"):
        images.load_cifar10(root)
    for damage, message in ((whole[:-1], "6145 bytes"), (b"", "0 bytes"), (b"\x0a" + whole[1:], "label 10")):
        path.write_bytes(damage)
        with pytest.raises(fastbus.DataError, match=message):
            images.load_cifar10(root, verify=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "expected 3920"),
        (lambda data: data + b"x", "expected 3920"),
        (lambda data: b"", "starts with nothing"),
        (lambda data: b"\0\0\x0d\3" + data[4:], "starts with 00000d03"),
        (lambda data: data[:4] + b"\xff" * 12, "expected 79228162458924105385300197375"),
        (lambda data: gzip.compress(data), "starts with 1f8b"),
    ],
)
def test_damaged_idx(mnist: tuple[Path, list[np.ndarray]], damage: Any, message: str) -> None:
    path = mnist[0] / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(fastbus.DataError, match=message):
        images.load_mnist(mnist[0], verify=False)


def test_damaged_gzip_and_uneven_labels(mnist: tuple[Path, list[np.ndarray]]) -> None:
    folder = mnist[0] / "MNIST" / "raw"
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(4, dtype=np.uint8)))
    with pytest.raises(fastbus.DataError, match="4 labels; expected 5"):
        images.load_mnist(mnist[0], verify=False)
    path = folder / "train-images-idx3-ubyte"
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    (folder / f"{path.name}.gz").write_bytes(packed[:-20])
    with pytest.raises(fastbus.DataError, match="cannot be read"):
        images.load_mnist(mnist[0], verify=False)


def test_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(fastbus.DataError, match=r"pickled; expected the binary version.*binary.tar.gz"):
        images.load_cifar10(tmp_path)
    (tmp_path / "cifar-100-python.tar.gz").touch()
    with pytest.raises(fastbus.DataError, match="pickled"):
        images.load_cifar100(tmp_path)


@pytest.mark.parametrize("name", images.LOADERS)
def test_absent_files_say_where_to_get_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        fastbus.DataError, match=r"expected the official files\. Get .*http.*in Python pass download=True"
    ):
        images.load_images(name, tmp_path)


def test_unknown_sets() -> None:
    with pytest.raises(fastbus.InputError, match="'imagenet'"):
        images.load_images("imagenet", ".")


# -- downloads -------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server on this machine, and the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args: Any) -> None:
            pass

        def send_header(self, keyword: str, value: str) -> None:
            # a file called "short" ends before the length that was announced
            longer = keyword == "Content-Length" and self.path == "/short"
            super().send_header(keyword, str(int(value) + 9) if longer else value)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}", folder
        web.shutdown()
        thread.join()


def md5(data: bytes) -> Checksum:
    return Checksum("md5", hashlib.md5(data, usedforsecurity=False).hexdigest())


def test_fetch_verifies_and_leaves_nothing_half_written(server: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = server
    data = pixels(3 << 20).tobytes()
    (folder / "whole").write_bytes(data)
    (folder / "short").write_bytes(data[:-9])
    target = tmp_path / "new" / "file"
    assert fetch(f"{url}/whole", target, md5(data)).read_bytes() == data
    (folder / "whole").unlink()
    fetch(f"{url}/whole", target, md5(data))  # what is there is not fetched again
    target.unlink()
    for name, checksum, message in (
        ("short", md5(data), "could not be downloaded|cut short"),
        ("whole", md5(data), "File not found|Not Found"),
    ):
        with pytest.raises(fastbus.DataError, match=message):
            fetch(f"{url}/{name}", target, checksum)
        assert list(target.parent.iterdir()) == []
    (folder / "whole").write_bytes(data)
    with pytest.raises(fastbus.DataError, match="nothing was kept"):
        fetch(f"{url}/whole", target, md5(b"other"))
    assert list(target.parent.iterdir()) == []
    target.write_bytes(b"damaged")
    with pytest.raises(fastbus.DataError, match="delete it and get it again"):
        fetch(f"{url}/whole", target, md5(data))


def test_without_a_network_the_cure_is_named(tmp_path: Path) -> None:
    with pytest.raises(fastbus.DataError, match=r"could not be downloaded .* Fetch it on another machine"):
        fetch("http://127.0.0.1:9/cifar.tar.gz", tmp_path / "cifar.tar.gz", md5(b""))
    assert list(tmp_path.iterdir()) == []


def archive_of(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    with tarfile.open(path, "w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path.read_bytes()


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_archives_cannot_write_elsewhere(tmp_path: Path) -> None:
    path, out = tmp_path / "a.tar.gz", tmp_path / "out"
    hostile = [
        (tarfile.TarInfo("../escaped"), b"x"),
        (tarfile.TarInfo(str(tmp_path / "absolute")), b"x"),
        (link("set", str(tmp_path / "elsewhere")), b""),
        (tarfile.TarInfo("set/wanted.bin"), b"data"),
    ]
    archive_of(path, hostile)
    unpack(path, {"set/wanted.bin": out / "wanted.bin"}, 100)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.tar.gz", "out", "wanted.bin"]
    assert (out / "wanted.bin").read_bytes() == b"data"
    for members, message in (
        ([(link("set/wanted.bin", "/etc/hostname"), b"")], "no plain file"),
        ([(tarfile.TarInfo("set/wanted.bin"), b"x" * 101)], "at most 100 bytes"),
        ([(tarfile.TarInfo("other"), b"x")], "lacks set/wanted.bin"),
    ):
        archive_of(path, members)
        with pytest.raises(fastbus.DataError, match=message):
            unpack(path, {"set/wanted.bin": out / "new.bin"}, 100)
    path.write_bytes(archive_of(path, hostile)[:-30])
    with pytest.raises(fastbus.DataError, match="cannot be unpacked"):
        unpack(path, {"set/late.bin": out / "new.bin"}, 100)
    assert [p.name for p in out.iterdir()] == ["wanted.bin"]


def test_a_set_is_downloaded_unpacked_and_read(
    cifar10: tuple[Path, np.ndarray, np.ndarray], server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, labels, _ = cifar10
    url, folder = server
    members = [
        (tarfile.TarInfo(f"cifar-10-batches-bin/{path.name}"), path.read_bytes())
        for path in sorted((source / "cifar-10-batches-bin").iterdir())
    ]
    data = archive_of(folder / "cifar-10-binary.tar.gz", members)
    tiny = replace(CIFAR10, url=f"{url}/cifar-10-binary.tar.gz", checksum=md5(data))
    monkeypatch.setattr(images, "CIFAR10", tiny)
    root = source / "downloaded"
    found = images.load_cifar10(root, download=True, verify=False)
    np.testing.assert_array_equal(found.train_labels, labels[:10])
    (folder / "cifar-10-binary.tar.gz").unlink()
    images.load_cifar10(root, download=True, verify=False)


def test_idx_files_are_downloaded(
    mnist: tuple[Path, list[np.ndarray]], server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = server
    sums = []
    for name in MNIST.files:
        packed = gzip.compress((mnist[0] / "MNIST" / "raw" / name).read_bytes())
        (folder / f"{name}.gz").write_bytes(packed)
        sums.append(md5(packed).digest)
    monkeypatch.setattr(images, "MNIST", replace(MNIST, url=f"{url}/", packed=tuple(sums)))
    found = images.load_mnist(mnist[0] / "new", download=True, verify=False)
    np.testing.assert_array_equal(found.train_labels, mnist[1][1])


def test_interrupted_writing_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with downloads.atomic_file(tmp_path / "file") as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


# -- the real sets ---------------------------------------------------------------------------------------


@pytest.mark.skipif(REAL is None, reason="set FASTBUS_DATA to a folder with the official files to read them")
@pytest.mark.parametrize(("name", "count"), [("cifar10", 50_000), ("mnist", 60_000), ("fashion_mnist", 60_000)])
def test_real_files(name: str, count: int) -> None:
    assert REAL is not None
    try:
        found = images.load_images(name, REAL)
    except fastbus.DataError as problem:
        if "expected the official files" not in str(problem):
            raise
        pytest.skip(f"{name} is not in FASTBUS_DATA")
    assert len(found.train_images) == len(found.train_labels) == count
    assert len(found.test_images) == len(found.test_labels) == 10_000
    assert len(found.classes) == 10 == len(np.unique(found.train_labels))
    assert set(BINARY_POSITIVES[name]) < set(range(10))
