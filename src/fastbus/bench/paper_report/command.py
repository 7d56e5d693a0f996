"""fastbus bench report: its flags."""

from __future__ import annotations

from typing import Any

EXAMPLES = """
examples:
  fastbus bench report
  fastbus bench report --results results --dataset cifar10

Reads paper.jsonl of the folder and writes paper.md and paper.html beside it, of some cells alone pages that are named
by them. Cells without runs are shown as such.
"""


def add_options(parser: Any) -> None:
    parser.add_argument("--results", metavar="DIR", default="results", help="folder of paper.jsonl (default: results)")
    parser.add_argument("--dataset", nargs="+", metavar="NAME", help="cells of these images alone (default: all)")
    parser.add_argument("--settings", nargs="+", metavar="NAME", help="these settings alone (default: all)")


def run(options: Any) -> None:
    """Write both and say where."""
    from pathlib import Path

    from fastbus.bench.paper_report.write import write_paper_report

    for path in write_paper_report(Path(options.results), options.settings, options.dataset):
        print(path)
