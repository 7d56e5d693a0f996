"""What may take the place of exact messages: fewer states, learned labels, or both."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from fastbus.bag_layout import BagLayout, read_tensor
from fastbus.errors import InputError, reject
from fastbus.inference.class_coupling import ClassCoupling
from fastbus.inference.couple import Coupled, solve
from fastbus.inference.evolution import StateEvolution
from fastbus.inference.evolved import solve_learned
from fastbus.inference.lowrank import check_rank, solve_lowrank
from fastbus.inference.problem import Problem
from fastbus.numerics import NEG_INF


class Plugs(NamedTuple):
    """rank: states kept, None for all. evolution: learned labels, with the features (B, K, ...) they are read off.

    class_loop: what ties the weak labels of the classes together.
    """

    rank: int | None = None
    evolution: StateEvolution | None = None
    features: Any = None
    class_loop: ClassCoupling | None = None

    def check(self) -> None:
        """Refuse halves of a pair, and what is no module."""
        check_rank(self.rank)
        check_modules(self.evolution, self.class_loop)
        if (self.evolution is None) != (self.features is None):
            given, missing = ("features", "evolution") if self.evolution is None else ("evolution", "features")
            raise InputError(f"{given} without {missing}; expected both or neither. Pass {missing}= as well.")
        if self.class_loop is not None and (self.rank is not None or self.evolution is not None):
            raise InputError(
                "class_loop with rank or evolution; expected exact chains, whose weak labels are tied together. Pass "
                "one or the other."
            )


def check_modules(evolution: object, class_loop: object) -> None:
    """Refuse names: only a classifier, which knows its data, can make a module of one."""
    for name, given, expected in (
        ("evolution", evolution, "a StateEvolution, or None. Build one with build_evolution."),
        ("class_loop", class_loop, "a ClassLoop or ClassTransition, or None. See ClassLoop.from_labels."),
    ):
        if given is not None and not isinstance(given, nn.Module):
            raise InputError(f"{name} of type {type(given).__name__}; expected {expected}")


def solve_with(problem: Problem, coupling: str, plugs: Plugs, validate: bool) -> Coupled:
    """Solve every bag of a problem, exactly unless something is plugged in; features are compact."""
    if plugs.evolution is not None and plugs.features is not None:
        learned = solve_learned(problem, coupling, plugs.rank, plugs.evolution, plugs.features)
        if validate and plugs.rank is not None and bool((learned.solution.log_likelihood.detach() == NEG_INF).any()):
            solve_lowrank(problem, coupling, plugs.rank, validate)  # names the bags and the rank they need
        return learned
    if plugs.rank is not None:
        return solve_lowrank(problem, coupling, plugs.rank, validate)
    return solve(problem, coupling, plugs.class_loop)


def compact_features(features: object, layout: BagLayout, validate: bool) -> Tensor:
    """The caller's features (B, K, ...) or (N, ...) as compact bags (B, K, ...), zeros at padding."""
    x = read_tensor(
        features,
        "features",
        InputError,
        expected="a tensor (B, K, E), or (N, E) with bag_sizes",
        cure="Pass what the predictions were made from.",
        device=layout.mask.device,
    )
    axes = len(layout.shape)
    if tuple(x.shape[:axes]) != layout.shape or x.dim() == axes:
        raise InputError(
            f"features of shape {tuple(x.shape)}; expected ({', '.join(map(str, layout.shape))}, E), one row for each "
            "prediction. Pass what the predictions were made from, in the same layout."
        )
    x = layout.compact(x)
    x = x.masked_fill(~layout.mask.reshape(layout.mask.shape + (1,) * (x.dim() - 2)), 0)
    if validate and not bool(x.isfinite().all()):
        reject(
            InputError,
            ~x.isfinite(),
            got="NaN or infinite features",
            expected="finite numbers",
            cure="Look for a diverged model or missing values.",
        )
    return x
