"""fastbus bench: measurements by name, each a module that is loaded only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser

from fastbus.commands.parser import Parser


class _Suite(NamedTuple):
    help: str
    module: str  # with add_options(parser), run(options) and EXAMPLES


SUITES = {
    "tables": _Suite(
        "real small data sets beside baselines, peers and published figures", "fastbus.bench.tables.command"
    ),
    "ablation": _Suite("what the learned network adds to exact inference", "fastbus.bench.ablation.command"),
    "paper": _Suite("the paper's experiments on images, cell by cell", "fastbus.bench.paper.command"),
    "report": _Suite(
        "the runs of bench paper as a table and a page, beside the paper's figures",
        "fastbus.bench.paper_report.command",
    ),
    "speed": _Suite("seconds of the E-step beside plain torch and device ceilings", "fastbus.bench.speed.command"),
}
HELP = "measure on real data, beside baselines and published figures"
EXAMPLES = "\n".join(
    ["measurements (fastbus bench <name> --help says more):"]
    + [f"  {name:<9} {suite.help}" for name, suite in SUITES.items()]
)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("suite", metavar="<name>", nargs="?", choices=list(SUITES), help="what to measure")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def run(options: Any) -> int | None:
    """Parse the flags of the measurement and run it."""
    if options.suite is None:
        Parser(prog="fastbus bench").error(f"no <name>; expected one of {', '.join(SUITES)}")
    suite = SUITES[options.suite]
    module = importlib.import_module(suite.module)
    parser = Parser(
        prog=f"fastbus bench {options.suite}",
        description=f"{suite.help[0].upper()}{suite.help[1:]}.",
        epilog=module.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    code: int | None = module.run(parser.parse_args(list(options.flags or [])))
    return code
