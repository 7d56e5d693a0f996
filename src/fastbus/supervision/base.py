"""Supervision: a kind of weak label, as a fold over instance labels with evidence at its end.

A weak label is read off the labels y_1..y_K one by one: `state = step(state, label)` from state 0,
then `evidence(state, weak) = P(weak | last state)`. Stating these two is all that a new kind needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from fastbus.errors import SupervisionError
from fastbus.numerics import safe_log
from fastbus.spelling import did_you_mean
from fastbus.supervision.evidence import Evidence, Rule
from fastbus.supervision.reading import WeakReader

if TYPE_CHECKING:
    from fastbus.supervision.combine import Combination

REGISTRY: dict[str, type[Supervision]] = {}


class Supervision:
    """Base of all kinds. Subclasses give `num_states`, `step` and `evidence`.

    labels: "per_class" reads binary labels, one chain a class; "categorical" reads class indices.
    fold: "chain" for any rule; "count", "any" and "similar" promise that the state is the number of
        positives, whether there is one, or whether a pair agrees, and unlock faster paths that
        return the same numbers.
    level: what one weak label of a training set belongs to: a bag, an instance, or an instance of an
        unlabelled set whose share of positives is known.
    bag_size: the only size the rule speaks about, if there is one (2 for pairs).
    binary: the weak label speaks about one positive class only.
    applies_last: the weak label sets a distribution instead of giving a likelihood, so that it must be
        applied after all other evidence, and only one such part fits into a combination.
    """

    name: ClassVar[str] = ""
    labels: Literal["per_class", "categorical"] = "per_class"
    fold: Literal["chain", "count", "any", "similar"] = "chain"
    level: Literal["bag", "instance", "set"] = "bag"
    bag_size: int | None = None
    binary: bool = False

    @property
    def applies_last(self) -> bool:
        return False

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and cls.name:
            REGISTRY[cls.name] = cls

    # -- the rule -----------------------------------------------------------------------------

    def num_states(self, bag_size: int) -> int:
        """How many states a bag of that size can reach, at most."""
        raise SupervisionError(
            f"{self.title} has no num_states; expected a method num_states(bag_size). "
            "Return the number of states, counting the first state 0."
        )

    def step(self, state: Tensor, label: Tensor) -> Tensor:
        """The next state; may take a third argument `position`. Elementwise on integer tensors."""
        raise SupervisionError(
            f"{self.title} has no step; expected a method step(state, label). "
            "Return the state after reading one more label."
        )

    def evidence(self, state: Tensor, weak: Tensor) -> Tensor:
        """P(weak | last state) as booleans or probabilities; state (Z,), weak (..., 1).

        Give probabilities in float64: `torch.where(hit, 0.9, 0.1)` is float32 and wrong by 1e-8.
        """
        raise SupervisionError(
            f"{self.title} has no evidence; expected a method evidence(state, weak). "
            "Return P(weak | last state) as booleans or probabilities."
        )

    def weak_labels(self, bag_size: int) -> Sequence[Any] | None:
        """All weak labels a bag of that size can carry, where they are finitely many."""
        return (0, 1)

    # -- what the engine asks -----------------------------------------------------------------

    @property
    def title(self) -> str:
        """The name that messages use."""
        return self.name or type(self).__name__

    def read(self, weak: object, reader: WeakReader) -> Evidence:
        """Turn weak labels into evidence; the default serves every rule of step and evidence."""
        values, positive_class = self.weak_values(weak, reader)
        observed = reader.present(values, "weak labels")
        rule = self.rule(values, observed, positive_class, reader)
        return Evidence(rules=(rule,), names=(self.title,))

    def weak_values(self, weak: object, reader: WeakReader) -> tuple[Tensor, int | None]:
        """Weak labels (B, G), one a chain, and the positive class where they are binary."""
        if self.labels == "per_class":
            return reader.per_class(weak)
        reader.single_label()
        return reader.per_bag(weak).unsqueeze(1), None

    def rule(self, values: Tensor, observed: Tensor, positive_class: int | None, reader: WeakReader) -> Rule:
        """The fold with `evidence` of the observed weak labels (B, G) at its end."""
        Z = self.checked_num_states(reader.K)
        log_evidence = torch.zeros(*values.shape, Z, dtype=reader.dtype, device=reader.device)
        if bool(observed.any()):
            states = torch.arange(Z, device=reader.device)
            given = self._checked_evidence(states, values[observed].unsqueeze(-1), reader)
            log_evidence[observed] = safe_log(given)
        return Rule(self, log_evidence, observed, positive_class)

    def checked_num_states(self, bag_size: int) -> int:
        """num_states, refused where it is no positive integer."""
        Z = self.num_states(bag_size)
        if isinstance(Z, bool) or not isinstance(Z, int) or Z < 1:
            raise SupervisionError(
                f"{self.title}: num_states({bag_size}) returned {Z!r}; expected an integer of at "
                "least 1. Count the first state 0 and every state a bag can reach."
            )
        return Z

    def _checked_evidence(self, states: Tensor, weak: Tensor, reader: WeakReader) -> Tensor:
        given = self.evidence(states, weak)
        expected = (weak.shape[0], states.shape[0])
        if not isinstance(given, Tensor) or given.shape != expected:
            got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else repr(given)
            raise SupervisionError(
                f"{self.title}: evidence returned {got}; expected a tensor of shape {expected} for "
                "state (Z,) and weak (M, 1). Compare the two with broadcasting."
            )
        given = given.to(reader.dtype)
        if not bool(((given >= 0) & (given <= 1)).all()):
            raise SupervisionError(
                f"{self.title}: evidence returned values outside [0, 1] or NaN; expected "
                "probabilities or booleans. Return P(weak | state), not a score or its logarithm."
            )
        return given

    # -- combining and making -----------------------------------------------------------------

    def __and__(self, other: object) -> Combination:
        from fastbus.supervision.combine import Combination

        if not isinstance(other, Supervision):
            return NotImplemented
        return Combination(self, other)

    @staticmethod
    def from_function(rule: Callable[[tuple[int, ...]], Hashable], bag_size: int, num_labels: int = 2) -> Supervision:
        """The smallest chain for a plain function from a label tuple to a weak label."""
        from fastbus.supervision.compress import CompressedRule

        return CompressedRule(rule, bag_size, num_labels)

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in vars(self).items() if not key.startswith("_"))
        return f"{type(self).__name__}({options})"


def takes_position(supervision: Supervision) -> bool:
    """Whether `step` wants to know where in the bag the label stands."""
    return "position" in inspect.signature(supervision.step).parameters


def resolve(supervision: Supervision | str) -> Supervision:
    """A supervision from its registry name, or itself."""
    if isinstance(supervision, Supervision):
        return supervision
    if isinstance(supervision, type) and issubclass(supervision, Supervision):
        raise SupervisionError(
            f"the class {supervision.__name__}; expected an instance. Call it: {supervision.__name__}(...)."
        )
    if not isinstance(supervision, str) or supervision not in REGISTRY:
        raise SupervisionError(
            f"supervision {supervision!r}; expected a Supervision or one of "
            f"{', '.join(sorted(REGISTRY))}{did_you_mean(supervision, REGISTRY)}. Check the spelling."
        )
    try:
        return REGISTRY[supervision]()
    except TypeError as problem:
        raise SupervisionError(
            f"supervision {supervision!r} needs options ({problem}); expected an instance. "
            f"Pass fastbus.{REGISTRY[supervision].__name__}(...) instead of its name."
        ) from None
