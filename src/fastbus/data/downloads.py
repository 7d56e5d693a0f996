"""Downloads: official files fetched over the network, verified, and unpacked without trusting archives.

Nothing half-written is ever seen under its final name: a file is written beside it, checked against its
published checksum, and then renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO, Literal, NamedTuple

from fastbus.errors import DataError

CHUNK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte


class Checksum(NamedTuple):
    """A published checksum. MD5 is what the authors of most of these sets give."""

    algorithm: Literal["md5", "sha256"]
    digest: str

    def of(self, path: Path) -> str:
        """The same checksum of a file."""
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, self.new).hexdigest()

    def new(self) -> hashlib._Hash:
        return hashlib.new(self.algorithm, usedforsecurity=False)


def verify_file(path: Path, checksum: Checksum, source: str) -> None:
    """Refuse a file that is not the published one."""
    got = checksum.of(path)
    if got != checksum.digest:
        raise DataError(
            f"{path}: {checksum.algorithm} {got}; expected {checksum.digest}. The file is damaged or not the "
            f"official one: delete it and get it again from {source}."
        )


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes appear under `path` all at once, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def fetch(url: str, path: Path, checksum: Checksum) -> Path:
    """Download `url` to `path`; a file that is already there is checked and kept."""
    if path.is_file():
        verify_file(path, checksum, url)
        return path
    digest = checksum.new()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response, atomic_file(path) as stream:
            while block := response.read(CHUNK):
                digest.update(block)
                stream.write(block)
            if digest.hexdigest() != checksum.digest:
                raise DataError(
                    f"{url}: {checksum.algorithm} {digest.hexdigest()}; expected {checksum.digest}; nothing "
                    "was kept. The download was cut short or changed on the way: try again."
                )
    except (OSError, HTTPException) as problem:
        reason = getattr(problem, "reason", None) or problem
        raise DataError(
            f"{url} could not be downloaded ({reason}); expected a network connection. Fetch it on another "
            f"machine, put it at {path} and call again."
        ) from None
    return path


def unpack(archive: Path, members: Mapping[str, Path], largest: int) -> None:
    """Write the named members of a tar archive to the given paths, each atomically.

    Only these are read, and paths in the archive decide nothing, so that no archive can write elsewhere;
    links and members above `largest` bytes are refused.
    """
    missing = set(members)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name not in missing:
                    continue
                if not member.isreg() or member.size > largest:
                    raise DataError(
                        f"{archive}: member {name} is no plain file of at most {largest} bytes; expected the "
                        "official archive. Delete it and download it again."
                    )
                source = tar.extractfile(member)
                assert source is not None  # plain files have contents
                with source, atomic_file(members[name]) as stream:
                    shutil.copyfileobj(source, stream, CHUNK)
                missing.discard(name)
                if not missing:
                    break
    except (tarfile.TarError, EOFError, OSError) as problem:
        raise DataError(
            f"{archive} cannot be unpacked ({problem}); expected a complete tar archive and room on the "
            "disk. Delete it and download it again."
        ) from None
    if missing:
        raise DataError(
            f"{archive} lacks {', '.join(sorted(missing))}; expected the official archive. "
            "Delete it and download it again."
        )
