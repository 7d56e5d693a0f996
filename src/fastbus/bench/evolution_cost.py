"""What learned messages cost: seconds and memory of a training step, beside exact inference, and how they grow.

    python -m fastbus.bench.evolution_cost [--device cuda] [--json]

A step is the backbone's forward pass, inference, the backward pass of both and the optimiser, on bags of random
images and labels: numbers do not change what they cost. Medians after a warm-up, the device waited for before and
after each step. The second part times inference with a StateEvolution alone, forward and backward, while the bags
or the states grow.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar, nnls
from torch import Tensor, nn

from fastbus.inference.evolution import VARIANTS
from fastbus.inference.evolution_build import build_evolution
from fastbus.models.build import BACKBONES, build_backbone
from fastbus.objective import WeakLoss

KINDS = ("label_proportion", "multi_instance")
METHODS = ("network alone", "exact", "exact, independent", "learned")
PROMISED_RATIO, PROMISED_SLOPE = 3.0, 1.1
PATIENCE, FEWEST = 3.0, 7  # seconds of measuring, after which so many repeats are enough
POOL = 8  # different batches, so that nothing is remembered from one step to the next


class Cost(NamedTuple):
    """Median seconds of a step, and the most memory it held on a GPU."""

    seconds: float
    peak_bytes: int | None


class StepCost(NamedTuple):
    kind: str
    method: str
    cost: Cost


class Growth(NamedTuple):
    """Inference alone while one size grows. Slopes are those of log seconds over log size."""

    axis: str
    sizes: list[int]
    costs: list[Cost]

    @property
    def overall(self) -> float:
        """Least squares over all sizes; a constant part makes it small."""
        x, y = ([math.log(v) for v in values] for values in (self.sizes, [cost.seconds for cost in self.costs]))
        return statistics.linear_regression(x, y).slope

    @property
    def last(self) -> float:
        """Between the two largest sizes, where a constant part matters least."""
        (a, b), (s, t) = self.sizes[-2:], (cost.seconds for cost in self.costs[-2:])
        return math.log(t / s) / math.log(b / a)

    @property
    def beyond_constant(self) -> float | None:
        """s of t = c + d n^s that comes nearest to all sizes, errors as shares of t; None where nothing grows."""
        seconds = np.array([cost.seconds for cost in self.costs])
        if len(seconds) < 4 or seconds[-1] <= seconds[0]:
            return None
        sizes = np.array(self.sizes, dtype=float) / max(self.sizes)

        def miss(slope: float) -> float:
            columns = np.stack([np.ones_like(sizes), sizes**slope], axis=1) / seconds[:, None]
            return float(nnls(columns, np.ones_like(sizes))[1])

        return float(minimize_scalar(miss, bounds=(0.01, 3.0), method="bounded").x)


def measure(step: Callable[[], None], device: torch.device, warm_up: int, repeats: int) -> Cost:
    """Run a step again and again."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    start = time.perf_counter()
    for done in range(warm_up):
        step()
        if done + 1 >= FEWEST and time.perf_counter() - start > PATIENCE:
            break
    wait()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
        if len(times) >= FEWEST and sum(times) > PATIENCE:
            break
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Cost(statistics.median(times), peak)


def draw_weak(kind: str, bags: int, size: int, classes: int, generator: torch.Generator) -> Tensor:
    """Weak labels (B, C) of random labels."""
    labels = torch.randint(classes, (bags, size), generator=generator)
    counts = nn.functional.one_hot(labels, classes).sum(1)
    return counts if kind == "label_proportion" else counts.clamp(max=1)


# -- whole steps ------------------------------------------------------------------------------------


def make_step(kind: str, method: str, options: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """One training step as a function; each call takes the next batch."""
    generator = torch.Generator().manual_seed(options.seed)
    B, K, C = options.bags, options.size, options.classes
    network: Any = build_backbone(options.backbone, (3, 32, 32), C, seed=options.seed).to(device)
    weak = [draw_weak(kind, B, K, C, generator).to(device) for _ in range(POOL)]
    images = torch.randint(256, (B * K, 3, 32, 32), generator=generator, dtype=torch.uint8).to(device)
    sizes = torch.full((B,), K, device=device)
    loss: nn.Module | None = None
    if method != "network alone":
        joint = method == "learned"
        given: dict[str, Any] = {"coupling": "auto" if method == "exact" else "independent"}
        if joint:
            torch.manual_seed(options.seed)
            flat, features = torch.zeros(B * K, C), int(network.num_features)
            given["evolution"] = build_evolution(
                kind, flat, weak[0].cpu(), features, bag_sizes=sizes.cpu(), variant=options.variant
            )
        loss = WeakLoss(kind, mode="joint" if joint else "em", **given).to(device)
    learned = [*network.parameters(), *(loss.parameters() if loss is not None else ())]
    optimizer = torch.optim.SGD(learned, lr=1e-4, momentum=0.9, nesterov=True)
    network.train()
    batches = cycle(weak)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            features = network.features(images.float() / 255)
            logits = network.classify(features)
        if loss is None:
            value = logits.float().logsumexp(-1).mean()
        elif method == "learned":
            value = loss(logits.float(), next(batches), bag_sizes=sizes, features=features.float())
        else:
            value = loss(logits.float(), next(batches), bag_sizes=sizes)
        value.backward()
        optimizer.step()

    return step


def measure_steps(options: argparse.Namespace, device: torch.device) -> list[StepCost]:
    return [
        StepCost(
            kind, method, measure(make_step(kind, method, options, device), device, options.warm_up, options.repeats)
        )
        for kind in KINDS
        for method in METHODS
    ]


def ratio(rows: list[StepCost], kind: str, to: str) -> float:
    """Seconds of a step with learned messages over those of another method."""
    seconds = {row.method: row.cost.seconds for row in rows if row.kind == kind}
    return seconds["learned"] / seconds[to]


# -- inference alone --------------------------------------------------------------------------------


def learned_inference(
    kind: str, size: int, states: int | None, options: argparse.Namespace, device: torch.device
) -> Callable[[], None]:
    """Loss and gradient of given logits and features; `states` limits the counts, and the messages to them."""
    generator = torch.Generator().manual_seed(options.seed)
    B, C, E = options.bags, options.classes, options.features
    logits = torch.randn(B, size, C, generator=generator).to(device).requires_grad_()
    features = torch.randn(B, size, E, generator=generator).to(device).requires_grad_()
    if states is None:
        weak = draw_weak(kind, B, size, C, generator)
    else:
        # as sigmoid counts, which need not sum to the bag size
        weak = torch.randint(states, (B, C), generator=generator)
    head: Any = "softmax" if states is None else "sigmoid"
    torch.manual_seed(options.seed)
    module = build_evolution(kind, logits.detach().cpu(), weak, E, head=head, variant=options.variant)
    loss = WeakLoss(kind, head=head, mode="joint", evolution=module, rank=states).to(device)
    weak = weak.to(device)

    def step() -> None:
        loss.zero_grad()
        logits.grad = features.grad = None
        loss(logits, weak, features=features).backward()

    return step


def measure_growth(options: argparse.Namespace, device: torch.device) -> list[Growth]:
    """Bags of two states that grow; counts in the largest bag, of more and more states."""
    longest = max(options.lengths)

    def cost(kind: str, size: int, states: int | None) -> Cost:
        step = learned_inference(kind, size, states, options, device)
        return measure(step, device, options.warm_up, options.repeats)

    lengths = [cost("multi_instance", size, None) for size in options.lengths]
    states = [cost("label_proportion", longest, count) for count in options.states]
    return [Growth("instances K", options.lengths, lengths), Growth("states Z", options.states, states)]


# -- output -----------------------------------------------------------------------------------------


def as_json(rows: list[StepCost], growth: list[Growth], options: argparse.Namespace, device: str) -> dict[str, Any]:
    return {
        "device": device,
        "torch": torch.__version__,
        "options": {name: value for name, value in vars(options).items() if name != "json"},
        "steps": [{"kind": row.kind, "method": row.method, **row.cost._asdict()} for row in rows],
        "ratios": {kind: {to: ratio(rows, kind, to) for to in METHODS[1:3]} for kind in KINDS},
        "growth": [
            {
                "axis": line.axis,
                "sizes": line.sizes,
                "seconds": [cost.seconds for cost in line.costs],
                "peak_bytes": [cost.peak_bytes for cost in line.costs],
                "slope_overall": line.overall,
                "slope_last": line.last,
                "slope_beyond_constant": line.beyond_constant,
            }
            for line in growth
        ],
    }


def _memory(cost: Cost) -> str:
    return "" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:,.0f} MiB"


def show(rows: list[StepCost], growth: list[Growth], device: str, file: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120, file=file)
    table = Table(title=f"a whole training step on {device}")
    for heading in ("kind", "inference", "ms a step", "memory", "learned / this", f"promise <= {PROMISED_RATIO:g}"):
        table.add_column(heading, justify="left" if heading in ("kind", "inference") else "right")
    for row in rows:
        against = ratio(rows, row.kind, row.method)
        exact = row.method.startswith("exact")
        kept = ("kept" if against <= PROMISED_RATIO else "BROKEN") if exact else ""
        cells = (f"{1000 * row.cost.seconds:.2f}", _memory(row.cost), f"{against:.2f}", kept)
        table.add_row(row.kind, row.method, *cells)
    console.print(table)
    for line in growth:
        table = Table(title=f"learned inference alone, forward and backward, by {line.axis}")
        table.add_column(line.axis, justify="right")
        table.add_column("ms", justify="right")
        table.add_column("memory", justify="right")
        for size, cost in zip(line.sizes, line.costs, strict=True):
            table.add_row(str(size), f"{1000 * cost.seconds:.2f}", _memory(cost))
        console.print(table)
        beyond = line.beyond_constant
        console.print(
            f"log-log slope {line.overall:.2f} over all, {line.last:.2f} at the end, beyond the constant part "
            f"{'none' if beyond is None else format(beyond, '.2f')} (promise <= {PROMISED_SLOPE:g})"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fastbus.bench.evolution_cost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", default="wrn_28_2", choices=BACKBONES)
    parser.add_argument("--variant", default="full", choices=VARIANTS)
    parser.add_argument("--bags", type=int, default=16)
    parser.add_argument("--size", type=int, default=10, help="instances of a bag in whole steps")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--features", type=int, default=128, help="of an instance, where inference is alone")
    parser.add_argument("--lengths", type=int, nargs="+", default=[5, 10, 20, 40, 80, 160, 320])
    parser.add_argument("--states", type=int, nargs="+", default=[5, 10, 20, 40, 80, 160, 320])
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--bf16", action="store_true", help="run the network under autocast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON, and the tables to the error stream")
    options = parser.parse_args(argv)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no CUDA device is present; run this on a machine with a GPU, or pass --device cpu")
    if min(len(options.lengths), len(options.states)) < 2 or max(options.states) > max(options.lengths) + 1:
        parser.error("at least two --lengths and --states are needed, and no bag counts beyond its size")
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    rows, growth = measure_steps(options, device), measure_growth(options, device)
    show(rows, growth, name, sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(as_json(rows, growth, options, name)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
