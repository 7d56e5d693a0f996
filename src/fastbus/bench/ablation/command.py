"""fastbus bench ablation: its flags."""

from __future__ import annotations

from typing import Any

from fastbus.bench.results import count_flag

EXAMPLES = """
examples:
  fastbus bench ablation --only 'digits proportions' 'digits bags' --seeds 3
  fastbus bench ablation --only 'cifar10 proportions' --images DIR --device cuda --workers 8

Every run is kept in ablation.jsonl in the folder --out, and is not run again; ablation.md there shows them all.
"""


def add_options(parser: Any) -> None:
    parser.add_argument("--only", nargs="+", metavar="CELL", help="these cells alone (default: all)")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="these methods alone (default: all that apply)")
    parser.add_argument("--seeds", type=count_flag, default=3, help="draws, splits and first weights (default: 3)")
    parser.add_argument("--epochs", type=count_flag, help="passes over the bags (default: the cell's)")
    parser.add_argument("--images", metavar="DIR", default="data", help="folder of the official image files")
    parser.add_argument("--data", metavar="DIR", default="../shared/data", help="folder of the multi-label sets")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to train (default: cpu)")
    parser.add_argument("--workers", type=count_flag, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--out", metavar="DIR", default="results", help="folder of the results (default: results)")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON instead")


def run(options: Any) -> None:
    """Run and print."""
    from fastbus.bench.ablation.run import show_ablation

    show_ablation(options)
