"""What a fit has to estimate before it can train, kept in its folder: a resumed fit goes on with the same numbers.

On a GPU an estimate may differ in its last digits when it is made again, and no run goes on under another rule.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastbus.errors import InputError
from fastbus.learner_files import build_supervision, describe_supervision
from fastbus.supervision.base import Supervision
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.noise import needs_estimate

ESTIMATE = "estimate.safetensors"


def kept_or_estimated(
    given: Supervision, folder: str | None, resumes: bool, estimate: Callable[[], Supervision], optional: bool = False
) -> Supervision:
    """The supervision with all that it needs known: itself, or as the resumed run has it, or as `estimate` says.

    optional: whether training can do without, so that it stays as it is where too little is there to estimate from.
    """
    if not needs_estimate(given):
        return given
    path = None if folder is None else Path(folder) / ESTIMATE
    if path is not None and resumes and path.is_file():
        return _read(path)
    try:
        found = estimate()
    except InputError:
        if not optional:
            raise
        return given
    tree = describe_supervision(found)
    if path is not None and found is not given and "own" not in tree:  # no file holds a rule of the caller's
        write_checkpoint({"supervision": tree}, path)
    return found


def _read(path: Path) -> Supervision:
    state = read_checkpoint(path)
    try:
        found = build_supervision(state["supervision"])
    except (KeyError, TypeError, ValueError, AttributeError):
        found = ""
    if not isinstance(found, Supervision):
        raise InputError(
            f"{path}: no estimate of a run; expected the file as fit wrote it. Start a new run, or restore the file."
        )
    return found
