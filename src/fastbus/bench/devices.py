"""The same problems on two devices: posteriors, likelihoods, gradients and labellings must agree.

python -m fastbus.bench.devices [--device cuda] [--bags 64] [--seed 0] [--workers 1]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastbus.bench.problems import CASES, Case
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior

SCALES = (0.3, 1.0, 10.0)
TOLERANCE = 1e-10
LINE = "{:<72} {:>9} {:>14} {:>9} {:>10} {:>5}"


class Agreement(NamedTuple):
    """Worst differences of one case between the two devices, in float64."""

    case: str
    posterior: float
    likelihood: float  # relative to max(1, |log P|)
    gradient: float
    labellings: int  # most probable labellings that are not equally probable

    @property
    def passed(self) -> bool:
        return max(self.posterior, self.likelihood, self.gradient) <= TOLERANCE and not self.labellings


def moved(x: Any, device: str) -> Any:
    """Tensors, alone or in tuples, on a device."""
    if isinstance(x, Tensor):
        return x.to(device)
    return tuple(moved(entry, device) for entry in x) if isinstance(x, tuple) else x


def _answers(problem: Any, device: str) -> tuple[list[Posterior], list[Tensor]]:
    given = {name: moved(value, device) for name, value in problem.arguments.items()}
    logits = given["logits"] if isinstance(given["logits"], tuple) else (given["logits"],)
    leaves = tuple(x.detach().requires_grad_() for x in logits)
    given["logits"] = leaves if isinstance(given["logits"], tuple) else leaves[0]
    answer: Any = infer(problem.supervision, **given)
    posts = list(answer) if isinstance(answer, tuple) else [answer]
    total = torch.stack([post.log_likelihood.sum() for post in posts]).sum()
    return posts, list(torch.autograd.grad(total, leaves))


def compare(case: Case, device: str, bags: int, seed: int) -> Agreement:
    """Solve the same bags on the CPU and on `device`."""
    rng = np.random.default_rng(seed)
    worst = np.zeros(3)
    different = 0
    for scale in SCALES:
        problem = case.make(rng, scale=scale, bags=bags)
        here, gradients = _answers(problem, "cpu")
        there, far_gradients = _answers(problem, device)
        for post, far, gradient, far_gradient in zip(here, there, gradients, far_gradients, strict=True):
            scale_of = post.log_likelihood.detach().abs().clamp(min=1.0)
            gap = (far.log_likelihood.cpu() - post.log_likelihood).detach().abs() / scale_of
            pairs = ((far.labels.cpu(), post.labels), (far_gradient.cpu(), gradient))
            posterior, slope = (float((a - b).detach().abs().max()) for a, b in pairs)
            worst = np.maximum(worst, [posterior, float(gap.max()), slope])
            different += int((far.map().cpu() != post.map()).any()) if scale == 1.0 else 0
    posterior, likelihood, slope = (float(value) for value in worst)
    return Agreement(case.name, posterior, likelihood, slope, different)


def compare_all(device: str, bags: int, seed: int, workers: int) -> Iterator[Agreement]:
    """All cases in their order, each as soon as it and those before it are done."""
    solve = partial(_compare_named, device=device, bags=bags, seed=seed)
    names = list(enumerate(CASES))
    if workers == 1:
        yield from map(solve, names)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(solve, names)


def _compare_named(numbered: tuple[int, str], device: str, bags: int, seed: int) -> Agreement:
    index, name = numbered
    return compare(CASES[name], device, bags, seed + index)


def main(argv: list[str] | None = None) -> int:
    """Print one line a case; 0 if all of them agree."""
    parser = argparse.ArgumentParser(prog="python -m fastbus.bench.devices", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bags", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes side by side (default: 1)")
    options = parser.parse_args(argv)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no CUDA device is present; run this on a machine with a GPU, or pass --device cpu")
    if options.workers < 1 or options.bags < 1:
        parser.error("--workers and --bags are counts; expected whole numbers from 1")
    print(f"cpu against {options.device}, float64: worst differences of {options.bags * len(SCALES)} bags a case")
    print(LINE.format("case", "posterior", "log-likelihood", "gradient", "labellings", ""))
    failed = 0
    for row in compare_all(options.device, options.bags, options.seed, options.workers):
        figures = (f"{x:.1e}" for x in (row.posterior, row.likelihood, row.gradient))
        print(LINE.format(row.case, *figures, row.labellings, "PASS" if row.passed else "FAIL"), flush=True)
        failed += not row.passed
    print(f"{len(CASES) - failed} of {len(CASES)} cases agree to {TOLERANCE:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
