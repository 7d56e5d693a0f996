"""Whole labellings: `map` and `sample` of every case against enumeration.

`map` must be as probable as the best labelling enumerated. Samples must all be possible, and the
frequencies of whole labellings must follow the posterior by a chi-square test.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from fastbus.bench.problems import CASES, Case, RandomProblem
from fastbus.bench.scenes import Array
from fastbus.bench.verify_exact import SCALES, enumerated, solved
from fastbus.oracle import EnumeratedPosterior, LabellingTable

BAGS = 6
DRAWS = 600
MAP_BOUND = 1e-9  # on log Q of the labelling found below the best one
LEAST_P = 1e-5  # of the chi-square test of one case; some 170 cases are tested
SAMPLE_SCALES = (0.3, 1.0, 3.0)  # larger logits leave one labelling to draw
ASSIGNED = ("label_proportion [softmax, C=2..4]", "multi_instance [softmax, C=2..4]")


class MapRow(NamedTuple):
    """Most probable labellings of one case: by how much the worst falls short of the best."""

    case: str
    how: str  # "chain", or "assignment" where the lattice passes the budget
    bags: int
    shortfall: float  # log Q of the best labelling - log Q of the one found

    @property
    def passed(self) -> bool:
        return self.shortfall <= MAP_BOUND


class SampleRow(NamedTuple):
    """Samples of one case: impossible ones, and the p-value of their frequencies."""

    case: str
    bags: int
    draws: int
    impossible: int
    p_value: float

    @property
    def passed(self) -> bool:
        return self.impossible == 0 and self.p_value >= LEAST_P


def _problems(case: Case, scales: tuple[float, ...], turns: int, seed: int) -> list[RandomProblem]:
    rng = np.random.default_rng([seed, zlib.crc32(case.name.encode())])
    return [case.make(rng, scale=scales[t % len(scales)], bags=BAGS) for t in range(turns)]


def check_map(case: Case, seed: int, budget: int = 4096, turns: int = len(SCALES)) -> MapRow:
    """`map` on batches of all scales; a budget of 1 forces the assignment solver."""
    worst, count = 0.0, 0
    for problem in _problems(case, SCALES, turns, seed):
        for post, right in zip(solved(problem, budget=budget), enumerated(problem), strict=True):
            short = right.map_log_prob - right.log_posterior_of(post.map())
            # an impossible labelling has log Q = -inf, a missing one NaN
            worst = max(worst, float(np.where(np.isnan(short), np.inf, np.abs(short)).max()))
            count += len(short)
    return MapRow(case.name, "chain" if budget > 1 else "assignment", count, worst)


def check_samples(case: Case, seed: int, draws: int = DRAWS, turns: int = 3) -> SampleRow:
    """Frequencies of whole labellings, bag by bag, pooled into one test a case."""
    from scipy.stats import chi2

    statistic, freedom, impossible, count = 0.0, 0, 0, 0
    for turn, problem in enumerate(_problems(case, SAMPLE_SCALES, turns, seed)):
        generator = torch.Generator().manual_seed(seed + turn)
        for post, right in zip(solved(problem), enumerated(problem), strict=True):
            drawn = post.sample(draws, generator).numpy()
            count += len(right.log_likelihood)
            for table, seen in _labellings(right, drawn):
                q = np.exp(table.log_prob)
                counts = np.bincount(seen, minlength=len(q))
                impossible += int(counts[q == 0].sum())
                part, cells = _chi_square(counts, q, draws)
                statistic, freedom = statistic + part, freedom + cells
    p_value = float(chi2.sf(statistic, freedom)) if freedom else 1.0
    return SampleRow(case.name, count, draws, impossible, p_value)


def _labellings(right: EnumeratedPosterior, drawn: Array) -> Iterator[tuple[LabellingTable, Array]]:
    """Every table of the oracle with the rows of it that were drawn, (n,)."""
    rows = drawn if right.labels.ndim == 2 else drawn[:, right.mask]  # (n, N) or (n, N, C)
    rows = rows.reshape(*rows.shape[:2], -1)
    ends = np.cumsum(right.mask.sum(axis=1))[:-1]
    for tables, bag in zip(right.tables, np.split(rows, ends, axis=1), strict=True):
        for table, labels in zip(tables, np.moveaxis(bag, 2, 0), strict=True):  # (n, K)
            num_labels = int(table.labellings.max()) + 1
            place = num_labels ** np.arange(labels.shape[1])[::-1]
            yield table, labels @ place  # tables are in lexicographic order


def _chi_square(counts: Array, q: Array, draws: int) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom; cells expected below 5 are pooled."""
    small = draws * q < 5
    observed = np.append(counts[~small], counts[small].sum())
    expected = np.append(draws * q[~small], draws * q[small].sum())
    if expected[-1] < 5:  # too few even together: the likeliest cell takes them in
        observed[expected.argmax()] += observed[-1]
        expected[expected.argmax()] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    return float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1


def check_all_maps(seed: int) -> Iterator[MapRow]:
    """All cases by their chains, then the assignment solver where there is one."""
    for case in CASES.values():
        yield check_map(case, seed)
    for name in ASSIGNED:
        yield check_map(CASES[name], seed, budget=1, turns=20)


def check_all_samples(seed: int) -> Iterator[SampleRow]:
    for case in CASES.values():
        yield check_samples(case, seed)
