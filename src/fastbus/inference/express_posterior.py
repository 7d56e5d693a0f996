"""The answer of a kernel: labels and log-likelihood are there, all else is made when it is asked for.

Small batches take a kernel a few microseconds, and a tensor costs one to make, so that those that hardly anybody
reads would take longer than the inference.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbus.errors import InputError
from fastbus.inference.express_inputs import Rows
from fastbus.inference.posterior import Posterior
from fastbus.inference.problem import Problem
from fastbus.supervision.base import Supervision

MISSING = -1


class Kept:
    """A tensor of the caller on a GPU, where a copy would be one more launch; told whether it is still as it was."""

    def __init__(self, x: Tensor) -> None:
        # tensors of inference mode do not count their changes
        self.x = x.clone() if x.is_inference() else x
        self.version = _version(self.x)

    def __getstate__(self) -> dict[str, Any]:
        return {"x": self.x, "changed": _version(self.x) != self.version}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy or a file, which counts its own changes."""
        self.x = state["x"]
        self.version = STALE if state["changed"] else _version(self.x)

    def tensor(self) -> Tensor:
        if _version(self.x) != self.version:
            raise InputError(
                "predictions or weak labels were written into after infer; expected them as they were, since they lie "
                "on a GPU and are not copied. Call infer again, or pass copies."
            )
        return self.x


STALE = -1


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def tensor_of(value: Any) -> Tensor:
    """A tensor that was kept, or an array."""
    return value.tensor() if isinstance(value, Kept) else torch.as_tensor(value)


class Given(NamedTuple):
    """What was solved, on a CPU in copies of its own: the caller may write into tensors that were passed."""

    rule: Supervision
    x: Any  # (B, K, C) or (N, C), a tensor or an array
    weak: Any  # (B, C), of pairs (B,)
    rows: Rows
    head: str
    budget: int

    def __call__(self) -> Problem:
        """The problem as the ordinary path states it."""
        from fastbus.inference.infer import read_problem

        x, weak, rows = tensor_of(self.x), tensor_of(self.weak), self.rows
        options: dict[str, Any] = {"budget": self.budget, "validate": False}
        return read_problem(self.rule, x, weak, rows.mask, rows.bag_sizes, self.head, **options)[0]


class QuickPosterior(Posterior):
    """A Posterior of bags that are all solved exactly."""

    @cached_property
    def exact_bags(self) -> Tensor:
        return torch.ones_like(self.log_likelihood, dtype=torch.bool)

    @cached_property
    def converged(self) -> Tensor:
        return torch.ones_like(self.log_likelihood, dtype=torch.bool)

    @cached_property
    def ignored(self) -> Tensor:
        return torch.zeros_like(self.log_likelihood, dtype=torch.bool)

    @cached_property
    def coupling(self) -> list[str]:
        given: Any = self._source
        return ["independent" if given.head == "sigmoid" else "joint"] * len(given.rows.sizes)

    @cached_property
    def informed(self) -> Tensor:
        given: Any = self._source
        weak, rows, shape = tensor_of(given.weak), given.rows, self.labels.shape
        told = ~weak.isnan() if weak.is_floating_point() else weak != MISSING
        told = told.reshape(len(told), -1)
        if given.head == "softmax":  # classes exclude each other, so that one label speaks about all of them
            told = told.any(1, keepdim=True)
        if rows.flat:
            return told.repeat_interleave(rows.sizes, 0).expand(shape).clone()
        informed = told.unsqueeze(1).expand(shape).clone()
        return informed if rows.mask is None else informed & rows.mask[..., None]


def quick_posterior(labels: Tensor, log_likelihood: Tensor, given: Given) -> Posterior:
    """Without the constructor, which would ask for every field."""
    post = object.__new__(QuickPosterior)
    post.__dict__.update(labels=labels, log_likelihood=log_likelihood, _source=given)
    return post
