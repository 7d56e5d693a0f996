"""How to train: one flat record of numbers and names, the same from Python, YAML and the command line."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Literal

from fastbus.errors import InputError, choice

OPTIMIZERS = ("adamw", "sgd")
SCHEDULES = ("cosine", "constant", "linear")
TEACHERS = ("online", "average")
PRECISIONS = ("32", "bf16", "16")


@dataclass(frozen=True)
class TrainConfig:
    """Options of a training run.

    epochs: passes over all bags. max_bags, max_instances: what a batch holds at most.
    schedule: of the learning rate, after `warmup` steps. ema: decay of the averaged weights, 0 for none.
    views: whether a strong view joins the weak one. teacher: whose predictions the posterior is inferred
        from.
    consistency: weight of the strong view's agreement with the weak one, for instances without evidence; 0 for
        none. confidence: how probable a class must be for that. alignment: decay of the running shares of the
        classes that predictions are aligned with, 0 for no alignment.
    accumulate: batches that make one step; clip: largest norm of a gradient, 0 for any.
    patience: epochs without a better likelihood of held-out bags before training stops; 0 to go on.
    held_out: share of the bags kept for that, 0 for none.
    """

    epochs: int = 50
    max_bags: int = 64
    max_instances: int = 4096
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    momentum: float = 0.9
    schedule: Literal["cosine", "constant", "linear"] = "cosine"
    warmup: int = 0
    ema: float = 0.0
    views: bool = False
    teacher: Literal["online", "average"] = "online"
    consistency: float = 0.0
    confidence: float = 0.8
    alignment: float = 0.99
    accumulate: int = 1
    clip: float = 0.0
    precision: Literal["32", "bf16", "16"] = "32"
    patience: int = 0
    held_out: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        choice(self.optimizer, OPTIMIZERS, "optimizer", InputError)
        choice(self.schedule, SCHEDULES, "schedule", InputError)
        choice(self.teacher, TEACHERS, "teacher", InputError)
        choice(self.precision, PRECISIONS, "precision", InputError)
        self._whole("epochs", 1, "Pass e.g. 50.")
        self._whole("max_bags", 1, "Pass e.g. 64.")
        self._whole("max_instances", 1, "Pass e.g. 4096.")
        self._whole("accumulate", 1, "Pass 1 for a step a batch.")
        self._whole("warmup", 0, "Pass 0 for none.")
        self._whole("patience", 0, "Pass 0 to train all epochs.")
        self._whole("seed", 0, "Pass e.g. 0.")
        if not (self._is_number("learning_rate") and 0 < self.learning_rate < math.inf):
            raise InputError(f"learning_rate={self.learning_rate!r}; expected a positive number. Pass e.g. 0.003.")
        self._number("weight_decay", math.inf, "a number of at least 0", "Pass 0 for none.")
        self._number("clip", math.inf, "the largest norm of a gradient", "Pass 0 for no limit.")
        self._number("momentum", 1, "a share in [0, 1)", "Pass 0 for none.")
        self._number("ema", 1, "a decay in [0, 1)", "Pass 0 for no average.")
        self._number("consistency", math.inf, "a weight of at least 0", "Pass 0 for none.")
        self._number("confidence", 1, "a probability in [0, 1)", "Pass e.g. 0.8.")
        self._number("alignment", 1, "a decay in [0, 1)", "Pass 0 for no alignment.")
        self._number("held_out", 1, "a share of the bags in [0, 1)", "Pass e.g. 0.1, or 0 for none.")
        if not isinstance(self.views, bool):
            raise InputError(f"views={self.views!r}; expected True or False. Pass the views themselves to train.")
        if self.teacher == "average" and self.ema == 0:
            raise InputError('teacher="average" without an average; expected ema > 0. Pass e.g. ema=0.99.')

    def _whole(self, name: str, low: int, cure: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
            raise InputError(f"{name}={value!r}; expected a whole number from {low}. {cure}")
        object.__setattr__(self, name, int(value))  # a trainer may refuse numbers of numpy

    def _number(self, name: str, limit: float, expected: str, cure: str) -> None:
        value = getattr(self, name)
        if not self._is_number(name) or not 0 <= value < limit:
            raise InputError(f"{name}={value!r}; expected {expected}. {cure}")

    def _is_number(self, name: str) -> bool:
        value = getattr(self, name)
        return isinstance(value, Real) and not isinstance(value, bool)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
