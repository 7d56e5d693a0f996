"""Large bags: seconds and errors of exact counts, from a hundred to a million instances.

    python -m fastbus.bench.large_bags [--most 1000000] [--runs 5] [--seed 0]

One class, logits spread around p = .1, and two counts: the one they expect, and nine tenths of the bag, which they
all but rule out. Up to 10,000 instances every posterior and the likelihood are compared with the plain recursion
over counts; above, the likelihood and some posteriors with products of polynomials by FFT.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from fastbus.inference.count import solve_count
from fastbus.inference.ending import Ending
from fastbus.inference.infer import infer
from fastbus.numerics import NEG_INF
from fastbus.supervision import LabelProportion

Array = NDArray[np.float64]
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
RECURSION_UP_TO = 10_000
CHECKED = 8  # posteriors compared where the recursion would take too long
P = 0.1
DOUBLE, SINGLE, SLOPE = 1e-10, 1e-5, 1.1
SLOPE_FROM = 10_000  # below, a call costs what any call costs


class Row(NamedTuple):
    """One bag of K instances, w of them positive. Errors of likelihoods are relative where these pass 1."""

    K: int
    evidence: str
    w: int
    log_likelihood: float
    seconds: float
    reference: str
    posterior_error: float
    likelihood_error: float
    count_error: float  # of the posteriors' sum against w, relative
    single_error: float  # float32 logits against float64 ones, posterior and likelihood

    @property
    def holds(self) -> bool:
        double = max(self.posterior_error, self.likelihood_error, self.count_error)
        return double <= DOUBLE and self.single_error <= SINGLE


class Reference(NamedTuple):
    """What another method says about the first instances."""

    posterior: Tensor
    log_likelihood: float
    method: str


def logits_of(K: int, seed: int) -> Tensor:
    """(K,) float32, so that both precisions are asked the same question."""
    noise = torch.randn(K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (math.log(P / (1 - P)) + noise).float()


def rows(sizes: tuple[int, ...], runs: int, seed: int) -> Iterator[Row]:
    for K in sizes:
        logits = logits_of(K, seed)
        expected = round(float(torch.sigmoid(logits.double()).sum()))
        for evidence, w in (("expected", expected), ("improbable", round(0.9 * K))):
            yield measure(logits, evidence, w, runs)


def measure(logits: Tensor, evidence: str, w: int, runs: int) -> Row:
    """Median seconds of the whole call, and its errors."""
    K = len(logits)
    weak = torch.tensor([w])
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        post = infer(LabelProportion(), logits.double()[None, :, None], weak, head="sigmoid")
        seconds.append(time.perf_counter() - start)
    single = infer(LabelProportion(), logits[None, :, None], weak, head="sigmoid")
    labels, likelihood = post.labels[0, :, 0], float(post.log_likelihood)
    truth = by_recursion(logits, w) if K <= RECURSION_UP_TO else by_fft(logits, w)
    of_single = float((single.labels[0, :, 0].double() - labels).abs().max())
    return Row(
        K,
        evidence,
        w,
        likelihood,
        statistics.median(seconds),
        truth.method,
        float((labels[: len(truth.posterior)] - truth.posterior).abs().max()),
        _relative(likelihood, truth.log_likelihood),
        _relative(float(labels.sum()), w),
        max(of_single, _relative(float(single.log_likelihood), likelihood)),
    )


def _relative(got: float, wanted: float) -> float:
    return abs(got - wanted) / max(1.0, abs(wanted))


def slope(found: list[Row]) -> float:
    """Of log seconds over log K, by least squares; 1 is time in proportion to the bag."""
    used = [row for row in found if row.K >= SLOPE_FROM]
    if len({row.K for row in used}) < 2:
        return math.nan
    x, y = np.log([row.K for row in used]), np.log([row.seconds for row in used])
    return float(np.polyfit(x, y, 1)[0])


# -- other methods -----------------------------------------------------------------------------------


def by_recursion(logits: Tensor, w: int) -> Reference:
    """The recursion over counts in log space, of the rarer label, so that its states are few."""
    x = logits.double()
    K = len(x)
    flip = 2 * w > K
    potential = torch.stack([logsigmoid(-x), logsigmoid(x)], -1)[None]
    wanted = K - w if flip else w
    evidence = torch.full((1, wanted + 1), NEG_INF, dtype=torch.float64)
    evidence[0, wanted] = 0.0
    lengths = torch.tensor([K])
    log_posterior, likelihood = solve_count(potential.flip(-1) if flip else potential, lengths, Ending(evidence))
    return Reference(log_posterior[0, :, 0 if flip else 1].exp(), float(likelihood), "recursion, all")


def by_fft(logits: Tensor, w: int, checked: int = CHECKED) -> Reference:
    """Leave-one-out counts of the first instances: the other instances' distribution, multiplied up by FFT."""
    x = logits.double().numpy()
    theta = _shift(x, w)
    yes = 1 / (1 + np.exp(-(x + theta)))
    others = count_distribution(yes[checked:])
    posterior = []
    for k in range(checked):
        rest = others
        for other in (*range(k), *range(k + 1, checked)):
            rest = np.convolve(rest, [1 - yes[other], yes[other]])
        positive, negative = yes[k] * rest[w - 1], (1 - yes[k]) * rest[w]
        posterior.append(positive / (positive + negative))
    # of the last one both cases together are the count of all
    shifted = math.log(positive + negative)
    norm = math.fsum(np.logaddexp(0, x + theta) - np.logaddexp(0, x))
    method = f"FFT, {checked} of them"
    return Reference(torch.tensor(posterior, dtype=torch.float64), shifted + norm - theta * w, method)


def _shift(x: Array, w: int) -> float:
    """By bisection; it need not be exact, only near, for the count to be probable."""
    low, high = -60.0, 60.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-(x + middle)))).sum() < w else (low, middle)
    return (low + high) / 2


def count_distribution(yes: Array) -> Array:
    """Probabilities of 0, 1, ... positives: polynomials 1 - p + p z multiplied in pairs, and pairs of pairs."""
    size = 1 << (len(yes) - 1).bit_length()
    table: Array = np.tile([1.0, 0.0], (size, 1))
    table[: len(yes)] = np.stack([1 - yes, yes], 1)
    while len(table) > 1:
        degree = table.shape[1] - 1
        spectrum: NDArray[Any] = np.fft.rfft(table, 3 * degree)
        table = np.fft.irfft(spectrum[::2] * spectrum[1::2], 3 * degree)[:, : 2 * degree + 1]
    whole: Array = table[0]
    return whole


# -- the command -----------------------------------------------------------------------------------


def _render(found: list[Row], steepness: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"One count of a bag, logits around p = {P:g}, one thread")
    headings = ("K", "evidence", "w", "log P(w | x)", "seconds", "against", "posterior", "likelihood", "sum", "float32")
    for heading in (*headings, ""):
        table.add_column(heading, justify="left" if heading in ("evidence", "against", "") else "right")
    for row in found:
        errors = (row.posterior_error, row.likelihood_error, row.count_error, row.single_error)
        table.add_row(
            f"{row.K:,}",
            row.evidence,
            f"{row.w:,}",
            f"{row.log_likelihood:,.1f}",
            f"{row.seconds:.4f}",
            row.reference,
            *(f"{error:.1e}" for error in errors),
            "PASS" if row.holds else "FAIL",
        )
    console = Console(width=132)
    console.print(table)
    console.print(
        f"seconds grow like K^{steepness:.2f} from {SLOPE_FROM:,} instances on; promised: at most K^{SLOPE:g}, errors "
        f"of {DOUBLE:g} (float64) and {SINGLE:g} (float32)"
    )


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 1 if a promise fails."""
    parser = argparse.ArgumentParser(prog="python -m fastbus.bench.large_bags", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--most", type=int, default=SIZES[-1], help="instances of the largest bag")
    parser.add_argument("--runs", type=int, default=5, help="calls whose median is shown")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sizes = tuple(size for size in SIZES if size <= options.most)
        found = list(rows(sizes, options.runs, options.seed))
    finally:
        torch.set_num_threads(before)
    steepness = slope(found)
    _render(found, steepness)
    return 0 if all(row.holds for row in found) and not steepness > SLOPE else 1


if __name__ == "__main__":
    raise SystemExit(main())
