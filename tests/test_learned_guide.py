"""Every snippet of docs/learned.md works as printed, and its links lead somewhere."""

import re
from pathlib import Path

import torch

DOCS = Path(__file__).resolve().parent.parent / "docs"
GUIDE = (DOCS / "learned.md").read_text(encoding="utf-8")


def test_snippets_run_in_order() -> None:
    torch.set_num_threads(1)
    snippets = list(re.finditer(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))
    assert len(snippets) == GUIDE.count("```python") == 4
    namespace: dict[str, object] = {"__name__": "guide"}
    for snippet in snippets:
        above = GUIDE.count("\n", 0, snippet.start(1))  # so that a traceback points at the line of the guide
        exec(compile("\n" * above + snippet[1], "learned.md", "exec"), namespace)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", GUIDE)
    assert links and [link for link in links if "://" not in link and not (DOCS / link).exists()] == []
