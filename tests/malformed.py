"""Malformed calls as rows of a table, and the form that every refusal must have."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
import torch

import fastbus
from fastbus.errors import FastbusError, WeakLabelError

NAN, INF = float("nan"), float("inf")
# what was got; what was expected. How to cure it, as a sentence, all on one line
FORM = re.compile(r"[^\n]+; expected [^\n]+\. [A-Z][^\n]*\.")


@dataclass(frozen=True)
class Malformed:
    """A call, the class of its error and texts of the message."""

    name: str
    call: Callable[[], object]
    error: type[FastbusError]
    texts: tuple[str, ...]


def malformed(name: str, error: type[FastbusError], call: Callable[[], object], *texts: str) -> Malformed:
    return Malformed(name, call, error, texts)


def weakly(
    name: str,
    supervision: object,
    shape: tuple[int, ...],
    weak: object,
    *texts: str,
    error: type[FastbusError] = WeakLabelError,
    **options: object,
) -> Malformed:
    """A weak label that `infer` must refuse, beside faultless predictions of that shape."""
    return Malformed(name, lambda: fastbus.infer(supervision, scores(*shape), weak, **options), error, texts)


def scores(*shape: int) -> torch.Tensor:
    """Faultless logits."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def table(cases: Iterable[Malformed]) -> pytest.MarkDecorator:
    """Parametrise a test over cases, under their own names."""
    rows = list(cases)
    assert len({row.name for row in rows}) == len(rows), "two cases have one name"
    return pytest.mark.parametrize("case", rows, ids=lambda case: case.name)


def assert_refused(case: Malformed) -> None:
    """The call raises exactly that class, in the house's form, and says the texts."""
    with pytest.raises(FastbusError) as caught:
        case.call()
    message = str(caught.value)
    assert type(caught.value) is case.error, message
    assert FORM.fullmatch(message), message
    for text in case.texts:
        assert text in message, message
