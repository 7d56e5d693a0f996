"""Every snippet and every example table of docs/data.md works as printed."""

import re
from pathlib import Path
from typing import Any

import pytest

import fastbus
from fastbus.data import read_tables
from fastbus.supervision import REGISTRY

GUIDE = (Path(__file__).resolve().parent.parent / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### [^\n]*: `([^\n]+)`\n(.*?)(?=^##)", GUIDE, re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^(\w+\.csv)[^\n]*\n\n```csv\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_snippets_run_in_order() -> None:
    namespace: dict[str, Any] = {"__name__": "guide"}
    snippets = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(compile(snippet, "data.md", "exec"), namespace)


@pytest.mark.parametrize(("supervision", "text"), EXAMPLES)
def test_examples_can_be_read(supervision: str, text: str, tmp_path: Path) -> None:
    tables = TABLE.findall(text)
    assert len(tables) == text.count("```csv") > 0
    for name, content in tables:
        (tmp_path / name).write_text(content, encoding="utf-8")
    rule = eval(supervision, {"fastbus": fastbus})
    data = read_tables(tmp_path, supervision=rule)
    assert data.features == ("height", "width") and data.weak is not None


def test_every_supervision_has_a_row() -> None:
    rows = GUIDE.split("## Which weak columns")[1].split("##")[0]
    shipped = {name for name, kind in REGISTRY.items() if kind.__module__.startswith("fastbus.")}
    assert shipped <= set(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE))
    assert len(EXAMPLES) == GUIDE.count("\n### ")
