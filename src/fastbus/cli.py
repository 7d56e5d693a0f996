"""The command line: `fastbus <command>`, a table from names to functions.

Nothing heavy is imported before a command runs, so that `--help` answers at once. A mistake of the
user ends in one line on stderr and exit code 2, an interrupt in exit code 130.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

USER_ERROR = 2
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """A parser whose errors take one line instead of a page of usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"fastbus {version('fastbus')}")
        parser.exit()


class _Command(NamedTuple):
    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def _whole_number(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < least:
            raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number >= {least}")
        return value

    return parse


def _demo_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bags", type=_whole_number(1), default=120, help="training bags")
    parser.add_argument("--bag-size", type=_whole_number(1), default=10, help="images in each bag")
    parser.add_argument("--epochs", type=_whole_number(1), default=40, help="passes over the bags")
    parser.add_argument("--seed", type=_whole_number(0), default=0, help="split, bags and first weights")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def _demo(options: argparse.Namespace) -> None:
    from fastbus.bench.demo import show_demo

    show_demo(options.bags, options.bag_size, options.epochs, options.seed, options.json)


COMMANDS = {
    "demo": _Command("learn to read digits from label proportions alone, and compare", _demo_options, _demo),
}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="fastbus", description="Train instance classifiers from weak labels.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="<command>", required=True)
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        command.add_options(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named in `argv` (default: the process's arguments), return its exit code."""
    try:
        options = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)

    try:
        # Inside the try, because this loads torch, the longest wait a user may want to interrupt.
        from fastbus.errors import FastbusError

        try:
            options.run(options)
        except FastbusError as error:
            print(f"fastbus: {' '.join(str(error).split())}", file=sys.stderr)
            return USER_ERROR
    except KeyboardInterrupt:
        print("fastbus: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
