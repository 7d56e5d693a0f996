"""The E-step alone: the kernel below `infer`, called on rows and weak labels that are read and checked beforehand.

Where no kernel is at hand for a kind of weak label, `infer(validate=False)` stands in and the table says so.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor

from fastbus.bench.speed.cells import Inputs
from fastbus.bench.speed.timing import Call
from fastbus.bench.speed.work import lattice_points
from fastbus.inference.infer import infer

KERNELS = {
    ("cpu", "counts"): ("cpu_counts", "solve_counts"),
    ("cpu", "any"): ("cpu_any", "solve_any"),
    ("cpu", "long counts"): ("cpu_quadrature", "solve_counts"),
    ("cpu", "lattice"): ("cpu_lattice", "solve_lattice"),
    ("cpu", "pairs"): ("cpu_pairs", "solve_pairs"),
    ("cuda", "counts"): ("gpu_counts", "solve_counts"),
    ("cuda", "any"): ("gpu_any", "solve_any"),
    ("cuda", "lattice"): ("lattice", "solve_lattice"),
    ("cuda", "pairs"): ("gpu_pairs", "solve_pairs"),
}
PAIR_KINDS = {
    "pair_comparison": "sorted",
    "pair_similarity": "similar",
    "similarity_confidence": "similarity",
    "confidence_difference": "difference",
}
STAND_IN = "infer(validate=False)"


def infer_call(inputs: Inputs, validate: bool = True) -> Call:
    """The public call, as a user writes it."""
    rule, logits, weak, mask, head = inputs.rule, inputs.logits, inputs.weak, inputs.mask, inputs.cell.head
    return lambda: infer(rule, logits, weak, mask, head=head, validate=validate)


def inner_call(inputs: Inputs) -> tuple[Call, str]:
    """The kernel on flat rows, and its name."""
    kernel, name = _kernel(inputs)
    if kernel is None:
        return infer_call(inputs, validate=False), STAND_IN
    cell = inputs.cell
    B, K, C = inputs.logits.shape
    rows = inputs.logits.reshape(B * K, C)
    starts = torch.arange(B, device=rows.device) * K
    sizes, weak = inputs.sizes, inputs.weak
    bounds: dict[str, Any] = {"longest": K, "padded": True}  # of which a kernel takes what it needs
    if cell.group == "pairs":
        bounds["kind"] = PAIR_KINDS[cell.kind]
    elif cell.head == "softmax":
        seen = cell.kind == "multi_instance"
        bounds |= {"seen": seen, "points": int(lattice_points(weak, seen).max())}
    known = inspect.signature(kernel).parameters
    options = {name: bound for name, bound in bounds.items() if name in known}

    def call() -> Any:
        return kernel(rows, starts, sizes, weak, **options)

    return (call, name) if solves(call()) else (infer_call(inputs, validate=False), STAND_IN)


def solves(answer: tuple[Any, ...]) -> bool:
    """Whether a kernel's status, its third result, says that it did not leave the case to the ordinary path."""
    return len(answer) < 3 or not bool(torch.as_tensor(answer[2]).any())


def posterior_of(answer: Any, inputs: Inputs) -> Tensor:
    """The posterior (B, K, C) in whatever an answer holds it: first of a tuple, `labels`, flat, or bag by bag."""
    found = getattr(answer, "labels", answer)
    found = found[0] if isinstance(found, tuple) else found
    if isinstance(found, list):
        found = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
    posterior = found.reshape(inputs.logits.shape)
    return posterior if inputs.mask is None else torch.where(inputs.mask[..., None], posterior, 0.0)


def _kernel(inputs: Inputs) -> tuple[Any, str]:
    place, task = inputs.logits.device.type, _task(inputs)
    if (place, task) not in KERNELS:
        return None, ""
    module, function = KERNELS[place, task]
    try:
        found = importlib.import_module(f"fastbus.inference.kernels.{module}")
    except ImportError:  # numba and Triton are optional
        return None, ""
    return getattr(found, function), f"{module}.{function}"


def _task(inputs: Inputs) -> str:
    cell = inputs.cell
    if cell.group == "pairs":
        return "pairs"
    if cell.head == "softmax":
        return "lattice"
    if cell.kind != "label_proportion":
        return "any"
    try:
        from fastbus.inference.kernels.cpu_quadrature import longest_by_recursion
    except ImportError:
        return "counts"
    long = inputs.logits.is_cpu and inputs.logits.shape[1] > longest_by_recursion(inputs.logits.shape[2])
    return "long counts" if long else "counts"
