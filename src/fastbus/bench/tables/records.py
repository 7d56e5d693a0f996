"""The file of results: one JSON line a number, with the machine and the versions it was measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastbus.bench.tables.entries import REPOSITORY, Entry, entry_key
from fastbus.errors import DataError

PACKAGES = ("fastbus", "torch", "numpy", "scikit-learn", "pytorch-lightning")
FIELDS = set(Entry._fields) | {"seeds"}
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


def as_record(entry: Entry, seeds: int, about: Record) -> Record:
    cell = f"{entry.data}: {entry.task}"
    return {"cell": cell, **entry._asdict(), "seeds": seeds, **about}


def key_of(record: Record) -> str:
    return entry_key(record["data"], record["task"], record["method"], record["config"], record["seeds"])


def read_records(path: Path) -> list[Record]:
    """All records; a last line that was cut off while it was written does not count."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not set(record) >= FIELDS:
            raise DataError(f"{path}, line {number}: no record of a table; expected JSON. Remove the line or the file.")
        records.append(record)
    return records


def append_record(path: Path, record: Record) -> None:
    """Add one line, on the disk before the next measurement begins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        _drop_torn_line(file)
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def newest(records: Iterable[Record], names: Iterable[str], seeds: int) -> list[Record]:
    """The last record of every number asked for, in the order of the data sets."""
    wanted = list(names)
    last: dict[tuple[str, str, str], Record] = {}
    for record in records:
        if record["data"] in wanted and record["seeds"] == seeds:
            last[record["data"], record["task"], record["method"]] = record
    return sorted(last.values(), key=lambda record: wanted.index(record["data"]))


def _drop_torn_line(file: Any) -> None:
    file.seek(0)
    whole = file.read().rfind(b"\n") + 1
    file.truncate(whole)


def _commit() -> str:
    """The commit of the repository, marked where files differ from it; empty outside one.

    FASTBUS_COMMIT names it where only the files are at hand.
    """
    if named := os.environ.get("FASTBUS_COMMIT"):
        return named
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text(encoding="utf-8").splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
