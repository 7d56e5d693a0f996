"""The page of methods: a table made from the registry. `python -m fastbus.methods.table docs/methods.md` renews it."""

from __future__ import annotations

import sys
from pathlib import Path

from fastbus.errors import InputError
from fastbus.methods.registry import NEEDS, Method, get_method, method_names

START, END = "<!-- table of methods: made from the registry -->\n", "<!-- end of the table of methods -->\n"


def methods_table() -> str:
    """Every method in a Markdown table: what it serves, what it must be told, whence it comes, how ours differs."""
    lines = [
        "| `--method` | method | weak labels | classes | must be told | reference | what differs here |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in method_names():
        method = get_method(name)
        settings = ", ".join(f"`{setting}`" for setting in method.settings)
        told = ", ".join(f"`{need}`: {NEEDS[need][0]}{_where(method, need)}" for need in NEEDS if _needed(method, need))
        options = ", ".join(f"`{option}` (may)" for option in method.extra)
        cells = (
            f"`{name}`",
            method.title,
            settings,
            "2" if method.binary else "any",
            ", ".join(part for part in (told, options) if part) or "nothing",
            method.reference,
            method.differs,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _needed(method: Method, need: str) -> list[str]:
    """The settings in which the method has the need."""
    return [setting for setting in method.settings if need in method.needed(setting)]


def _where(method: Method, need: str) -> str:
    """Which settings those are, where they are not all."""
    settings = _needed(method, need)
    return "" if len(settings) == len(method.settings) else f" ({', '.join(f'`{setting}`' for setting in settings)})"


def renewed(page: str) -> str:
    """The page with its table made anew."""
    if page.count(START) != 1 or page.count(END) != 1:
        raise InputError(f"a page without the marks {START.strip()} and {END.strip()}; expected each once. Add them.")
    before, rest = page.split(START)
    return before + START + methods_table() + END + rest.split(END)[1]


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
