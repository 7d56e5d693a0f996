"""Files of results: one JSON line a measurement, with the machine and the versions it was made on.

Several processes may add lines to one file: each holds a lock while it writes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastbus.errors import DataError

try:
    import fcntl
except ImportError:  # no locks of this kind on Windows
    fcntl = None  # type: ignore[assignment]

REPOSITORY = Path(__file__).resolve().parents[3]
CODE = ("src", "pyproject.toml")  # what decides a measurement, beside the versions that are written down
PACKAGES = ("fastbus", "torch", "numpy", "scikit-learn", "pytorch-lightning")
Record = dict[str, Any]


def circumstances(device: str = "cpu") -> Record:
    """Device, versions and commit: what is known of a measurement beside its numbers."""
    import torch

    on_gpu = device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"{_processor()}, {torch.get_num_threads()} thread(s)",
        "versions": {"python": platform.python_version()} | {name: installed(name) for name in PACKAGES},
        "commit": _commit(),
    }


def installed(package: str) -> str | None:
    """The version of a peer, None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read_lines(path: Path, fields: set[str]) -> list[Record]:
    """All records; a last line that was cut off while it was written does not count."""
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not set(record) >= fields:
            raise DataError(f"{path}, line {number}: no record of a table; expected JSON. Remove the line or the file.")
        records.append(record)
    return records


def append_record(path: Path, record: Record) -> None:
    """Add one line, on the disk before the next measurement begins."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file, _locked(file):
            _drop_torn_line(file)
            file.write(json.dumps(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise DataError(
            f"{path}: {problem.strerror or problem}; expected room for one more line. Make room, or choose another "
            "folder by --out."
        ) from None


def check_writable(path: Path) -> None:
    """Complain of a file that no line can be added to, before anything is measured; a new one stays unmade."""
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab"):
            pass
        if not existed:
            path.unlink()
    except OSError as problem:
        raise DataError(
            f"{path}: {problem.strerror or problem}; expected a file that lines can be added to. Choose another folder."
        ) from None


@contextmanager
def alone_in(folder: Path, flag: str) -> Iterator[None]:
    """Keep a folder to oneself while something runs; where another process has it, an error. A lock dies with us."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY)
    except OSError as problem:
        raise DataError(
            f"{folder}: {problem.strerror or problem}; expected a folder to write to. Choose another by {flag}."
        ) from None
    try:
        if not os.access(folder, os.W_OK):
            raise DataError(f"{folder}: read-only; expected a folder to write to. Choose another by {flag}.")
        if fcntl is not None:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(
                    f"{folder}: another call is at work there; expected one at a time. Wait for it, or choose another "
                    f"folder by {flag}."
                ) from None
        yield
    finally:
        os.close(place)


@contextmanager
def _locked(file: Any) -> Iterator[None]:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)  # closing the file opens it
    yield


def count_flag(text: str | int) -> int:
    """A flag that is a whole number from 1; the parser checks the number it has read once more."""
    value = int(text) if str(text).isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number >= 1")
    return value


def _drop_torn_line(file: Any) -> None:
    file.seek(0)
    whole = file.read().rfind(b"\n") + 1
    file.truncate(whole)


def _commit() -> str:
    """The commit of the repository, marked where code differs from it; empty outside one.

    Lines that a run adds to results are no such difference. FASTBUS_COMMIT names it where only the files are at hand.
    """
    if named := os.environ.get("FASTBUS_COMMIT"):
        return named
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return f"{commit}-dirty" if _git("status", "--porcelain", "--", *CODE) else commit
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
