"""The express way through `infer`: plain counts, multi-instance labels and pairs, by kernels that do it all at once.

It takes the common case and nothing else: logits in float32 or float64, numbers as weak labels, bags that are
padded at their end or flat, everything solved exactly. The kernels check as they go, and answer with a status instead
of an error. Whatever is unusual returns None, and the ordinary path, which it must equal, treats it from the start.
FASTBUS_KERNELS=0 in the environment turns all such kernels off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from os import environ
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbus.inference.express_gradient import differentiable
from fastbus.inference.express_inputs import (
    Rows,
    as_tensor,
    has_values,
    pair_labels,
    plain_rule,
    rows_of,
    whole_numbers,
)
from fastbus.inference.express_posterior import Given, Kept, quick_posterior, tensor_of
from fastbus.inference.plugs import Plugs
from fastbus.inference.posterior import Posterior
from fastbus.supervision.base import Supervision

COUPLINGS = {"sigmoid": ("auto", "independent", "joint"), "softmax": ("auto", "joint")}
PAIRS = ("sorted", "labelled", "similar", "similarity", "difference")
# (on the CPU, head, kind of rule) to a module and the function in it
KERNELS = {
    (True, "sigmoid", "count"): ("cpu_quadrature", "solve_bags"),
    (True, "sigmoid", "any"): ("cpu_any", "solve_arrays"),
    (True, "softmax", "count"): ("cpu_lattice", "solve_arrays"),
    (True, "softmax", "any"): ("cpu_lattice", "solve_arrays"),
    (False, "sigmoid", "count"): ("gpu_counts", "solve_counts"),
    (False, "sigmoid", "any"): ("gpu_any", "solve_any"),
    (False, "softmax", "count"): ("lattice", "solve_lattice"),
    (False, "softmax", "any"): ("lattice", "solve_lattice"),
}
KERNELS |= {(True, head, kind): ("cpu_pairs", "solve_arrays") for head in COUPLINGS for kind in PAIRS}
KERNELS |= {(False, head, kind): ("gpu_pairs", "solve_pairs") for head in COUPLINGS for kind in PAIRS}


def express(
    supervision: Supervision | str,
    logits: Any,
    weak: Any,
    mask: Any,
    bag_sizes: Any,
    head: str,
    coupling: str,
    inputs: str,
    on_impossible: str,
    budget: int,
    validate: bool,
) -> Posterior | None:
    """What `infer` returns with these arguments and nothing plugged in, or None if they are not the plain case."""
    if (
        not type(head) is type(coupling) is type(inputs) is type(on_impossible) is str
        or inputs != "logits"
        or (head != "sigmoid" and head != "softmax")
        or coupling not in COUPLINGS[head]
        or (on_impossible != "error" and on_impossible != "ignore")
        or type(budget) is not int
        or budget < 1
        or torch.compiler.is_compiling()
        or environ.get("FASTBUS_KERNELS") == "0"
    ):
        return None
    plain = plain_rule(supervision)
    if plain is None:
        return None
    x, said = as_tensor(logits), as_tensor(weak)
    if x is None or said is None or not (x.is_cpu or x.is_cuda):
        return None
    kernel = _kernel(x.is_cpu, head, plain.kind)
    rows = rows_of(x, mask, bag_sizes)
    if kernel is None or rows is None or rows.longest > kernel.longest or x.shape[-1] > kernel.widest:
        return None
    dtype, C = x.dtype, x.shape[-1]
    if (dtype != torch.float32 and dtype != torch.float64) or C == 0 or (C == 1 and head == "softmax"):
        return None
    B = rows.sizes.shape[0]
    said = pair_labels(said, B, x, head, plain.kind) if plain.of_pairs else whole_numbers(said, B, C, x)
    given = (x.detach() if x.requires_grad else x).contiguous().resolve_neg()
    if said is None or not has_values(x, said):
        return None
    traced = x.requires_grad and torch.is_grad_enabled()
    if x.is_cpu:
        solved = _on_cpu(kernel, given, said, rows, budget, traced)
    else:
        solved = _on_gpu(kernel, given, said, rows, budget, traced, validate)
    if solved is None:
        return None
    labels, likelihood, kept = solved
    if traced:
        rest = (
            tensor_of(kept[1]),
            rows.mask,
            rows.bag_sizes,
            head,
            coupling,
            "logits",
            on_impossible,
            budget,
            False,
            Plugs(),
        )
        real = None if rows.mask is None else rows.mask[..., None]
        ordinary = partial(_ordinary, plain.rule, rest)
        labels, likelihood = differentiable(x.double(), labels, likelihood, head, real, rows.spread, ordinary)
        labels, likelihood = labels.to(dtype), likelihood.to(dtype)
    return quick_posterior(labels, likelihood, Given(plain.rule, *kept, rows, head, budget))


class Kernel(NamedTuple):
    """A function, what it is told beside the batch, the largest bag it takes, and the most classes."""

    function: Callable[..., Any]
    options: dict[str, Any]
    asks: str  # what else it wants to know of a batch, "budget" or "longest"
    longest: int
    widest: int = 2**31


@cache
def _kernel(on_cpu: bool, head: str, kind: str) -> Kernel | None:
    """None where there is no kernel, or what it needs is not installed."""
    if (on_cpu, head, kind) not in KERNELS:
        return None
    name, function = KERNELS[on_cpu, head, kind]
    try:
        module = import_module(f"fastbus.inference.kernels.{name}")
    except ImportError:
        return None
    solve = getattr(module, function)
    if kind in PAIRS:
        return Kernel(solve, {"kind": kind}, "", module.LONGEST)
    if head == "softmax":
        return Kernel(solve, {"seen": kind == "any"}, "budget", module.LONGEST)
    asks = "longest" if function == "solve_bags" else ""
    return Kernel(solve, {}, asks, module.LONGEST, getattr(module, "WIDEST", 2**31))


# labels, log-likelihood, and the predictions and the weak labels to be kept
Solved = tuple[Tensor, Tensor, tuple[Any, Any]]


def _on_cpu(kernel: Kernel, x: Tensor, weak: Tensor, rows: Rows, budget: int, wide: bool) -> Solved | None:
    """wide: answer in float64, whatever the logits are."""
    array, said = x.numpy(), weak.numpy()
    given = array.astype("float64") if wide else array
    assert rows.arrays is not None
    options = kernel.options
    if kernel.asks:
        # compiled code knows 64 bits, and multiplies what is below the budget
        options = {**options, kernel.asks: min(budget, 2**40) if kernel.asks == "budget" else rows.longest}
    posterior, likelihood, status = kernel.function(given, *rows.arrays, said, **options)
    if status:
        return None
    likelihood = likelihood.astype(given.dtype, copy=False)
    return torch.from_numpy(posterior), torch.from_numpy(likelihood), (array.copy(), said.copy())


def _on_gpu(
    kernel: Kernel, x: Tensor, weak: Tensor, rows: Rows, budget: int, wide: bool, validate: bool
) -> Solved | None:
    """Reading the status waits for the device, so that it is left unread where nothing is to be checked.

    Not under a softmax head, where it also says that a bag is beyond the budget.
    """
    flat = x.reshape(-1, x.shape[-1])
    given = flat.double() if wide else flat
    options = {**kernel.options, "longest": rows.longest, "padded": not rows.flat}
    options |= {"budget": budget} if kernel.asks == "budget" else {"rounded": True}
    posterior, likelihood, status = kernel.function(given, rows.starts, rows.sizes, weak, **options)
    # a copy to the host is the one wait; a sum on the device would be one more launch
    if (validate or kernel.asks == "budget") and status.cpu().numpy().any():
        return None
    return posterior.view(x.shape), likelihood.to(posterior.dtype), (Kept(x), Kept(weak))


def _ordinary(rule: Supervision, rest: tuple[Any, ...], x: Tensor) -> tuple[Tensor, Tensor]:
    from fastbus.inference.infer import infer_bags

    post = infer_bags(rule, x, *rest)
    return post.labels, post.log_likelihood
