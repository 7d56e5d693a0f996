"""Extreme bags: every number finite, and improbable evidence answered to high precision.

    python -m fastbus.bench.extremes [--bags 100000] [--long 2000] [--seed 0]

Draws bags of every case at logit scales from 1e-6 to 1e4, long bags of up to 1,000 instances where a case
has no fixed size, and counts non-finite or impossible numbers among posteriors, likelihoods and gradients.
Then compares bags whose evidence is astronomically improbable with decimal arithmetic of 60 digits.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from decimal import Decimal, getcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from fastbus.bench.problems import CASES, Case, RandomProblem
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior
from fastbus.supervision import REGISTRY, LabelProportion

SCALES = (1e-6, 1e-3, 1.0, 30.0, 1e3, 1e4)
LONG_SIZES = (500, 1000)
# cases without a fixed size whose long bags are worth their time; the softmax ones take the fallbacks
LONG_CASES = tuple(
    f"{kind} [{form}]"
    for kind, forms in {
        "multi_instance": ("sigmoid, C=1", "sigmoid, C=2..4", "softmax, C=2..4"),
        "multi_instance, noise": ("sigmoid, C=1",),
        "label_proportion": ("sigmoid, C=1", "softmax, C=2", "softmax, C=2..4"),
        "label_proportion, interval": ("sigmoid, C=1", "softmax, C=2..4"),
        "label_proportion, noise": ("sigmoid, C=1",),
        "label_proportion, soft jeffrey": ("sigmoid, C=1",),
        "positive_unlabeled, jeffrey": ("sigmoid, C=1",),
        "positive_unlabeled, mean": ("sigmoid, C=1",),
        "unlabeled_unlabeled, likelihood": ("softmax, C=2",),
        "label_proportion & semi_supervised": ("sigmoid, C=1", "softmax, C=2..4"),
        "own rule: at least m": ("sigmoid, C=1",),
    }.items()
    for form in forms
)

# the approximations must stay finite too: forced on bags that the lattice would solve
FORCED = {
    "label_proportion [softmax, C=2..4]": ("independent", "tilted"),
    "multi_instance [softmax, C=2..4]": ("independent", "loop"),
    "multi_instance, noise [softmax, C=2..4]": ("independent", "loop"),
    "label_proportion & semi_supervised [softmax, C=2..4]": ("independent", "tilted"),
    "multi_instance & semi_supervised [softmax, C=2..4]": ("independent", "loop"),
    "label_proportion, interval [softmax, C=2..4]": ("independent",),
}


class Sweep(NamedTuple):
    """What was seen of one case."""

    case: str
    bags: int
    long_bags: int
    numbers: int
    non_finite: int  # NaN or infinite
    outside: int  # posteriors outside [0, 1]
    seconds: float


class Improbable(NamedTuple):
    """A bag of K instances with positives of probability p, of which w are said to be positive."""

    K: int
    p: float
    w: int
    spread: float  # of the logits around that of p
    log_likelihood: float
    error_float64: float
    error_float32: float


def sweep_case(
    case: Case,
    bags: int,
    long_bags: int,
    seed: int,
    coupling: str = "auto",
    batches: tuple[int, int] = (64, 8),
) -> Sweep:
    """Draw at least that many short and long bags of one case, all scales in turn.

    batches: short and long bags that are solved at once.
    """
    start = time.perf_counter()
    rng = np.random.default_rng(seed)
    seen = np.zeros(3, dtype=np.int64)
    short, long = (_rounds(n, batch) * batch for n, batch in zip((bags, long_bags), batches, strict=True))
    for problem in _problems(case, (short, long), batches, rng):
        seen += _inspect(problem, coupling)
    numbers, non_finite, outside = (int(count) for count in seen)
    seconds = time.perf_counter() - start
    name = case.name if coupling == "auto" else f"{case.name} {coupling}"
    return Sweep(name, short + long, long, numbers, non_finite, outside, seconds)


def sweeps_planned(bags: int, long_bags: int) -> list[tuple[str, str, int, int]]:
    """(case, coupling, short bags, long bags) that share the totals evenly."""
    each, long_each = math.ceil(bags / len(CASES)), math.ceil(long_bags / len(LONG_CASES))
    plan = [(name, "auto", each, long_each if name in LONG_CASES else 0) for name in CASES]
    return plan + [(name, coupling, each, 0) for name, forced in FORCED.items() for coupling in forced]


def _rounds(bags: int, batch: int) -> int:
    """Batches that hold at least that many bags and visit every scale once."""
    return math.ceil(bags / (batch * len(SCALES))) * len(SCALES) if bags else 0


def _problems(
    case: Case, bags: tuple[int, int], batches: tuple[int, int], rng: np.random.Generator
) -> Iterator[RandomProblem]:
    long: dict[str, Any] = {"sizes": LONG_SIZES, "most_labellings": math.inf}
    for total, batch, options in zip(bags, batches, ({}, long), strict=True):
        for turn in range(total // batch):
            dtype = (torch.float32, torch.float64)[turn // len(SCALES) % 2]
            yield case.make(rng, scale=SCALES[turn % len(SCALES)], dtype=dtype, bags=batch, **options)


def _inspect(problem: RandomProblem, coupling: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Numbers, non-finite numbers and numbers out of range in one answer and its gradient."""
    logits = problem.logits if isinstance(problem.logits, tuple) else (problem.logits,)
    leaves = tuple(x.clone().requires_grad_() for x in logits)
    given: dict[str, Any] = {**problem.arguments, "coupling": coupling}
    given["logits"] = leaves if isinstance(problem.logits, tuple) else leaves[0]
    answer: Any = infer(problem.supervision, **given)
    posts: tuple[Posterior, ...] = answer if isinstance(answer, tuple) else (answer,)
    total = torch.stack([post.log_likelihood.sum() for post in posts]).sum()
    gradients = torch.autograd.grad(total, leaves)
    counts = np.zeros(3, dtype=np.int64)
    for post, gradient in zip(posts, gradients, strict=True):
        labels = post.labels.detach()
        for numbers in (labels, post.log_likelihood.detach(), gradient):
            counts[0] += numbers.numel()
            counts[1] += int((~numbers.isfinite()).sum())
        counts[2] += int(((labels < 0) | (labels > 1 + 1e-6)).sum())
    return counts


# -- improbable evidence ---------------------------------------------------------------------------


def improbable(K: int, p: float, w: int, spread: float, checked: int = 4, seed: int = 0) -> Improbable:
    """Compare the posteriors of a few instances, and the likelihood, with decimal arithmetic."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(K, generator=generator, dtype=torch.float64)
    # rounded to float32 first, so that both precisions are asked the same question
    logits = (math.log(p / (1 - p)) + spread * noise).float()
    log_likelihood, posteriors = _decimal_reference(logits.tolist(), w, range(checked))
    errors = []
    for dtype in (torch.float64, torch.float32):
        post = infer(LabelProportion(), logits.to(dtype)[None, :, None], torch.tensor([w]), head="sigmoid")
        got = post.labels[0, :checked, 0].double()
        errors.append(float((got - torch.tensor(posteriors, dtype=torch.float64)).abs().max()))
    return Improbable(K, p, w, spread, log_likelihood, *errors)


def _decimal_reference(logits: list[float], w: int, instances: range) -> tuple[float, list[float]]:
    """log P(count = w), and P(y_k = 1 | count = w) = p_k P(count of the others = w - 1) / P(count = w)."""
    getcontext().prec = 60
    positive = [1 / (1 + (-Decimal(x)).exp()) for x in logits]
    total = _decimal_count(positive, w)
    posteriors = [
        float(positive[k] * _decimal_count(positive[:k] + positive[k + 1 :], w - 1) / total) for k in instances
    ]
    return float(total.ln()), posteriors


def _decimal_count(positive: list[Decimal], w: int) -> Decimal:
    """P(count = w), by the textbook recursion."""
    count = [Decimal(1)] + [Decimal(0)] * w
    for step, p in enumerate(positive, start=1):
        # a count below this can no longer reach w
        lowest = max(0, w - (len(positive) - step))
        for s in range(min(step, w), lowest - 1, -1):
            count[s] = count[s] * (1 - p) + (count[s - 1] * p if s else 0)
    return count[w]


IMPROBABLE = (
    (100, 0.1, 90, 0.0),
    (100, 0.1, 90, 2.0),
    (300, 0.9, 20, 1.0),
    (1000, 0.1, 900, 0.0),
    (1000, 0.1, 900, 1.0),
    (1000, 0.001, 700, 3.0),
)


def within_bounds(row: Improbable) -> bool:
    """1e-10 in float64, 1e-4 in float32."""
    return row.error_float64 <= 1e-10 and row.error_float32 <= 1e-4


# -- the command -----------------------------------------------------------------------------------


def _render(sweeps: list[Sweep], rows: list[Improbable]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=132)
    table = Table(title=f"Extreme bags, logits times {SCALES[0]:g} to {SCALES[-1]:g}, up to 1,000 instances")
    for heading in ("case", "bags", "of 500+", "numbers", "non-finite", "outside [0, 1]", "seconds"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for sweep in sweeps:
        *cells, seconds = sweep[1:]
        table.add_row(escape(sweep.case), *(f"{cell:,}" for cell in cells), f"{seconds:.1f}")
    sums = [sum(sweep[column] for sweep in sweeps) for column in range(1, 6)]  # type: ignore[misc]
    table.add_section()
    table.add_row("all", *(f"{value:,}" for value in sums), f"{sum(s.seconds for s in sweeps):.0f}")
    console.print(table)
    kinds = {kind: sum(sweep.bags for sweep in sweeps if kind in sweep.case) for kind in REGISTRY}
    rarest = min(kinds, key=lambda kind: kinds[kind])
    console.print(f"every supervision had at least {kinds[rarest]:,} bags ({rarest})")
    table = Table(title="Improbable evidence against 60-digit arithmetic: worst posterior error")
    for heading in ("K", "p", "w", "logit spread", "log P(w | x)", "float64", "float32", ""):
        table.add_column(heading, justify="right")
    for row in rows:
        verdict = "PASS" if within_bounds(row) else "FAIL"
        cells64 = (f"{row.log_likelihood:.1f}", f"{row.error_float64:.1e}", f"{row.error_float32:.1e}")
        table.add_row(str(row.K), f"{row.p:g}", str(row.w), f"{row.spread:g}", *cells64, verdict)
    console.print(table)


def main(argv: list[str] | None = None) -> int:
    """Run everything; 0 if all numbers are finite and within bounds."""
    parser = argparse.ArgumentParser(prog="python -m fastbus.bench.extremes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--bags", type=int, default=100_000, help="short bags in all")
    parser.add_argument("--long", type=int, default=2_000, help="bags of 500 to 1,000 instances in all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    from rich.progress import track

    plan = sweeps_planned(options.bags, options.long)
    sweeps = [
        sweep_case(CASES[name], bags, long, options.seed + index, coupling)
        for index, (name, coupling, bags, long) in enumerate(track(plan, "extreme bags", transient=True))
    ]
    rows = [improbable(*row) for row in track(IMPROBABLE, "decimal arithmetic", transient=True)]
    _render(sweeps, rows)
    clean = all(sweep.non_finite == sweep.outside == 0 for sweep in sweeps)
    return 0 if clean and all(within_bounds(row) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
