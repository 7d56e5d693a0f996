"""fastbus bench paper: its flags."""

from __future__ import annotations

import argparse
from typing import Any

from fastbus.bench.results import count_flag

EXAMPLES = """
examples:
  fastbus bench paper --list
  fastbus bench paper --tiny
  fastbus bench paper --settings multi_instance --seeds 3 --images DIR --device cuda --workers 6 --time-limit 570
  fastbus bench paper --cells N_pos=250 --methods fastbus supervised --images DIR --device cuda
  fastbus bench paper --methods all --views 1500000 --set backbone=wrn_28_2 --images DIR --device cuda --workers 12
  fastbus bench paper --methods all --views 500000 --held-out 0.1 --set learning_rate=0.01 --images DIR
  fastbus bench paper --methods all --views 1500000 --tuned --images DIR
  fastbus bench paper --settings partial_label --set mixup=0.5 epochs=100 --images DIR --device cuda
  fastbus bench paper --plan night.txt --images DIR --device cuda --workers 6 --time-limit 570

Every finished run is a line of paper.jsonl in the folder --out and is not run again; what --time-limit cuts short goes
on from its checkpoint when called again; the exit code is 3 then. fastbus bench report turns the lines into a table
and a page.
"""


def add_options(parser: Any) -> None:
    add_choice(parser)
    parser.add_argument(
        "--plan", metavar="FILE", help="many choices in one call: each line has the flags above, the first ones first"
    )
    _add_circumstances(parser)


def add_choice(parser: Any) -> None:
    """Flags that say which runs are wanted."""
    parser.add_argument("--settings", nargs="+", metavar="NAME", help="these kinds of weak labels alone (default: all)")
    parser.add_argument("--dataset", nargs="+", metavar="NAME", help="these images alone (default: cifar10)")
    parser.add_argument("--cells", nargs="+", metavar="NAME", help="these cells alone, as --list shows them")
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME", help="fastbus, supervised, ... or all (default: fastbus)"
    )
    parser.add_argument("--seeds", type=count_flag, default=1, help="draws of weak labels and weights (default: 1)")
    parser.add_argument("--first-seed", type=_from_zero, default=0, help="the first of them (default: 0)")
    parser.add_argument("--set", nargs="+", metavar="NAME=VALUE", help="change entries of the recipes: an ablation")
    parser.add_argument("--views", type=count_flag, metavar="N", help="about so many views a run, whatever the method")
    parser.add_argument(
        "--tuned", action="store_true", help="each method at the learning rate that its trials with --held-out prefer"
    )
    parser.add_argument("--held-out", type=_share, help="share of the weak labels kept back (default: 0)")


def _add_circumstances(parser: Any) -> None:
    """Flags that say where and how they run."""
    parser.add_argument("--images", metavar="DIR", default="data", help="folder of the official image files")
    parser.add_argument("--data", metavar="DIR", default="../shared/data", help="folder of cifar10n.npz")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="where to train (default: cpu)")
    parser.add_argument("--workers", type=count_flag, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--threads", type=count_flag, default=1, help="threads of each on a CPU (default: 1)")
    parser.add_argument("--compile", action="store_true", help="fuse the networks' operations by torch.compile")
    parser.add_argument("--time-limit", type=count_flag, metavar="SECONDS", help="stop cleanly before so much time")
    parser.add_argument(
        "--checkpoints", metavar="DIR", default="runs/paper", help="folder of unfinished runs and scorers"
    )
    parser.add_argument("--checkpoint-every", type=float, default=60.0, metavar="SECONDS", help="default: 60")
    parser.add_argument("--out", metavar="DIR", default="results", help="folder of the results (default: results)")
    parser.add_argument("--tiny", action="store_true", help="one small cell of every setting, by default on digits")
    parser.add_argument("--list", action="store_true", help="show the cells, their recipes and what is done; run none")
    parser.add_argument(
        "--json", action="store_true", help="print the runs asked for as JSON, with --list their recipes"
    )


def run(options: Any) -> int:
    """Run what is missing and print."""
    from fastbus.bench.paper.show import show_paper

    return show_paper(options)


def _from_zero(text: str | int) -> int:
    if not str(text).isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number >= 0")
    return int(text)


def _share(text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a share below 1")
    return value
