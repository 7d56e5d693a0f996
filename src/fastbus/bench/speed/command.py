"""fastbus bench speed: its flags."""

from __future__ import annotations

import argparse
from typing import Any

EXAMPLES = """
examples:
  fastbus bench speed --quick
  fastbus bench speed --only label_proportion growth
  fastbus bench speed --device cuda --train --images DIR

Records are kept in speed-<device>.jsonl in the folder --out, beside a page (.md) and a picture of growth (.png);
what is measured again replaces what was there. docs/speed.md says how to read them.
"""


def _seconds(text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}, expected seconds >= 0")
    return value


def add_options(parser: Any) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to solve (default: cpu)")
    parser.add_argument("--quick", action="store_true", help="a few cells and sizes, in less than a minute")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cells, groups, growth or training alone")
    parser.add_argument("--train", action="store_true", help="also time training steps beside supervised ones")
    parser.add_argument("--images", metavar="DIR", help="folder of the official CIFAR-10 files, for --train")
    late = "leave a peer's loop out where a run takes longer (default: 10, on cuda 1, with --quick .5)"
    parser.add_argument("--patience", type=_seconds, metavar="SECONDS", help=late)
    rival = "Python file with lprop and mil; without it our own equal code"
    parser.add_argument("--yardstick", metavar="FILE", default="../shared/bench/yardstick.py", help=rival)
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--out", metavar="DIR", default="results", help="folder of the results (default: results)")
    parser.add_argument("--json", action="store_true", help="print the records as JSON instead")


def run(options: Any) -> None:
    """Measure and print."""
    from fastbus.bench.speed.run import show_speed

    show_speed(options)
