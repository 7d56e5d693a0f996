"""Options of supervisions, checked: numbers, rates of false answers, errors of counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real

from fastbus.errors import SupervisionError


def number(value: object) -> float:
    """A real number as a float; NaN, which lies in no range, where it is none."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else float("nan")


def flip_channel(noise: object, name: str) -> tuple[float, float] | None:
    """Check a (false-positive, false-negative) pair of rates."""
    if noise is None:
        return None
    if isinstance(noise, str) or not isinstance(noise, Sequence) or len(noise) != 2:
        raise SupervisionError(
            f"{name}: noise={noise!r}; expected (false_positive, false_negative). "
            "Give both rates, e.g. noise=(0.05, 0.1)."
        )
    false_positive, false_negative = (number(rate) for rate in noise)
    if not (0 <= false_positive < 1 and 0 <= false_negative < 1):
        raise SupervisionError(f"{name}: noise={noise!r}; expected rates in [0, 1). Give shares, not percentages.")
    return false_positive, false_negative


def count_noise(noise: object, name: str) -> dict[int, float] | None:
    """Check the {error: probability} of a reported count."""
    if noise is None:
        return None
    cure = "Give a mapping from error to probability, e.g. {-1: .1, 0: .8, 1: .1}."
    if not isinstance(noise, Mapping) or not noise:
        raise SupervisionError(f"{name}: noise={noise!r}; expected {{error: probability}}. {cure}")
    if not all(isinstance(error, Integral) for error in noise):
        raise SupervisionError(f"{name}: noise={noise!r}; expected whole numbers as errors. {cure}")
    channel = {int(error): number(probability) for error, probability in noise.items()}
    if any(not 0 <= probability <= 1 for probability in channel.values()):
        raise SupervisionError(f"{name}: noise={noise!r}; expected probabilities in [0, 1]. {cure}")
    if abs(sum(channel.values()) - 1) > 1e-6:
        raise SupervisionError(f"{name}: noise probabilities sum to {sum(channel.values()):g}; expected 1. {cure}")
    return channel
