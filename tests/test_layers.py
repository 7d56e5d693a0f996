"""The house keeps its shape: layers look down only, files stay short, imports stay light."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "fastbus"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 400

# Lowest first; the members of one layer do not see each other.
LAYERS = (
    {"spelling"},
    {"errors"},
    {"numerics"},
    {"bag_layout"},
    {"bags", "crowd_sampling"},
    {"supervision"},
    {"inference", "crowds"},
    {"prediction_queue", "oracle_definitions", "loss_weights"},
    {"objective"},
    {"oracle"},
    {"testing_examples"},
    {"testing"},
    {"models", "data"},
    {"training"},
    {"methods"},
    {"learner_inputs", "learner_plugs"},
    {"learner_files", "learner_export", "learner_defaults", "learner_check", "bag_folds"},
    {"learner_answers", "learner_images", "learner_estimates"},
    {"learner"},
    {"report"},
    {"bench"},
    {"commands"},
    {"cli"},
)
RANK = {unit: rank for rank, units in enumerate(LAYERS) for unit in units}
# The enumeration, and the contract of a rule that leans on it, know nothing of training.
FORBIDDEN = {("testing", "objective"), ("oracle", "objective")}
OPTIONAL = ("sklearn", "rich", "jsonargparse", "pytorch_lightning", "lightning", "matplotlib")
OPTIONAL += ("pyarrow", "torchmetrics", "pandas")


def imported_units(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and unit (first name below `fastbus`, "" for the package itself) of each import.

    `package` holds the parts of the package the source lives in, e.g. ("fastbus", "bench").
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            # `from fastbus import bags` names a unit, `from fastbus.bags import Bags` a member.
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "fastbus":
                yield node.lineno, target[1] if len(target) > 1 else ""


def violations(unit: str, source: str, package: tuple[str, ...]) -> list[str]:
    """What the source of a module of `unit` imports without being allowed to."""
    found = []
    for line, target in imported_units(source, package):
        if target == unit:
            continue
        if target not in RANK:
            found.append(f"line {line}: import from the defining module, not the package")
        elif RANK[target] >= RANK[unit] or (unit, target) in FORBIDDEN:
            found.append(f"line {line}: {unit} must not import {target}")
    return found


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_look_down(path: Path) -> None:
    unit = unit_of(path)
    if unit == "__init__":
        return  # it gathers the public names of every layer
    assert unit in RANK, f"{name_of(path)} has no layer: give it one in LAYERS"
    package = ("fastbus", *path.relative_to(PACKAGE).parts[:-1])
    assert violations(unit, path.read_text(encoding="utf-8"), package) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    ("unit", "source", "package"),
    [
        ("bags", "from fastbus.inference.chain import run", ("fastbus",)),
        ("bags", "def late():\n    import fastbus.cli", ("fastbus",)),
        ("supervision", "from ..inference import chain", ("fastbus", "supervision")),
        ("supervision", "from .. import inference", ("fastbus", "supervision")),
        ("models", "from fastbus import data", ("fastbus", "models")),
        ("testing", "from fastbus.objective import WeakLoss", ("fastbus",)),
        ("bench", "import fastbus", ("fastbus", "bench")),
        ("bench", "from fastbus import infer", ("fastbus", "bench")),
    ],
)
def test_looking_up_is_caught(unit: str, source: str, package: tuple[str, ...]) -> None:
    assert len(violations(unit, source, package)) == 1


@pytest.mark.parametrize(
    ("unit", "source", "package"),
    [
        ("supervision", "from .base import Supervision", ("fastbus", "supervision")),
        ("supervision", "from ..bags import Bags", ("fastbus", "supervision")),
        ("supervision", "from fastbus import errors", ("fastbus", "supervision")),
        ("testing", "from fastbus.oracle import enumerate_labels", ("fastbus",)),
        ("cli", "import fastbus.bench.demo\nimport torch", ("fastbus",)),
    ],
)
def test_looking_down_is_allowed(unit: str, source: str, package: tuple[str, ...]) -> None:
    assert violations(unit, source, package) == []


def test_importing_the_library_stays_light() -> None:
    # The names are touched as well, because the package loads its modules on first use.
    code = (
        "import sys, torch; before = set(sys.modules); import fastbus\n"
        "fastbus.infer, fastbus.WeakLoss, fastbus.Supervision\n"
        f"print(*sorted(set({OPTIONAL!r}) & (set(sys.modules) - before)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []
