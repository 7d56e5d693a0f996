"""Checkpoints: one safetensors file, written atomically, verified by checksum, free of pickle.

Tensors lie in the file as they are; everything else (numbers, strings, lists, tuples, dicts) lies as JSON in
its header, with a SHA-256 over both. A file is written beside its place, flushed to the disk and renamed, so
that the name always holds a whole checkpoint: the old one or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbus.errors import FastbusError

FORMAT = "fastbus-checkpoint-1"
# called with the name of each moment of a write; tests of interrupted writes listen here
Moment = Callable[[str], None]


class CheckpointError(FastbusError, ValueError):
    """A checkpoint cannot be written, or what is read is no whole checkpoint."""


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:200] or type(problem).__name__


def _silent(moment: str) -> None:
    return None


def encode(state: object, tensors: dict[str, Tensor], path: str = "state") -> Any:
    """The JSON tree of a nested state; its tensors are moved to `tensors` under their path."""
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    if isinstance(state, Tensor) and state.layout == torch.strided:
        return {"!": "tensor", "at": _keep(state.detach().cpu().contiguous().clone(), tensors, path)}
    if isinstance(state, np.ndarray) and state.dtype.kind in "biufc":
        return {"!": "array", "at": _keep(torch.from_numpy(state.astype(state.dtype.newbyteorder("="))), tensors, path)}
    if isinstance(state, np.generic) and state.dtype.kind in "biuf":
        return state.item()
    if isinstance(state, (list, tuple)):
        parts = [encode(part, tensors, f"{path}.{i}") for i, part in enumerate(state)]
        return parts if isinstance(state, list) else {"!": "tuple", "of": parts}
    if isinstance(state, dict):
        pairs = [(encode(key, tensors, path), encode(value, tensors, f"{path}.{key}")) for key, value in state.items()]
        if all(isinstance(key, str) and key != "!" for key in state):
            return dict(pairs)
        return {"!": "dict", "of": pairs}
    kind = f"{state.layout} tensor" if isinstance(state, Tensor) else type(state).__name__
    raise CheckpointError(
        f"{path}: a {kind} in a checkpoint; expected dense tensors, numbers, strings, lists, tuples and dicts. Keep "
        "other objects out of the state: they could only be pickled."
    )


def _keep(tensor: Tensor, tensors: dict[str, Tensor], path: str) -> str:
    """Store a tensor under its path; keys with dots in them may have taken it."""
    while path in tensors:
        path += "'"
    tensors[path] = tensor
    return path


def decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The nested state of a JSON tree and its tensors."""
    if isinstance(tree, list):
        return [decode(part, tensors) for part in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get("!")
    if kind is None:
        return {key: decode(value, tensors) for key, value in tree.items()}
    if kind == "tensor":
        return tensors[tree["at"]]
    if kind == "array":
        return tensors[tree["at"]].numpy()
    if kind == "tuple":
        return tuple(decode(part, tensors) for part in tree["of"])
    if kind == "dict":
        return {decode(key, tensors): decode(value, tensors) for key, value in tree["of"]}
    raise KeyError(f"unknown entry {kind!r}")


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 over the JSON text and every tensor with its name, type and shape."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_checkpoint(state: dict[str, Any], path: str | Path, moment: Moment = _silent) -> None:
    """Write a nested state so that `path` holds either the old checkpoint or the whole new one."""
    from safetensors import SafetensorError
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    text = json.dumps(encode(state, tensors))
    metadata = {"format": FORMAT, "state": text, "sha256": checksum(text, tensors)}
    try:
        data = save(tensors, metadata)
    except (SafetensorError, KeyError, ValueError) as problem:
        kinds = ", ".join(sorted({str(tensor.dtype) for tensor in tensors.values()}))
        raise CheckpointError(
            f"tensors of {kinds} ({_one_line(problem)}); expected types that safetensors has. Convert the others."
        ) from None
    write_atomically(data, Path(path), moment)


def write_atomically(data: bytes, path: Path, moment: Moment = _silent) -> None:
    """Write bytes beside `path`, flush them to the disk, and rename."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        moment("before the temporary file")
        try:
            with open(part, "wb") as file:
                file.write(data[: len(data) // 2])
                file.flush()
                moment("within the temporary file")
                file.write(data[len(data) // 2 :])
                file.flush()
                moment("after the temporary file")
                os.fsync(file.fileno())
            moment("before the rename")
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        moment("after the rename")
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as problem:
        raise CheckpointError(
            f"{path}: cannot be written ({_one_line(problem)}); expected a folder with room and permission. Pass "
            "another folder, or make room."
        ) from problem


def remove_parts(folder: Path) -> None:
    """Remove what a killed process has left half-written in a folder."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The state of a checkpoint, verified; anything else than a whole one is refused."""
    from safetensors import SafetensorError, safe_open

    where = Path(path)
    if not where.is_file():
        raise CheckpointError(f"{where}: no such file; expected a checkpoint. Check the path of the run.")
    try:
        with safe_open(where, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("format") != FORMAT:
            raise CheckpointError(
                f"{where}: a safetensors file of format {metadata.get('format')!r}; expected {FORMAT!r}. "
                "Pass a checkpoint that this library wrote."
            )
        text = metadata["state"]
        if checksum(text, tensors) != metadata["sha256"]:
            raise CheckpointError(
                f"{where}: the checksum does not match; expected an intact checkpoint. Take an older copy."
            )
        if not isinstance(state := decode(json.loads(text), tensors), dict):
            raise CheckpointError(f"{where}: holds a {type(state).__name__}; expected a state. Take an older copy.")
    except CheckpointError:
        raise
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as problem:
        raise CheckpointError(
            f"{where}: no readable checkpoint ({_one_line(problem)}); expected a whole safetensors file. Take an older "
            "copy."
        ) from None
    return state
