"""fastbus bench tables: its flags."""

from __future__ import annotations

from typing import Any

from fastbus.bench.results import count_flag

EXAMPLES = """
examples:
  fastbus bench tables
  fastbus bench tables --only musk1 lost --seeds 3 --data ../shared/data --json

Every number is kept in tables.jsonl in the folder --out, and is not measured again; tables.md there shows them all.
"""


def add_options(parser: Any) -> None:
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these data sets alone (default: all)")
    parser.add_argument("--seeds", type=count_flag, default=5, help="repeats, other shuffles and weights (default: 5)")
    parser.add_argument("--data", metavar="DIR", help="folder with the npz files (default: ../shared/data)")
    parser.add_argument("--out", metavar="DIR", default="results", help="folder of the results (default: results)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--again", action="store_true", help="measure anew what the results hold already")


def run(options: Any) -> None:
    """Measure and print."""
    from pathlib import Path

    from fastbus.bench.tables.run import show_tables

    show_tables(options.only, options.seeds, options.data, Path(options.out), options.json, options.again)
