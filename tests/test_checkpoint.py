"""A checkpoint file is whole or refused, and the old one survives whatever interrupts the next."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from fastbus.bench.kill_runs import MOMENTS
from fastbus.training import checkpoint
from fastbus.training.checkpoint import (
    FORMAT,
    CheckpointError,
    checksum,
    read_checkpoint,
    remove_parts,
    write_atomically,
    write_checkpoint,
)

STATES: dict[str, dict[str, Any]] = {
    "empty": {},
    "numbers": {"a": 1, "b": -2.5, "c": 10**30, "d": True, "e": None, "f": "ü\n\"'", "inf": float("inf")},
    "tensors": {
        "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "none of them": torch.zeros(0, 4),
        "flags": torch.tensor([True, False]),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "transposed": torch.arange(6.0).reshape(2, 3).T,
        "nan": torch.tensor([float("nan"), float("inf")]),
    },
    "arrays": {"x": np.arange(6).reshape(2, 3), "scalar": np.array(2.5), "big-endian": np.arange(3, dtype=">i4")},
    "nested": {"l": [1, [2, (3, torch.ones(2))], {}], "t": (), "d": {"x": {"y": [torch.zeros(1)]}}},
    "keys": {"optimizer": {0: {"step": torch.tensor(1.0)}, 7: "x"}, (1, "a"): 2, "!": {"!": "tensor", "at": "x"}},
    "keys that look alike": {"a.b": torch.zeros(2), "a": {"b": torch.ones(3)}, 1: "int", "1": "str"},
    "order": {"z": 1, "a": 2, "m": {"z": 1, "b": 2}},
}


def same(left: Any, right: Any) -> bool:
    """Equal with types, order of keys, and the bits of tensors."""
    if isinstance(left, torch.Tensor):
        bits = [x.contiguous().reshape(-1).view(torch.uint8) for x in (left, right)]
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*bits)
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and left.shape == right.shape and bool(np.array_equal(left, right))
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_states_come_back_as_they_were(state: dict[str, Any], tmp_path: Path) -> None:
    write_checkpoint(state, tmp_path / "new" / "folder" / "x.safetensors")
    assert same(read_checkpoint(tmp_path / "new" / "folder" / "x.safetensors"), state)


def test_tensors_that_share_memory_come_back(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    write_checkpoint({"a": base, "b": base[2:4], "c": base}, tmp_path / "x")
    back = read_checkpoint(tmp_path / "x")
    assert same(back, {"a": base, "b": base[2:4], "c": base})
    back["a"][2] = -1
    assert back["b"][0] == 2 and base[2] == 2


class Interrupted(BaseException):
    """Not an Exception, as KeyboardInterrupt is not."""


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("first", [True, False], ids=["first write", "over an old file"])
def test_the_name_always_holds_a_whole_checkpoint(moment: str, first: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    if not first:
        write_checkpoint({"value": torch.zeros(1000)}, path)

    def stop(name: str) -> None:
        if name == moment:
            raise Interrupted

    with pytest.raises(Interrupted):
        write_checkpoint({"value": torch.ones(1000)}, path, stop)
    kept = float(read_checkpoint(path)["value"][0]) if path.is_file() else None
    assert kept == (1.0 if moment == "after the rename" else None if first else 0.0)
    assert [file.name for file in tmp_path.iterdir()] == ([] if kept is None else [path.name])


def test_every_moment_is_told_once_and_in_order(tmp_path: Path) -> None:
    told: list[str] = []
    write_checkpoint({"value": 1}, tmp_path / "x", told.append)
    assert told == [MOMENTS[-1], *MOMENTS[:-1]]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_or_failing_disk_leaves_the_old_file(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint({"value": 1}, tmp_path / "x")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, call, fail)
    with pytest.raises(CheckpointError, match=r"x: cannot be written \(.*No space left.*Pass another folder"):
        write_checkpoint({"value": 2}, tmp_path / "x")
    assert read_checkpoint(tmp_path / "x") == {"value": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_checkpoint({}, tmp_path / "file" / "x")


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    write_atomically(b"whole", tmp_path / "x")
    (tmp_path / ".x.123.part").write_bytes(b"ha")
    remove_parts(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (b"raw", "bytes"),
        (print, "builtin_function_or_method"),
        (torch.float32, "dtype"),
        (np.array(["a"]), "ndarray"),
        (np.array([None]), "ndarray"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo tensor"),
        (1j, "complex"),
    ],
)
def test_what_needs_pickle_is_refused_by_name(value: object, name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"state\.a\.1\.b: a {name} in a checkpoint; expected .* Keep other"):
        write_checkpoint({"a": [0, {"b": value}]}, tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and "; expected" in message and len(message) < 500
    return message


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    write_checkpoint({"weights": torch.arange(50.0), "epoch": 3, "names": ["a", "b"]}, path)
    return path


def test_every_truncation_is_refused(written: Path) -> None:
    data = written.read_bytes()
    for length in range(len(data)):
        written.write_bytes(data[:length])
        refused(written)
    written.write_bytes(data + b"\0")
    refused(written)


def test_every_flipped_bit_is_noticed(written: Path) -> None:
    data, state = written.read_bytes(), read_checkpoint(written)
    rng = np.random.default_rng(0)
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1 << int(rng.integers(8))
        written.write_bytes(broken)
        try:
            back = read_checkpoint(written)
        except CheckpointError:
            continue
        # a flip in padding, or in the spelling of a header's name, may change nothing that is read
        assert same(back, state), place


def forged(text: str, tensors: dict[str, torch.Tensor] | None = None, **changes: str) -> bytes:
    """A file with any JSON text, and a checksum that fits."""
    given = tensors or {"x": torch.zeros(2)}
    metadata = {"format": FORMAT, "state": text, "sha256": checksum(text, given)} | changes
    return save(given, metadata)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"hello, world\n" * 40,
    "pickle": lambda: pickle.dumps({"state_dict": [1, 2]}),
    "a pickle that would run": lambda: b"cos\nsystem\n(S'touch /tmp/fastbus-was-here'\ntR.",
    "a zip": lambda: b"PK\x03\x04" + bytes(200),
    "a header of 2^63 bytes": lambda: b"\xff" * 8 + b"{}",
    "a header that is no JSON": lambda: (20).to_bytes(8, "little") + b"{" * 20,
    "a header that is a list": lambda: (2).to_bytes(8, "little") + b"[]",
    "foreign": lambda: save({"x": torch.zeros(2)}),
    "another format": lambda: forged("{}", format="fastbus-checkpoint-0"),
    "no checksum": lambda: save({"x": torch.zeros(2)}, {"format": FORMAT, "state": "{}"}),
    "no state": lambda: save({"x": torch.zeros(2)}, {"format": FORMAT, "sha256": "0"}),
    "wrong checksum": lambda: forged("{}", sha256="0" * 64),
    "a list": lambda: forged("[]"),
    "a number": lambda: forged("3"),
    "a tuple": lambda: forged('{"!": "tuple", "of": []}'),
    "no JSON": lambda: forged("{'a': 1}"),
    "deep JSON": lambda: forged("[" * 100_000 + "]" * 100_000),
    "a number of 5,000 digits": lambda: forged('{"a": ' + "9" * 5000 + "}"),
    "a missing tensor": lambda: forged('{"a": {"!": "tensor", "at": "y"}}'),
    "a tensor without a name": lambda: forged('{"a": {"!": "tensor"}}'),
    "a tensor named by a list": lambda: forged('{"a": {"!": "tensor", "at": ["x"]}}'),
    "an unknown entry": lambda: forged('{"a": {"!": "call", "of": "os.system"}}'),
    "an entry that is a list": lambda: forged('{"a": {"!": [1]}}'),
    "a tuple of a number": lambda: forged('{"a": {"!": "tuple", "of": 3}}'),
    "a dict of single entries": lambda: forged('{"a": {"!": "dict", "of": [[1]]}}'),
    "a dict with a list for a key": lambda: forged('{"a": {"!": "dict", "of": [[[1], 2]]}}'),
    "an array that numpy lacks": lambda: forged(
        '{"a": {"!": "array", "at": "x"}}', {"x": torch.zeros(2, dtype=torch.bfloat16)}
    ),
    "half a surrogate": lambda: save(
        {"x": torch.zeros(1)}, {"format": FORMAT, "state": '{"a": "\\ud800"', "sha256": ""}
    ),
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files_are_refused_in_one_line(make: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(make())
    refused(path)
    assert not Path("/tmp/fastbus-was-here").exists()


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "nothing")
    assert "no such file" in refused(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_are_refused(written: Path) -> None:
    written.chmod(0)
    refused(written)


def test_the_state_is_plain_json(written: Path) -> None:
    data = written.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"]["format"] == FORMAT
    assert json.loads(header["__metadata__"]["state"])["names"] == ["a", "b"]
