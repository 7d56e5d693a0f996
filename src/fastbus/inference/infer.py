"""infer: from predictions and weak labels to the posterior of every instance label."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast, overload

import torch
from torch import Tensor

from fastbus.bag_layout import BagLayout, layout_of
from fastbus.errors import (
    ImpossibleError,
    ImpossibleEvidenceWarning,
    InputError,
    choice,
    sentence,
    where,
)
from fastbus.inference.class_coupling import ClassCoupling
from fastbus.inference.couple import COUPLINGS, Coupled
from fastbus.inference.evolution import StateEvolution
from fastbus.inference.express import express
from fastbus.inference.plugs import Plugs, compact_features, solve_with
from fastbus.inference.posterior import Posterior
from fastbus.inference.predictions import as_predictions, log_probabilities
from fastbus.inference.problem import Problem
from fastbus.inference.valued import with_values_of
from fastbus.numerics import NEG_INF, message_dtype
from fastbus.supervision.base import Supervision, resolve
from fastbus.supervision.incomplete import SimilarDissimilarUnlabeled
from fastbus.supervision.reading import IGNORE_HINT, WeakReader

Function = TypeVar("Function", bound=Callable[..., Any])
Head = Literal["softmax", "sigmoid"]
Coupling = Literal["auto", "independent", "joint", "tilted", "loop"]
Inputs = Literal["logits", "probs", "log_probs"]


@overload
def infer(
    supervision: SimilarDissimilarUnlabeled,
    logits: tuple[Tensor, ...],
    weak: tuple[object, ...],
    mask: object = None,
    *,
    bag_sizes: object = None,
    head: Head = "softmax",
    coupling: Coupling = "auto",
    inputs: Inputs = "logits",
    on_impossible: Literal["error", "ignore"] = "error",
    budget: int = 4096,
    validate: bool = True,
    rank: int | None = None,
    evolution: StateEvolution | None = None,
    features: Any = None,
    class_loop: ClassCoupling | None = None,
) -> tuple[Posterior, ...]: ...


@overload
def infer(
    supervision: Supervision | str,
    logits: Tensor,
    weak: object,
    mask: object = None,
    *,
    bag_sizes: object = None,
    head: Head = "softmax",
    coupling: Coupling = "auto",
    inputs: Inputs = "logits",
    on_impossible: Literal["error", "ignore"] = "error",
    budget: int = 4096,
    validate: bool = True,
    rank: int | None = None,
    evolution: StateEvolution | None = None,
    features: Any = None,
    class_loop: ClassCoupling | None = None,
) -> Posterior: ...


def infer(
    supervision: Supervision | str,
    logits: Any,
    weak: Any,
    mask: Any = None,
    *,
    bag_sizes: Any = None,
    head: Head = "softmax",
    coupling: Coupling = "auto",
    inputs: Inputs = "logits",
    on_impossible: Literal["error", "ignore"] = "error",
    budget: int = 4096,
    validate: bool = True,
    rank: int | None = None,
    evolution: StateEvolution | None = None,
    features: Any = None,
    class_loop: ClassCoupling | None = None,
) -> Posterior | tuple[Posterior, ...]:
    """Posterior P(y | x, w) of every instance label, given predictions and weak labels.

    logits: predictions (B, K, C) with `mask` (B, K), or flat (N, C) with `bag_sizes` (B,).
    weak: the weak labels as the supervision states them; -1 (integers) or NaN (floats) where missing.
    head: "softmax", one class an instance; "sigmoid", any number of classes, C = 1 is binary.
    coupling: how classes that exclude each other are tied together; "auto" is exact where it fits.
    inputs: what `logits` holds; "probs" and "log_probs" may be 0, 1 and -inf.
    on_impossible: "ignore" drops the evidence of bags that no labelling satisfies, and reports
        them.
    budget: joint states a bag may have before a fallback is taken.
    validate: False skips all checks of values, for hot loops and function transforms; impossible bags then pass
        unnoticed, whatever `on_impossible` says.
    rank: states kept in the messages (`fastbus.lossless_rank` tells how many lose nothing); None for all, exactly.
    evolution: a `StateEvolution` that replaces the predictions by label distributions learned for every state,
        read off `features` (B, K, ...) or flat (N, ...). Both work on one chain a class; `map` and `sample` of the
        result stay those of the predictions.
    class_loop: a `ClassLoop` or `ClassTransition` that ties the weak labels of a sigmoid head's classes together.

    Plain counts, multi-instance labels and pairs take kernels of their own; FASTBUS_KERNELS=0 in the environment
    turns them off, and the same numbers come out to rounding.

    A sum over differently grouped bags (similar_dissimilar_unlabeled) takes tuples of predictions,
    weak labels and masks, one entry a term, and returns a tuple.
    """
    quick = None
    neutral = isinstance(class_loop, ClassCoupling) and head == "sigmoid" and class_loop.is_neutral()
    if rank is None and evolution is None and features is None and (class_loop is None or neutral):
        quick = express(
            supervision, logits, weak, mask, bag_sizes, head, coupling, inputs, on_impossible, budget, validate
        )  # fmt: skip
        if quick is not None and class_loop is None:
            return quick
    rule = resolve(supervision)
    choice(coupling, COUPLINGS, "coupling", InputError)
    choice(on_impossible, ("error", "ignore"), "on_impossible", InputError)
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise InputError(f"budget={budget!r}; expected an integer from 1. Give a number of states.")
    plugs = Plugs(rank, evolution, features, class_loop)
    plugs.check()
    options = (head, coupling, inputs, on_impossible, budget, validate, plugs)
    if not isinstance(rule, SimilarDissimilarUnlabeled):
        post = _reported(infer_bags(rule, logits, weak, mask, bag_sizes, *options))
        return post if quick is None else with_values_of(post, quick)
    if evolution is not None:
        raise InputError(
            f"evolution= with {rule.title}; expected one grouping, since each term needs a module of its own. Call "
            "infer for each term."
        )
    count = len(rule.terms)
    masks = (None,) * count if mask is None else mask
    sizes = (None,) * count if bag_sizes is None else bag_sizes
    batches = zip(*(rule.entries(x) for x in (logits, weak, masks, sizes)), strict=True)
    posts = [infer_bags(term, x, w, m, s, *options) for term, (x, w, m, s) in zip(rule.terms, batches, strict=True)]
    for post in posts:
        _reported(post)
    return tuple(posts)


def _reported(post: Posterior) -> Posterior:
    """Warn the caller of `infer` about evidence that was dropped."""
    if bool(post.ignored.any()):
        warnings.warn(
            f"evidence dropped, since no labelling satisfies it: {where(post.ignored)}",
            ImpossibleEvidenceWarning,
            stacklevel=3,
        )
    return post


def _uncompiled(function: Function) -> Function:
    """Keep the compiler out: it would unroll the recursions anew for every shape of a batch.

    Asked only where it is at work, since naming it loads it, and that takes as long as torch itself.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*arguments)
        return function(*arguments)

    return cast(Function, call)


@_uncompiled
def infer_bags(
    rule: Supervision,
    logits: object,
    weak: object,
    mask: object,
    bag_sizes: object,
    head: str,
    coupling: str,
    inputs: str,
    on_impossible: str,
    budget: int,
    validate: bool,
    plugs: Plugs,
) -> Posterior:
    x = as_predictions(logits, head, inputs)
    problem, ignored = read_problem(
        rule,
        x,
        weak,
        mask,
        bag_sizes,
        head,
        inputs=inputs,
        on_impossible=on_impossible,
        budget=budget,
        validate=validate,
    )
    layout = problem.layout
    if plugs.features is not None:
        plugs = plugs._replace(features=compact_features(plugs.features, layout, validate))
    coupled = solve_with(problem, coupling, plugs, validate)
    if validate:
        lost = coupled.solution.log_likelihood.detach() == NEG_INF
        if bool(lost.any()):
            problem, coupled = _without_lost(problem, coupling, lost, on_impossible, plugs)
            ignored = ignored | lost
    return _posterior(problem, coupled, ignored, x, layout)


def read_problem(
    rule: Supervision,
    x: Tensor,
    weak: object,
    mask: object,
    bag_sizes: object,
    head: str,
    *,
    inputs: str = "logits",
    on_impossible: str = "error",
    budget: int = 4096,
    validate: bool = True,
) -> tuple[Problem, Tensor]:
    """Predictions and weak labels as a problem to solve, and the bags (B,) whose evidence was dropped."""
    layout = layout_of(tuple(x.shape), mask, bag_sizes, x.device)
    reader = WeakReader(
        layout,
        int(x.shape[-1]),
        head,
        message_dtype(x.device),
        validate=validate,
        ignore_impossible=on_impossible == "ignore",
        name=rule.title,
    )
    evidence = rule.read(weak, reader)
    ignored = reader.impossible
    if bool(ignored.any()):
        evidence = evidence.without(ignored)
    log_prior = log_probabilities(x, layout, head, inputs, validate)
    return Problem(layout, head, int(x.shape[-1]), log_prior, evidence, budget), ignored


def _without_lost(
    problem: Problem, coupling: str, lost: Tensor, on_impossible: str, plugs: Plugs
) -> tuple[Problem, Coupled]:
    """Complain about bags whose evidence has probability zero, or solve again without it."""
    if on_impossible == "error":
        certain = bool((problem.log_prior.detach() == NEG_INF).any())
        names = " & ".join(problem.evidence.names)
        several = len(problem.evidence.names) > 1
        got = (
            f"{names}: the weak labels of a bag contradict each other"
            if several
            else f"{names}: no labelling of a bag satisfies its weak label"
        )
        if certain:
            got += ", or predictions of probability 0 rule out all that do"
        if plugs.class_loop is not None and not plugs.class_loop.is_neutral():
            got += ", under the factors of the class loop"
        raise ImpossibleError(sentence(got, "at least one labelling that satisfies them all", where(lost), IGNORE_HINT))
    dropped = Problem(
        problem.layout,
        problem.head,
        problem.num_classes,
        problem.log_prior,
        problem.evidence.without(lost),
        problem.budget,
    )
    return dropped, solve_with(dropped, coupling, plugs, validate=True)


def _posterior(problem: Problem, coupled: Coupled, ignored: Tensor, x: Tensor, layout: BagLayout) -> Posterior:
    solution = coupled.solution
    posterior = solution.log_posterior.exp()
    if problem.view == "binary":
        posterior = posterior[..., 1] if problem.head == "sigmoid" else posterior.squeeze(2)
    # half precision would round probabilities to three digits
    dtype = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    return Posterior(
        labels=layout.restore(posterior.to(dtype), 0.0),
        log_likelihood=solution.log_likelihood.to(dtype),
        exact_bags=coupled.exact,
        converged=solution.converged,
        ignored=ignored,
        informed=layout.restore(problem.informed if coupled.informed is None else coupled.informed, False),
        coupling=coupled.route,
        bag_weight=problem.evidence.bag_weight,
        loop_deltas=coupled.loop_deltas,
        _source=problem,
    )
