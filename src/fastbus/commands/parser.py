"""Flags of the command line: a parser with one-line errors, and configs that merge with flags.

A config (`--config run.yaml`) holds flags by their names. It is turned into flags that stand before those of the
user, so that both are checked in the same way and the user's win. Paths in a config are relative to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser

from fastbus.spelling import did_you_mean, nearest

USER_ERROR = 2
PATHS = ("instances", "bags", "answers", "images", "out", "bags_out", "run", "predictions")
SEVERAL = ("option", "train_option", "method_option")  # flags that are given once for each of their names


class Parser(ArgumentParser):
    """A parser whose errors take one line instead of a page of usage, and whose flags are written out."""

    def __init__(self, **options: Any) -> None:
        # else --bag, of another command, would pass for --bags here
        super().__init__(**{"allow_abbrev": False} | options)

    def error(self, message: str, *_: Any) -> NoReturn:
        program = " ".join(word for word in self.prog.split() if word != "[options]")
        meant = self._meant(message)
        see = f"; did you mean {meant}? See" if meant else "; see"
        self.exit(USER_ERROR, f"fastbus: {one_line(message)}{see} {program} --help\n")

    def _meant(self, message: str) -> str | None:
        """The flag or name that was perhaps meant, where the message complains of an unknown one."""
        if found := re.search(r"unrecognized arguments:.*?(?<!\S)(--?\w[\w-]*)", message, re.IGNORECASE):
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            return nearest(found[1], flags)
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            return nearest(found[1], re.findall(r"[\w-]+", found[2]))
        return None


def one_line(message: str) -> str:
    """A message of the parser in the words of the command line."""
    text = " ".join(message.split())
    text = re.sub(r'Parser key "(?:\w+\.)?(\w+)":', lambda found: f"--{found[1].replace('_', '-')}:", text)
    text = text.replace("<class 'int'>", "whole number").replace("<class 'float'>", "number")
    return text.rstrip(".")


def in_flags(message: str, known: Collection[str] = ()) -> str:
    """A message of the library in one line, with flags for the options that it names for Python.

    known: names of the command's flags, with underscores; what it has no flag for stays as it is.
    """
    text = " ".join(message.split()) + " "
    if "ignore" not in known:
        text = text.replace(", or leave the column out with ignore=.", ".")
    if "method_option" in known:
        text = re.sub(r"(expected |, e\.g\. )(prior|noise_rate)=", r"\1--method-option \2=", text)
    text = text.replace("classes=[...]", "classes=a,b,c")

    def flag(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"] or ""
        if name not in known:
            return found[0]
        return f"--{name.replace('_', '-')}" + (f" {value.strip(chr(34))}" if value else "")

    def left_out(found: re.Match[str]) -> str:
        name = found["name"]
        return f"{found['leave']} --{name.replace('_', '-')} out" if name in known else found[0]

    text = re.sub(r"\b(?P<leave>[Ll]eave) (?P<name>[a-z_]+)=None\b", left_out, text)
    value = r'"[\w.]+"|-?\d+(?:\.\d+)?|a,b,c|(?=[.,; ])'
    return re.sub(rf"(?<![\w-])(?P<name>[a-z_]+)=(?P<value>{value})", flag, text).rstrip()


class ConfigError(Exception):
    """A config that cannot be read, or holds what is no flag."""


def expand_config(argv: Sequence[str], parser: ArgumentParser) -> list[str]:
    """The flags of a command with every `--config FILE` replaced by the flags it holds, the user's last."""
    known = {action.dest.removesuffix("_flag") for action in parser._actions} - {"help", "config"}
    switches = {action.dest for action in parser._actions if action.nargs == 0}
    given: list[str] = []
    configured: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--config":
            configured += _flags(next(words, ""), known, switches)
        elif word.startswith("--config="):
            configured += _flags(word.partition("=")[2], known, switches)
        else:
            given.append(word)
    return [*configured, *given]


def _flags(file: str, known: set[str], switches: set[str]) -> list[str]:
    path = Path(file)
    if not file or not path.is_file():
        raise ConfigError(f"--config: {file or 'nothing'} is no file; expected a YAML file. Check the path.")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, RecursionError, ValueError) as problem:
        reason = " ".join(str(problem).split())[:160]
        raise ConfigError(f"{path} cannot be read ({reason}); expected YAML. Correct the file.") from None
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} holds a {type(settings).__name__}; expected flags and values, as `epochs: 20`.")
    flags: list[str] = []
    for key, value in settings.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise ConfigError(
                f"{path} sets {str(key)!r}, which is no flag of this command; expected one of "
                f"{', '.join(sorted(known))}{did_you_mean(name, known)}. Correct the name."
            )
        flags += _flag(path, name, value, name in switches)
    return flags


def _flag(path: Path, name: str, value: Any, switch: bool) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if switch:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {name}={value!r}; expected true or false. Correct the value.")
        return [flag] if value else []
    if name in SEVERAL:
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {name}={value!r}; expected names and values, as `rate: 0.3`. Correct it.")
        return [word for key, entry in value.items() for word in (flag, f"{key}={_plain(path, name, entry)}")]
    if name in PATHS and isinstance(value, str):
        return [f"{flag}={path.parent / value}"]
    return [f"{flag}={_plain(path, name, value)}"]


def _plain(path: Path, name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: {name} holds {value!r}; expected text or numbers. Correct the value.") from None


def parse_config(command: str, add_options: Callable[[ArgumentParser], None], path: Path) -> Any:
    """The options of a command from a config alone."""
    from fastbus.errors import InputError

    parser = Parser(prog=f"fastbus {command}")
    add_options(parser)
    try:
        return parser.parse_args(expand_config(["--config", str(path)], parser))
    except ConfigError as problem:
        raise InputError(str(problem)) from None


def names_of(text: str | None, flag: str) -> list[str] | None:
    """A list of names: `cat,dog`, or `["cat", "dog"]` for names with commas."""
    from fastbus.errors import InputError

    if text is None:
        return None
    entries: list[Any] = text.split(",")
    if text.lstrip().startswith("["):
        try:
            entries = json.loads(text)
        except ValueError:
            entries = [""]
    names = [str(entry).strip() for entry in entries]
    if not names or not all(names):
        raise InputError(f"{flag} {text!r}; expected names separated by commas. Write e.g. cat,dog.")
    return names
