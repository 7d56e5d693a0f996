"""The command line: `fastbus <command>`, a table from names to the modules of the commands.

Nothing heavy is imported before a command runs, so that `--help` answers at once. A mistake of the
user ends in one line on stderr and exit code 2, an interrupt in exit code 130.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from jsonargparse import ArgumentParser

from fastbus.commands import bench, check, fit, infer, predict, show
from fastbus.commands.parser import USER_ERROR, ConfigError, Parser, expand_config, in_flags

INTERRUPTED = 130


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"fastbus {version('fastbus')}")
        parser.exit()


class _Command(NamedTuple):
    help: str
    add_options: Callable[[ArgumentParser], None]
    run: Callable[[Any], int | None]  # the exit code, None for 0
    examples: str = ""


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


def _demo_options(parser: ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these kinds of weak labels alone (default: all)")
    parser.add_argument("--seed", type=_whole_number(0), default=0, help="split, weak labels and first weights")
    parser.add_argument("--seeds", type=_whole_number(1), default=1, help="so many from --seed on; their mean ± std")
    parser.add_argument("--epochs", type=_whole_number(1), default=None, help="passes over the images (default: 30)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def _demo(options: Any) -> None:
    from fastbus.bench.demo import show_demo

    show_demo(options.only, options.seed, options.epochs, options.json, options.seeds)


COMMANDS = {
    "demo": _Command("learn to read digits from every kind of weak label, and compare", _demo_options, _demo),
    "fit": _Command(fit.HELP, fit.add_options, fit.run, fit.EXAMPLES),
    "resume": _Command(fit.RESUME_HELP, fit.add_resume_options, fit.resume, fit.RESUME_EXAMPLES),
    "predict": _Command(predict.HELP, predict.add_options, predict.run, predict.EXAMPLES),
    "infer": _Command(infer.HELP, infer.add_options, infer.run, infer.EXAMPLES),
    "check": _Command(check.HELP, check.add_options, check.run, check.EXAMPLES),
    "show": _Command(show.HELP, show.add_options, show.run, show.EXAMPLES),
    "bench": _Command(bench.HELP, bench.add_options, bench.run, bench.EXAMPLES),
}


def _command_parser(name: str) -> Parser:
    command = COMMANDS[name]
    parser = Parser(
        prog=f"fastbus {name}",
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        epilog=command.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_options(parser)
    return parser


def _parser() -> Parser:
    """The parser of the first word; the flags after it belong to the command."""
    lines = [f"  {name:<9} {command.help}" for name, command in COMMANDS.items()]
    parser = Parser(
        prog="fastbus",
        usage="fastbus <command> [flags]",
        description="Train instance classifiers from weak labels.",
        epilog="\n".join(["commands (fastbus <command> --help says more):", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("command", metavar="<command>", choices=list(COMMANDS), help=argparse.SUPPRESS)
    return parser


def _options(argv: Sequence[str]) -> tuple[_Command, Any]:
    """The command and its options; SystemExit where they cannot be understood."""
    if not argv or argv[0] not in COMMANDS:
        parser = _parser()
        if not argv:
            parser.error(f"no <command>; expected one of {', '.join(COMMANDS)}")
        parser.parse_args(argv)
        parser.error(f"{argv[0]} before the <command>; expected it after")
    parser = _command_parser(argv[0])
    try:
        flags = expand_config(argv[1:], parser)
    except ConfigError as problem:
        print(f"fastbus: {problem}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from None
    return COMMANDS[argv[0]], parser.parse_args(flags)


@contextmanager
def _warnings_in_words(options: dict[str, Any]) -> Iterator[None]:
    """What a user should know is a line like a mistake's; the place in the code says nothing to who wrote none."""
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, UserWarning):
            print(f"fastbus: warning: {in_flags(str(message), options)}", file=sys.stderr)
        else:
            before(message, category, *place, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named in `argv` (default: the process's arguments), return its exit code."""
    try:
        command, options = _options(sys.argv[1:] if argv is None else list(argv))
        # Inside the try, because this loads torch, the longest wait a user may want to interrupt.
        from fastbus.errors import FastbusError

        try:
            with _warnings_in_words(vars(options)):
                return command.run(options) or 0
        except FastbusError as error:
            print(f"fastbus: {in_flags(str(error), vars(options))}", file=sys.stderr)
            return USER_ERROR
        except BrokenPipeError:  # whoever read along, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
            return 0
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            print(f"fastbus: {place}{error.strerror or error}. Check the path and its permissions.", file=sys.stderr)
            return USER_ERROR
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt as stop:
        print(f"fastbus: {stop if str(stop) else 'interrupted'}", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
