"""One exception tree. Every message says what was got, what was expected, where, and how to cure it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

import torch
from torch import Tensor

from fastbus.spelling import did_you_mean


class FastbusError(Exception):
    """Anything this library refuses to do."""


class InputError(FastbusError, ValueError):
    """Predictions, masks, bag sizes or options of a call are malformed."""


class WeakLabelError(FastbusError, ValueError):
    """A weak label is malformed: shape, type, range, unknown class."""


class ImpossibleError(WeakLabelError):
    """A weak label is well formed, but no labelling of its bag can satisfy it."""


class DataError(FastbusError, ValueError):
    """A file, table or frame is malformed: columns, types, bags, class names."""


class SupervisionError(FastbusError, ValueError):
    """A supervision, its options or its rule are wrong."""


class CouplingError(FastbusError, ValueError):
    """The coupling asked for does not apply here, or does not fit the budget."""


class ImpossibleEvidenceWarning(UserWarning):
    """Evidence of some bags was dropped because no labelling satisfies it."""


class NothingLearntWarning(UserWarning):
    """A fit ended where it says the same of every instance, as far as the weak labels can tell."""


def bag_flags(bad: Tensor) -> Tensor:
    """Collapse any (B, ...) flags to one flag a bag, (B,)."""
    return bad.reshape(bad.shape[0], -1).any(dim=1) if bad.dim() > 1 else bad


def where(bad: Tensor, noun: str = "bag") -> str:
    """Name the first flagged bag and count the others: ``bag 17 (and 3 more)``."""
    flagged = torch.nonzero(bag_flags(bad)).flatten().tolist()
    more = len(flagged) - 1
    return f"{noun} {flagged[0]}" + (f" (and {more} more)" if more else "")


def name_bags(bags: Tensor, num_bags: int) -> str:
    """The same for bags given by number, (n,)."""
    flags = torch.zeros(num_bags, dtype=torch.bool)
    flags[bags.cpu()] = True
    return where(flags)


def first_entry(values: Tensor, bad: Tensor) -> object:
    """The first offending value, as a Python number or list, for the message."""
    index = tuple(torch.nonzero(bad)[0].tolist())
    return values[index].tolist()


def quoted(value: object) -> str:
    """A value as the caller may have written it: 1.1, not the 1.100000023841858 of float32."""
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def sentence(got: str, expected: str, place: str, cure: str) -> str:
    """Compose the one form that all messages have."""
    return f"{got}; expected {expected}; {place}. {cure}"


def reject(
    error: type[FastbusError], bad: Tensor, *, got: str, expected: str, cure: str, noun: str = "bag"
) -> NoReturn:
    """Raise `error` for the flagged bags."""
    raise error(sentence(got, expected, where(bad, noun), cure))


def choice(value: object, options: Iterable[str], what: str, error: type[FastbusError]) -> None:
    """Refuse a keyword outside its options, and say which one was perhaps meant."""
    allowed = list(options)
    if not isinstance(value, str) or value not in allowed:
        names = ", ".join(repr(option) for option in allowed)
        raise error(
            f"{what}={value!r}; expected one of {names}{did_you_mean(value, allowed)}. Pass one of these names."
        )
