"""The same problems on two devices: posteriors, likelihoods, gradients and labellings must agree.

python -m fastbus.bench.devices [--device cuda] [--bags 64] [--seed 0]
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastbus.bench.problems import CASES, Case
from fastbus.inference.infer import infer
from fastbus.inference.posterior import Posterior

SCALES = (0.3, 1.0, 10.0)
TOLERANCE = 1e-10


class Agreement(NamedTuple):
    """Worst differences of one case between the two devices, in float64."""

    case: str
    bags: int
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
    return Agreement(case.name, bags * len(SCALES), posterior, likelihood, slope, different)


def main(argv: list[str] | None = None) -> int:
    """Print one row a case; 0 if all of them agree."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    parser = argparse.ArgumentParser(prog="python -m fastbus.bench.devices", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bags", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("no CUDA device is present; run this on a machine with a GPU, or pass --device cpu")
    table = Table(title=f"cpu against {options.device}, float64: worst differences")
    for heading in ("case", "bags", "posterior", "log-likelihood", "gradient", "labellings", ""):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    rows = [
        compare(case, options.device, options.bags, options.seed + index) for index, case in enumerate(CASES.values())
    ]
    for row in rows:
        cells = (f"{row.posterior:.1e}", f"{row.likelihood:.1e}", f"{row.gradient:.1e}", str(row.labellings))
        table.add_row(escape(row.case), str(row.bags), *cells, "PASS" if row.passed else "FAIL")
    Console(width=140).print(table)
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
