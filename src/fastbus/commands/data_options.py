"""Flags that several commands share: tables and their columns, the supervision and its options."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import ArgumentParser

from fastbus.commands.parser import names_of
from fastbus.spelling import did_you_mean

if TYPE_CHECKING:
    from fastbus.data.dataset import WeakData
    from fastbus.supervision.base import Supervision

Options = Any  # the namespace of a command


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML whose numbers may be written 1e-3, which its standard takes for text."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def add_table_options(parser: ArgumentParser, what: str = "instances", weak: bool = True) -> None:
    """The instance table as a positional (or under its name, for configs), the other tables and columns."""
    parser.add_argument(what, nargs="?", help="table or folder: .csv, .tsv, .parquet, .arrow or .npz")
    parser.add_argument(f"--{what}", dest=f"{what}_flag", metavar="FILE", help="the same, for configs")
    if weak:
        parser.add_argument("--bags", metavar="FILE", help="bag table")
        parser.add_argument("--classes", metavar="A,B", help="names of the classes in the order of their indices")
    parser.add_argument("--config", metavar="FILE", help="YAML file with flags; those given here win")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_column_options(parser: ArgumentParser) -> None:
    parser.add_argument("--answers", metavar="FILE", help="answer table of a crowd: task, worker, label")
    parser.add_argument("--features", metavar="A,B", help="feature columns; all numbers otherwise")
    parser.add_argument("--ignore", metavar="A,B", help="columns to leave out")
    parser.add_argument("--images", metavar="FOLDER", help="folder of the pictures in column image")
    parser.add_argument("--image-size", metavar="H,W", help="scale pictures to this height and width")


def add_supervision_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--supervision",
        metavar="NAME",
        help="kind of weak label, e.g. label_proportion; a wrong one lists all; several: 'a & b'",
    )
    parser.add_argument(
        "--option",
        metavar="KEY=VALUE",
        action="append",
        type=str,
        help="option of the supervision, e.g. rate=0.3; in combinations part.key=value; repeatable",
    )


def given(options: Options, name: str, what: str) -> str:
    """A value that must be there, from the positional or from the flag of the same name."""
    from fastbus.errors import InputError

    value = getattr(options, name)
    if value is None:
        value = getattr(options, f"{name}_flag", None)
    if value is None:
        flag = name.upper() if hasattr(options, f"{name}_flag") else f"--{name.replace('_', '-')}"
        raise InputError(f"no {flag}; expected {what}. Give it, or set it in --config.")
    return str(value)


def option_names(kind: type[Supervision]) -> list[str]:
    """What `--option` may set of a kind."""
    takes = inspect.signature(kind).parameters.values()
    return [each.name for each in takes if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def make_supervision(name: str, settings: dict[str, Any]) -> Supervision:
    """A supervision from its name, or `a & b`, and its options, those of parts as part.key."""
    from fastbus.errors import FastbusError, SupervisionError
    from fastbus.supervision import REGISTRY
    from fastbus.supervision.combine import Combination

    titles = [part.strip() for part in name.split("&")]
    left = dict(settings)
    parts = []
    for number, title in enumerate(titles):
        if title not in REGISTRY:
            raise SupervisionError(
                f"supervision {title!r}; expected one of {', '.join(sorted(REGISTRY))}{did_you_mean(title, REGISTRY)}. "
                "Check the spelling."
            )
        earlier = titles[:number].count(title)
        prefix = f"{title}_{earlier + 1}." if earlier else f"{title}."
        chosen = {key.removeprefix(prefix): left.pop(key) for key in list(left) if key.startswith(prefix)}
        if len(titles) == 1:
            chosen |= left
            left = {}
        try:
            parts.append(REGISTRY[title](**chosen))
        except FastbusError:
            raise
        except (TypeError, ValueError, RuntimeError, AttributeError) as problem:
            reason = str(problem).partition("\n")[0].replace(f"{REGISTRY[title].__name__}.__init__()", "").strip()
            raise SupervisionError(
                f"options {chosen or 'none'} of {title} ({reason}); expected some of "
                f"{', '.join(option_names(REGISTRY[title])) or 'none'}. Correct --option."
            ) from None
    if left:
        raise SupervisionError(
            f"option {next(iter(left))!r}; expected part.key=value. Name one of {', '.join(titles)}."
        )
    return Combination(*parts) if len(parts) > 1 else parts[0]


def parse_settings(texts: list[str] | None, name: str = "option") -> dict[str, Any]:
    """`key=value` texts as a mapping; values are YAML: 0.3, exact, [0.1, 0.2], {-1: 0.1, 0: 0.9}."""
    from fastbus.errors import InputError

    flag = f"--{name.replace('_', '-')}"
    example = "rate=0.3" if name == "option" else "optimizer=sgd"
    settings: dict[str, Any] = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise InputError(f"{flag} {text!r}; expected key=value. Write e.g. {flag} {example}.")
        complaint = f"{flag} {text!r}; expected a value in YAML after '='. Quote text in it."
        settings[key.strip()] = yaml_value(value, complaint)
    return settings


def yaml_value(text: str, complaint: str) -> Any:
    """A text in YAML as its value; an InputError with the complaint where it is none."""
    from fastbus.errors import InputError

    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):
        raise InputError(complaint) from None


def supervision_of(options: Options) -> Supervision:
    name = given(options, "supervision", "the kind of weak label, e.g. label_proportion")
    return make_supervision(name, parse_settings(options.option))


def columns_of(options: Options) -> dict[str, Any]:
    """What `read_tables` takes about columns."""
    from fastbus.errors import InputError

    size = names_of(getattr(options, "image_size", None), "--image-size")
    if size is not None and (len(size) != 2 or not all(part.isdigit() and int(part) for part in size)):
        raise InputError(f"--image-size {options.image_size!r}; expected height and width. Write e.g. 32,32.")
    return {
        "features": names_of(options.features, "--features"),
        "ignore": names_of(options.ignore, "--ignore") or [],
        "images": options.images,
        "image_size": None if size is None else (int(size[0]), int(size[1])),
    }


def read_data(options: Options, supervision: Supervision) -> WeakData:
    """The tables of a command as weak data."""
    from fastbus.data.tables import read_tables

    path = given(options, "instances", "the instance table")
    return read_tables(
        existing(path),
        options.bags,
        answers=options.answers,
        supervision=supervision,
        classes=names_of(options.classes, "--classes"),
        **columns_of(options),
    )


def check_n_classes(options: Options, data: WeakData) -> None:
    """Refuse a number of classes that is none, or not that of the classes which the tables show."""
    from fastbus.data.columns import listed
    from fastbus.errors import InputError

    asked = options.n_classes
    if asked is None:
        return
    if asked < 2:
        raise InputError(f"--n-classes {asked}; expected a whole number from 2. Correct it, or leave it out.")
    if data.classes is not None and asked != len(data.classes):
        raise InputError(
            f"--n-classes {asked}; expected {len(data.classes)}, since the tables or --classes name "
            f"{listed(data.classes)}. Leave it out, or name all classes with --classes."
        )


def existing(path: str) -> Path:
    """A path of something that is there."""
    from fastbus.errors import DataError

    place = Path(path)
    if "\0" in path or not place.exists():
        raise DataError(f"{path!r} is not there; expected a table or a folder. Check the path.")
    return place
