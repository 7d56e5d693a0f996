"""A plan: a text file of many choices of runs, one a line, in the flags of the command.

# what is above goes first
--settings noisy_label --cells ratio=0.7 --held-out 0.1 --set fade=0.75 epochs=40
--settings label_proportion --seeds 3 --set coupling=independent
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any, NoReturn

from fastbus.bench.paper.command import add_choice
from fastbus.errors import InputError


class _Line(argparse.ArgumentParser):
    """Complains as the library does, naming the line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(
            f"{self.prog}: {message}; expected flags that choose runs, as on the command line. Correct it."
        )


def read_choices(path: Path) -> list[tuple[str, Any]]:
    """Where each line stands and its options; empty lines and those that begin with # are left out."""
    choices = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path}: bytes that are no UTF-8; expected a text file of flags. Save it as UTF-8.") from None
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        parser = _Line(prog=where, add_help=False, allow_abbrev=False)
        add_choice(parser)
        try:
            words = shlex.split(line, comments=True)
        except ValueError as problem:
            parser.error(str(problem))
        if words:
            choices.append((where, parser.parse_args(words)))
    if not choices:
        raise InputError(f"{path}: no line with flags; expected one at least. Write e.g. --settings semi_supervised.")
    return choices


def without_choice(options: Any) -> None:
    """A plan chooses alone: flags that choose, too, are an error."""
    parser = argparse.ArgumentParser()
    add_choice(parser)
    for name, usual in vars(parser.parse_args([])).items():
        if getattr(options, name) != usual:
            flag = name.replace("_", "-")
            raise InputError(f"--plan with --{flag}; expected one of them. Write --{flag} into the lines of the plan.")
