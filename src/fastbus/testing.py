"""The contract of a supervision, executable: what every rule must pass before it is trusted.

`check_supervision(MyRule())` tests the rule's own promises (states, steps, probabilities), then the engine's
answers for it against enumeration, on random bags under every head the rule can serve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.inference.infer import Head, infer
from fastbus.oracle import enumerate_posterior
from fastbus.supervision.base import Supervision, takes_position
from fastbus.supervision.combine import Combination
from fastbus.supervision.compress import CompressedRule
from fastbus.supervision.pairwise import SimilarPair
from fastbus.testing_examples import example_weak

TOLERANCE = 1e-11
SUM_TOLERANCE = 1e-6  # rules may state probabilities in float32: torch.where(hit, 0.9, 0.1)


def check_supervision(
    supervision: Supervision,
    *,
    bag_sizes: Sequence[int] = (1, 2, 3, 4),
    num_labels: int = 3,
    weak_labels: Sequence[Any] | None = None,
    seed: int = 0,
) -> None:
    """Raise a SupervisionError with the first broken promise; return None if all are kept.

    bag_sizes: sizes to try; rules for one size only are tried at that size.
    num_labels: classes of the softmax problems (a rule from a function or a confusion matrix brings its
        own number).
    weak_labels: the finite set of weak labels, if the rule's method `weak_labels` does not give it.
    """
    if not isinstance(supervision, Supervision):
        raise SupervisionError(
            f"{supervision!r} is no Supervision; expected an instance of a subclass. "
            "Derive the class from fastbus.Supervision and pass an instance."
        )
    generator = torch.Generator().manual_seed(seed)
    sizes = [supervision.bag_size] if supervision.bag_size is not None else list(bag_sizes)
    num_labels = _num_labels(supervision, num_labels)
    read_labels = 2 if supervision.labels == "per_class" else num_labels
    if _has_own(supervision, "step"):
        for size in sizes:
            _check_steps(supervision, size, read_labels)
    if _has_own(supervision, "evidence"):
        for size in sizes:
            known = weak_labels if weak_labels is not None else supervision.weak_labels(size)
            if known is not None:
                _check_evidence(supervision, size, read_labels, list(known))
    for head, classes in _heads(supervision, num_labels):
        _check_answers(supervision, head, classes, sizes, weak_labels, generator)


def _has_own(supervision: Supervision, method: str) -> bool:
    return getattr(type(supervision), method) is not getattr(Supervision, method)


def _num_labels(supervision: Supervision, otherwise: int) -> int:
    """The number of labels that a rule was made for."""
    for part in supervision.parts if isinstance(supervision, Combination) else (supervision,):
        confusion = getattr(part, "transition", getattr(part, "transitions", None))
        if confusion is not None:
            return int(confusion.shape[-1])
        if isinstance(part, CompressedRule):
            return part.num_labels
    return otherwise


def _heads(supervision: Supervision, num_labels: int) -> list[tuple[Head, int]]:
    """Heads and numbers of classes that the rule can serve."""
    if isinstance(supervision, Combination):
        each = [_heads(part, num_labels) for part in supervision.parts]
        return [head for head in each[0] if all(head in others for others in each)]
    if supervision.binary:
        return [("sigmoid", 1), ("softmax", 2)]
    made_for = _num_labels(supervision, 0)
    if supervision.labels == "categorical" and made_for:
        return [("softmax", made_for)]
    if supervision.labels == "categorical":
        return [("sigmoid", 1), ("softmax", num_labels)]
    return [("sigmoid", 1), ("sigmoid", 2), ("softmax", 2), ("softmax", num_labels)]


def _fail(supervision: Supervision, broken: str, cure: str) -> NoReturn:
    raise SupervisionError(f"{supervision.title}: {broken}. {cure}")


def _check_steps(supervision: Supervision, bag_size: int, num_labels: int) -> None:
    """States stay in range from 0 on; step is elementwise, repeatable and leaves its input alone."""
    Z = _states(supervision, bag_size, num_labels)
    reachable = {0}
    for position in range(bag_size):
        states = torch.tensor(sorted(reachable))[:, None].expand(-1, num_labels).contiguous()
        labels = torch.arange(num_labels).expand(len(states), -1).contiguous()
        kept = states.clone(), labels.clone()
        grid = _step(supervision, states, labels, position)
        if not torch.equal(states, kept[0]) or not torch.equal(labels, kept[1]):
            _fail(supervision, "step changes its input in place", "Return a new tensor.")
        if not torch.equal(grid, _step(supervision, *kept, position)):
            _fail(supervision, "step gives two answers to one question", "Keep no memory of calls.")
        for state, label, following in zip(
            states.flatten().tolist(),
            labels.flatten().tolist(),
            grid.flatten().tolist(),
            strict=True,
        ):
            if not 0 <= following < Z:
                _fail(
                    supervision,
                    f"step(state={state}, label={label}) is {following} in a bag of {bag_size}, outside 0 to {Z - 1}",
                    "Return more from num_states, or clamp the state.",
                )
            promised = {"count": state + label, "any": min(state + label, 1)}.get(supervision.fold)
            if promised not in (None, following):
                _fail(
                    supervision,
                    f'fold = "{supervision.fold}" promises that step(state={state}, label={label}) is '
                    f"{promised}, but it is {following}",
                    'Leave fold = "chain".',
                )
            one = _step(supervision, torch.tensor([state]), torch.tensor([label]), position)
            if one.tolist() != [following]:
                _fail(
                    supervision,
                    "step on whole tensors differs from step on single numbers",
                    "Write it with elementwise tensor operations.",
                )
        reachable = set(grid.flatten().tolist())


def _step(supervision: Supervision, state: Tensor, label: Tensor, position: int) -> Tensor:
    options = {"position": position} if takes_position(supervision) else {}
    try:
        result = supervision.step(state, label, **options)
    except (TypeError, ValueError, IndexError, RuntimeError) as problem:
        if isinstance(problem, SupervisionError):
            raise
        _fail(
            supervision,
            f"step fails for labels {int(label.min())} to {int(label.max())} ({problem})",
            'Does it read class indices (labels = "categorical") or 0 and 1 (labels = "per_class")?',
        )
    if not isinstance(result, Tensor) or result.shape != state.shape or result.is_floating_point():
        _fail(
            supervision,
            "step does not return an integer tensor shaped like its input",
            "Write it with elementwise tensor operations.",
        )
    return result


def _states(supervision: Supervision, bag_size: int, num_labels: int) -> int:
    if isinstance(supervision, SimilarPair):
        return supervision.num_states(bag_size, num_labels)
    return supervision.checked_num_states(bag_size)


def _check_evidence(supervision: Supervision, bag_size: int, num_labels: int, weak_labels: list[Any]) -> None:
    """Probabilities of all weak labels, given any last state that a bag can reach, sum to one."""
    Z = _states(supervision, bag_size, num_labels)
    rows: list[Tensor] = []
    for weak in weak_labels:
        if weak == -1 or weak != weak:
            _fail(
                supervision,
                f"the weak label {weak!r} would be read as a missing one",
                "Use numbers other than -1 and NaN.",
            )
        given = supervision.evidence(torch.arange(Z), torch.tensor([[weak]]))
        again = supervision.evidence(torch.arange(Z), torch.tensor([[weak]]))
        if not isinstance(given, Tensor) or given.shape != (1, Z):
            _fail(
                supervision,
                f"evidence for state ({Z},) and weak (1, 1) does not have shape (1, {Z})",
                "Compare the two with broadcasting.",
            )
        given = given.to(torch.float64)[0]
        if not bool(((given >= 0) & (given <= 1)).all()):
            _fail(
                supervision,
                f"evidence of weak label {weak!r} leaves [0, 1]",
                "Return P(weak | state), not a score or its logarithm.",
            )
        if not torch.equal(given, again.to(torch.float64)[0]):
            _fail(supervision, "evidence gives two answers to one question", "Keep no memory of calls.")
        rows.append(given)
    together = supervision.evidence(torch.arange(Z), torch.tensor(weak_labels)[:, None])
    if not torch.equal(together.to(torch.float64), torch.stack(rows)):
        _fail(
            supervision,
            "evidence of several weak labels differs from that of each alone",
            "Compare state and weak with broadcasting.",
        )
    total = torch.stack(rows).sum(0)
    reachable = {0}
    for position in range(bag_size):
        reachable = {
            int(_step(supervision, torch.tensor([state]), torch.tensor([label]), position))
            for state in reachable
            for label in range(num_labels)
        }
    for last in sorted(reachable):
        if not math.isclose(float(total[last]), 1.0, abs_tol=SUM_TOLERANCE):
            _fail(
                supervision,
                f"the evidence of all weak labels at state {last} sums to {float(total[last]):g} in a "
                f"bag of {bag_size}, not to 1",
                "Make evidence a distribution over the weak labels, or pass weak_labels= if they are not 0 and 1.",
            )


def _check_answers(
    supervision: Supervision,
    head: Head,
    classes: int,
    sizes: list[int],
    weak_labels: Sequence[Any] | None,
    generator: torch.Generator,
) -> None:
    """The engine against enumeration: posterior, likelihood, missing labels, gradient."""
    rng = np.random.default_rng(int(torch.randint(2**31, (), generator=generator)))
    B, K = 2 * len(sizes), max(sizes)
    bag = torch.tensor(sizes).repeat(2)
    mask = torch.arange(K) < bag[:, None]
    logits = 2 * torch.randn(B, K, classes, generator=generator, dtype=torch.float64)
    weak = example_weak(supervision, head, classes, mask, rng, weak_labels)
    scores = logits.clone().requires_grad_()
    post = infer(supervision, scores, weak, mask, head=head)
    truth = enumerate_posterior(supervision, logits.numpy(), weak, mask.numpy(), head=head)
    context = f"under a {head} head with {classes} classes"
    _compare(supervision, post.labels, truth.labels, f"the posterior {context}")
    _compare(supervision, post.log_likelihood, truth.log_likelihood, f"the likelihood {context}")
    if post.exact:
        (gradient,) = torch.autograd.grad(post.log_likelihood.sum(), scores)
        prior = torch.softmax(logits, -1) if head == "softmax" else torch.sigmoid(logits)
        expected = (post.labels.detach() - prior) * mask[..., None]
        _compare(supervision, gradient, expected.numpy(), f"the gradient {context}")


def _compare(supervision: Supervision, got: Tensor, expected: Any, what: str) -> None:
    difference = np.abs(got.detach().numpy() - np.asarray(expected))
    scale = np.maximum(1.0, np.abs(np.asarray(expected)))
    worst = float((difference / scale).max())
    if not worst <= TOLERANCE:
        _fail(
            supervision,
            f"{what} differs from enumeration by {worst:.2g}",
            "Does step depend on anything but its arguments, or evidence on more than the last state?",
        )
