"""`make verify`: every promise of exact inference against enumeration, as tables with verdicts.

1. posterior and log-likelihood of every case      2. couplings of a softmax head
3. most probable labellings and samples            4. bias of the optimum of positive-unlabelled losses
The exit code is 1 if any row fails.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from fastbus.bench.problems import CASES
from fastbus.bench.pu_bias import BiasRow, World, bias_table, least_biased
from fastbus.bench.startup import added_to_torch, help_time
from fastbus.bench.verify_couplings import EXACT, CouplingRow, compare_all
from fastbus.bench.verify_decode import (
    LEAST_P,
    MAP_BOUND,
    MapRow,
    SampleRow,
    check_all_maps,
    check_all_samples,
)
from fastbus.bench.verify_exact import SCALES, ExactRow, check_all
from fastbus.supervision import PositiveUnlabeled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

WORLDS = (World(), World(labelled=0.05))
WIDTH = 150  # where the output is no terminal


class Row(Protocol):
    """Anything with a verdict."""

    @property
    def passed(self) -> bool: ...


R = TypeVar("R", bound=Row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything, print the tables, and return the exit code."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)  # the problems are many and small
    from rich.console import Console

    out = Console()
    out = out if out.is_terminal else Console(width=WIDTH)
    started = time.perf_counter()
    seed = options.seed

    exact = _collect("posteriors", check_all(options.problems, seed), len(CASES))
    out.print(exact_table(exact))
    couplings = _collect("couplings", compare_all(seed))
    out.print(coupling_table(couplings))
    maps = _collect("most probable labellings", check_all_maps(seed))
    out.print(map_table(maps))
    samples = _collect("samples", check_all_samples(seed), len(CASES))
    out.print(sample_table(samples))
    bias = [_collect("positive-unlabelled", bias_table(world), 20) for world in WORLDS]
    for rows in bias:
        out.print(bias_tables(rows))

    out.print(_least_biased([row for rows in bias for row in rows]))

    out.print(
        f"import fastbus adds {added_to_torch():.2f} s to import torch; fastbus --help takes {help_time():.2f} s."
    )

    every: list[Row] = [*exact, *couplings, *maps, *samples, *(row for rows in bias for row in rows)]
    _conclude(out, exact, every, time.perf_counter() - started)
    return 0 if all(row.passed for row in every) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fastbus.bench.verify",
        description="Compare every engine with enumeration and print the errors.",
    )
    parser.add_argument("--problems", type=_positive, default=30_000, help="bags in the first table (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all random problems (%(default)s)")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; expected at least 1 bag")
    return number


def _collect(what: str, rows: Iterable[R], total: int | None = None) -> list[R]:
    """All rows, with a progress bar on stderr, so that stdout carries the tables alone."""
    from rich.console import Console
    from rich.progress import track

    stderr = Console(stderr=True)
    shown = stderr.is_terminal
    return list(track(rows, what, total=total, console=stderr, transient=True, disable=not shown))


def _table(title: str, caption: str, columns: str, rows: Iterable[R], cells: Callable[[R], Sequence[str]]) -> Table:
    """A table with a verdict at the end of each row; columns are separated by "|"."""
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for place, name in enumerate((*columns.split("|"), "verdict")):
        table.add_column(name.strip(), justify="left" if place == 0 else "right")
    for row in rows:
        verdict = "PASS" if row.passed else "FAIL"
        table.add_row(*cells(row), verdict, style=None if row.passed else "bold red")
    return table


def _split(case: str) -> tuple[str, str]:
    """The case and, apart, its predictions (in brackets, which rich would take for markup)."""
    name, _, predictions = case.partition(" [")
    return name, predictions.rstrip("]")


def _error(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1e}"


def exact_table(rows: list[ExactRow]) -> Table:
    """Worst errors of every case."""
    scales = ", ".join(f"{scale:g}" for scale in SCALES)
    return _table(
        "1. Posterior and log-likelihood against enumeration",
        f"worst |q - q'| and |log P - log P'| / max(1, |log P|); logits of scale {scales}; bags of 1 "
        "to 10; passes: float64 1e-12, float32 logits 2e-6 (1e-6 K for K > 8)",
        "case | predictions | coupling | bags | q float64 | log P float64 | q float32 | log P float32",
        rows,
        lambda row: (
            *_split(row.case),
            row.coupling,
            str(row.bags),
            *(_error(value) for value in (*row.float64, *row.float32)),
        ),
    )


def coupling_table(rows: list[CouplingRow]) -> Table:
    """Mean errors of the couplings."""

    def mean(value: float) -> str:
        return "–" if math.isnan(value) else f"{value:.4f}"

    return _table(
        "2. Couplings of a softmax head: mean absolute error of the posterior",
        f"passes: auto within {EXACT:g}, and its fallback (a budget of one state) better than "
        "independent, that better than the prediction; converged: share of the fallback's bags",
        "supervision | K | C | scale | prediction | independent | tilted | loop | fallback | converged | auto",
        rows,
        lambda row: (
            row.supervision,
            *(str(row.bag_size), str(row.classes), f"{row.scale:g}"),
            *(mean(value) for value in (row.prior, row.independent, row.tilted, row.loop)),
            *(mean(row.fallback), f"{row.converged:.0%}", _error(row.auto)),
        ),
    )


def map_table(rows: list[MapRow]) -> Table:
    """How far the labellings found are from the best."""
    return _table(
        "3a. Most probable labellings against enumeration",
        f"worst log Q(best) - log Q(found); passes: {MAP_BOUND:g}; an impossible labelling: inf",
        "case | predictions | by | bags | shortfall",
        rows,
        lambda row: (*_split(row.case), row.how, str(row.bags), _error(row.shortfall)),
    )


def sample_table(rows: list[SampleRow]) -> Table:
    """Whether samples follow the posterior."""
    return _table(
        "3b. Samples against enumeration",
        f"chi-square of the frequencies of whole labellings; passes: no impossible sample, p >= {LEAST_P:g}",
        "case | predictions | bags | samples each | impossible | p",
        rows,
        lambda row: (
            *_split(row.case),
            *(str(row.bags), str(row.draws), str(row.impossible), f"{row.p_value:.3g}"),
        ),
    )


def bias_tables(rows: list[BiasRow]) -> Table:
    """The optimum of each constraint and set size in one world."""
    world = rows[0].world
    least = {id(row) for row in least_biased(rows).values()}
    return _table(
        f"4. Bias of the PU optimum: truth {world.high:g} and {world.low:g}, "
        f"{world.labelled:g} labelled positives per unlabelled instance",
        "P(y = 1) of the two kinds at the minimum of the expected loss, and their mean absolute "
        "error; * least biased at that size; passes: the kinds are told apart",
        "constraint | set size | first kind | second kind | bias",
        rows,
        lambda row: (
            row.constraint,
            str(row.set_size),
            *(f"{row.high:.3f}", f"{row.low:.3f}"),
            f"{row.bias:.3f}{'*' if id(row) in least else ' '}",
        ),
    )


def _least_biased(rows: list[BiasRow]) -> str:
    """Which constraint to prefer on sets as large as training makes them."""
    largest = max(row.set_size for row in rows)
    worst: dict[str, float] = {}
    for row in rows:
        if row.set_size == largest:
            worst[row.constraint] = max(worst.get(row.constraint, 0.0), row.bias)
    best = min(worst, key=lambda constraint: worst[constraint])
    default = PositiveUnlabeled(0.5).constraint
    return f"Sets of {largest}: {best!r} is least biased (worst {worst[best]:.3f}); the default is {default!r}."


def _conclude(out: Console, exact: list[ExactRow], every: list[Row], seconds: float) -> None:
    bags = sum(row.bags for row in exact)
    double = max(max(row.float64) for row in exact)
    single = max(max(row.float32) for row in exact)
    failed = sum(not row.passed for row in every)
    out.print(
        f"{bags} bags: worst error {double:.1e} in float64, {single:.1e} in float32. "
        f"{failed} of {len(every)} rows failed. {seconds:.0f} s.",
        style="bold red" if failed else "bold green",
        highlight=False,
    )


if __name__ == "__main__":
    raise SystemExit(main())
