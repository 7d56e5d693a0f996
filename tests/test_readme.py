"""Every Python snippet and every command of the README works as printed; its links and those of the guides lead on."""

import re
from pathlib import Path

import pytest

from fastbus.supervision import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_snippets_run_in_order() -> None:
    snippets = list(SNIPPET.finditer(README))
    assert len(snippets) == README.count("```python")
    assert len(snippets) >= 4
    namespace: dict[str, object] = {"__name__": "readme"}
    for snippet in snippets:
        # Blank lines in front make a traceback point at the line of the README.
        above = README.count("\n", 0, snippet.start(1))
        code = compile("\n" * above + snippet[1], "README.md", "exec")
        exec(code, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    mentioned = set(re.findall(r"`make ([a-z]+)`", text)) | set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE))
    assert mentioned <= targets
    assert page.name != "README.md" or {"run", "test"} <= mentioned


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert missing == []


def test_catalogue_is_the_registry() -> None:
    table = README.split("## The catalogue", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE)
    # Other tests may have registered kinds of their own.
    shipped = [name for name, kind in REGISTRY.items() if kind.__module__.startswith("fastbus.")]
    assert sorted(listed) == sorted(shipped)
