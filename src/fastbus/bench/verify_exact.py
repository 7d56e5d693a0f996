"""Exactness: the posterior and the log-likelihood of every case against enumeration.

Float32 logits are enumerated as the numbers they are, so the error shown is the engine's alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from fastbus.bench.problems import CASES, Case, RandomProblem
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior
from fastbus.oracle import EnumeratedPosterior, enumerate_posterior

SCALES = (0.3, 1.0, 3.0, 10.0, 30.0)
DTYPES = (torch.float64, torch.float32)
BAGS = 8  # in one call of infer


class Errors(NamedTuple):
    """Worst absolute error of the posterior, and of log P as |error| / max(1, |log P|)."""

    posterior: float = 0.0
    likelihood: float = 0.0

    def worst(self, other: Errors) -> Errors:
        return Errors(*(float(np.maximum(a, b)) for a, b in zip(self, other, strict=True)))


class ExactRow(NamedTuple):
    """One case: the coupling taken, bags checked, errors in both precisions."""

    case: str
    coupling: str
    bags: int
    float64: Errors
    float32: Errors
    largest_bag: int
    truths_possible: bool  # the labelling the weak labels were made from has log Q > -inf

    @property
    def passed(self) -> bool:
        within = max(self.float64) <= bound(torch.float64, self.largest_bag)
        single = max(self.float32) <= bound(torch.float32, self.largest_bag)
        return within and single and self.truths_possible


def bound(dtype: torch.dtype, bag_size: int) -> float:
    """The largest error that passes."""
    if dtype == torch.float64:
        return 1e-12
    return 2e-6 if bag_size <= 8 else 1e-6 * bag_size


def random_problems(case: Case, dtype: torch.dtype, bags: int, seed: int) -> Iterator[RandomProblem]:
    """Batches that hold at least that many bags, cycling through the scales of the logits."""
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode()), dtype.itemsize])
    for turn in range(-(-bags // BAGS)):
        yield case.make(rng, scale=SCALES[turn % len(SCALES)], dtype=dtype, bags=BAGS)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """A sum over differently grouped bags has several posteriors, all else one."""
    return value if type(value) is tuple else (value,)


def enumerated(problem: RandomProblem) -> tuple[EnumeratedPosterior, ...]:
    """What enumeration says, one entry a term."""
    return as_tuple(enumerate_posterior(problem.supervision, **problem.arguments))


def solved(problem: RandomProblem, **options: Any) -> tuple[Posterior, ...]:
    """What the engine says, one entry a term."""
    return as_tuple(infer(problem.supervision, **problem.arguments, **options))


def errors(found: Posterior, right: EnumeratedPosterior) -> Errors:
    """NaN anywhere makes an infinite error, and so does an answer that calls itself inexact."""
    posterior = np.abs(found.labels.double().numpy() - right.labels).max()
    log_likelihood = found.log_likelihood.double().numpy()
    size = np.maximum(1, np.abs(right.log_likelihood))
    if not (found.exact and np.isfinite(posterior) and np.isfinite(size).all()):
        return Errors(np.inf, np.inf)
    off = (np.abs(log_likelihood - right.log_likelihood) / size).max()
    return Errors(float(posterior), float(off) if np.isfinite(off) else np.inf)


def check_case(case: Case, bags: int, seed: int) -> ExactRow:
    """The worst of that many bags in each precision, under every exact coupling there is."""
    worst = {dtype: Errors() for dtype in DTYPES}
    taken: set[str] = set()
    count, largest, possible = 0, 0, True
    for dtype in DTYPES:
        for problem in random_problems(case, dtype, bags, seed):
            right = enumerated(problem)
            count += sum(len(term.log_likelihood) for term in right)
            largest = max(largest, *(int(term.mask.sum(axis=1).max()) for term in right))
            if problem.truth is not None:
                possible &= bool(np.isfinite(right[0].log_posterior_of(problem.truth)).all())
            for asked in case.couplings:
                for found, term in zip(solved(problem, coupling=asked), right, strict=True):
                    worst[dtype] = worst[dtype].worst(errors(found, term))
                    taken.update(found.coupling)
    return ExactRow(
        case=case.name,
        coupling="+".join(sorted(taken)),
        bags=count,
        float64=worst[torch.float64],
        float32=worst[torch.float32],
        largest_bag=largest,
        truths_possible=possible,
    )


def check_all(problems: int, seed: int) -> Iterator[ExactRow]:
    """All cases, at least that many bags in all, half of them in each precision."""
    each = -(-problems // (2 * len(CASES)))
    for case in CASES.values():
        yield check_case(case, each, seed)
