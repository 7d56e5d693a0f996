"""The folder of a run: what is needed to go on with it, and what it leaves.

config.yaml      the flags of the fit, paths relative to the folder; `fastbus fit --config` takes it again
data.json        features, classes, and a fingerprint of every data file
environment.json versions, machine and threads
estimate.safetensors, pretrained.safetensors   where a fit needs them: what it finds out before it trains
checkpoint.safetensors, metrics.jsonl   after every epoch
model.safetensors, model.json           the classifier
summary.json     written last: the run is finished
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import yaml

from fastbus.data.dataset import WeakData
from fastbus.data.readers import SUFFIXES
from fastbus.errors import DataError, InputError
from fastbus.learner_estimates import ESTIMATE
from fastbus.training.checkpoint import write_atomically
from fastbus.training.fit import CHECKPOINT, METRICS
from fastbus.training.pretrain_fit import PRETRAINED

CONFIG, DATA, ENVIRONMENT, SUMMARY = "config.yaml", "data.json", "environment.json", "summary.json"
MODEL, MODEL_JSON, REPORT, NUMBERS = "model.safetensors", "model.json", "report.html", "report.json"
TRAINED = (SUMMARY, REPORT, NUMBERS, MODEL, MODEL_JSON, CHECKPOINT, METRICS, ESTIMATE, PRETRAINED)
FILES = (*TRAINED, DATA, ENVIRONMENT, CONFIG)
FORMAT = "fastbus-run-1"
TABLES = ("instances", "bags", "answers")


def check_folder(run: Path, force: bool) -> None:
    """Refuse a folder that holds a run, unless `force` may replace it, or anything else."""
    if run.exists() and not run.is_dir():
        raise InputError(f"--out {run} is a file; expected a folder for the run. Name another.")
    if not run.is_dir():
        return
    strangers = [path for path in run.iterdir() if path.name not in FILES and path.suffix != ".part"]
    if strangers and not (run / CONFIG).exists():
        raise InputError(f"--out {run} holds {strangers[0].name!r}; expected a new or empty folder. Name another.")
    if (run / SUMMARY).exists() and not force:
        raise InputError(f"--out {run} holds a finished run; expected a new folder. Pass --force to replace it.")
    if (run / CONFIG).exists() and not force:
        raise InputError(
            f"--out {run} holds an unfinished run; expected a new folder. Go on with: fastbus resume {run}, or pass "
            "--force to start anew."
        )


def clear_folder(run: Path) -> None:
    """Remove the files of an old run, the sign that it is finished first."""
    for name in FILES:
        (run / name).unlink(missing_ok=True)


def remove_unstarted(run: Path) -> None:
    """Leave no folder of a run that was refused before its first checkpoint: there is nothing to resume."""
    if not (run / CHECKPOINT).exists() and not (run / PRETRAINED).exists():
        clear_folder(run)
        with contextlib.suppress(OSError):  # what others have put there stays
            run.rmdir()


def fingerprint(path: Path) -> str:
    """SHA-256 of a file; of a folder, of its tables and of the names and sizes of all else."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        if file != path:
            digest.update(f"{file.relative_to(path).as_posix()}|{file.stat().st_size}|".encode())
        if file == path or file.suffix.lower() in SUFFIXES:
            with open(file, "rb") as source:
                while block := source.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def write_start(run: Path, settings: dict[str, Any], data: WeakData, threads: int) -> None:
    """Everything that `resume` needs, before training begins; the config last, since it makes the folder a run."""
    files = {name: Path(settings[name]) for name in TABLES if settings.get(name)}
    run.mkdir(parents=True, exist_ok=True)
    kept = dict(settings)
    for name in (*TABLES, "images"):
        if settings.get(name):
            kept[name] = Path(os.path.relpath(settings[name], run)).as_posix()
    facts = {
        "format": FORMAT,
        "features": list(data.features),
        "classes": None if data.classes is None else list(data.classes),
        "files": {name: fingerprint(path) for name, path in files.items()},
    }
    write_json(run / ENVIRONMENT, _environment(threads))
    write_json(run / DATA, facts)
    shown = {name: value for name, value in kept.items() if value is not None}
    write_atomically(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True).encode(), run / CONFIG)


def _environment(threads: int) -> dict[str, Any]:
    from importlib.metadata import version

    names = ("fastbus", "torch", "numpy", "scikit-learn", "pytorch-lightning")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": threads,
        "packages": {name: version(name) for name in names},
    }


def write_json(path: Path, value: Any) -> None:
    write_atomically((json.dumps(value, indent=2) + "\n").encode(), path)


# -- reading ----------------------------------------------------------------------------------------


def read_run(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Facts about the data and environment of a run; whatever `fit` did not write is refused."""
    if not run.is_dir():
        raise InputError(f"{run} is no folder; expected that of a run. Check the path.")
    if not (run / CONFIG).is_file():
        raise InputError(
            f"{run} holds no {CONFIG}; expected the folder of a run that fastbus fit made. Check the path."
        )
    facts = _mapping(run / DATA)
    if facts.get("format") != FORMAT:
        raise InputError(f"{run / DATA}: format {facts.get('format')!r}; expected {FORMAT!r}. Start a new run.")
    texts = facts.get("features"), facts.get("classes")
    for key, value in zip(("features", "classes"), texts, strict=True):
        good = isinstance(value, list) and all(isinstance(name, str) for name in value)
        if not good and not (key == "classes" and value is None):
            raise InputError(f"{run / DATA}: {key} {str(value)[:60]!r}; expected a list of names. Start a new run.")
    files = facts.get("files")
    if not isinstance(files, dict) or not all(name in TABLES and isinstance(files[name], str) for name in files):
        raise InputError(f"{run / DATA}: files {str(files)[:60]!r}; expected their fingerprints. Start a new run.")
    environment = _mapping(run / ENVIRONMENT)
    threads = environment.get("threads")
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 4096:
        raise InputError(f"{run / ENVIRONMENT}: threads {threads!r}; expected a whole number from 1. Start a new run.")
    return facts, environment


def read_finished(run: Path) -> dict[str, Any]:
    """Facts about the data of a run that has a classifier to predict with."""
    facts, _ = read_run(run)
    if not (run / MODEL).is_file() and not (run / SUMMARY).is_file():
        raise InputError(f"{run} is unfinished; expected a trained run. Go on with: fastbus resume {run}.")
    return facts


def _mapping(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path} is missing; expected it beside the run. Start a new run.")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as problem:
        reason = " ".join(str(problem).split())[:120]
        raise InputError(f"{path} cannot be read ({reason}); expected JSON. Start a new run.") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} holds a {type(value).__name__}; expected names and values. Start a new run.")
    return value


def check_files(run: Path, places: dict[str, str | None], facts: dict[str, Any]) -> None:
    """Refuse data files that are gone or changed since the run began."""
    for name, known in facts["files"].items():
        place = places.get(name)
        if place is None or not (path := Path(place)).exists():
            raise DataError(
                f"{place!r}, the {name} of the run {run}, is not there; expected it where it was, seen from the "
                "run. Put it back."
            )
        if fingerprint(path) != known:
            raise DataError(
                f"{path} has changed since the run {run} began; expected the same data. Restore it, or start a new run."
            )
