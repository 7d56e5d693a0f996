"""The registry of competing methods: by name what each serves, what it must be told, and how it is made.

A method is a `StepObjective` on the trainer that FastBUS itself uses, so that data, views, network and budget are
the same for all. A family's module registers its methods when it is imported, and is imported when one is asked for.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fastbus.errors import InputError
from fastbus.spelling import did_you_mean

if TYPE_CHECKING:
    from fastbus.supervision.base import Supervision
    from fastbus.training.image_run import ImageRun
    from fastbus.training.step_objective import StepObjective

# Module of this package -> the methods it registers; a new method is one word here and one `register` there.
MODULES: dict[str, tuple[str, ...]] = {
    "general": ("count_loss", "gbm"),
    "uum": ("uum",),
    "glws": ("glws",),
    "cege": ("cege",),
    "aggregation": ("llp_vat", "attention_mil", "gated_attention_mil"),
    "pairwise_hard": ("pc_unbiased", "pc_relu", "pc_abs", "risk_sd"),
    "pairwise_pruned": ("pc_teacher", "rank_pruning"),
    "pairwise_soft": ("sc_unbiased", "sc_relu", "sc_abs", "sc_nn_abs", "cd_unbiased", "cd_relu", "cd_abs"),
    "imperfect_partial": ("cc", "proden", "rcr", "lws"),
    "imperfect_pico": ("pico",),
    "imperfect_noisy": ("forward", "elr", "sop"),
    "imperfect_dividemix": ("dividemix",),
    "imperfect_crowd": ("majority_vote", "dawid_skene", "crowd_layer"),
    "incomplete_risks": ("upu", "nnpu", "uu"),
    "incomplete_positive": ("cvir", "dist_pu"),
    "incomplete_variational": ("var_pu",),
    "incomplete_semi": ("pseudo_label", "vat", "mean_teacher", "mixmatch", "fixmatch"),
}
# What a need is called in messages, and how it is met.
NEEDS: dict[str, tuple[str, str]] = {
    "prior": ("the share of positives", "prior=0.4"),
    "noise_rate": ("the share of wrong labels", "noise_rate=0.2"),
}
SAYS_MORE = {"noise_rate": "transition"}  # what a supervision may hold that leaves the need met


@dataclass(frozen=True)
class MethodOptions:
    """Facts about the data that a method may need; `extra` holds settings of its own, by name."""

    prior: float | None = None
    noise_rate: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str, usual: float, below: float = math.inf) -> float:
        """A setting of the method's own that is a number from 0."""
        value = self.extra.get(name, usual)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < below:
            limit = "" if below == math.inf else f", below {below:g}"
            raise InputError(f"{name}={value!r}; expected a number from 0{limit}. Correct it, or leave it out.")
        return float(value)


@dataclass(frozen=True)
class Method:
    """One competing method.

    settings: registry names of the supervisions it serves. needs: names of `MethodOptions` without which it has no
    meaning, needs_on: those of one setting alone. extra: names of settings it takes beside these. instead: a sentence
    for those who lack what it needs.
    noise: whether it knows the noise channels of bags and pairs.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    reference: str
    differs: str
    make: Callable[[ImageRun, MethodOptions], StepObjective]
    needs: tuple[str, ...] = ()
    needs_on: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    binary: bool = False
    extra: tuple[str, ...] = ()
    instead: str = ""
    noise: bool = False

    def needed(self, setting: str) -> tuple[str, ...]:
        """All that it must be told where weak labels are of this kind."""
        return (*self.needs, *self.needs_on.get(setting, ()))


METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Make a method known; called where its family is defined."""
    METHODS[method.name] = method
    return method


def method_names() -> tuple[str, ...]:
    """Every method that can be asked for, without importing any."""
    return tuple(name for names in MODULES.values() for name in names)


def get_method(name: str) -> Method:
    """A method by name; imports its family on first use. Methods of one's own need only be registered."""
    if name not in METHODS:
        modules = [module for module, names in MODULES.items() if name in names]
        if not modules:
            known = sorted({*method_names(), *METHODS})
            meant = did_you_mean(name, known)
            raise InputError(f"method={name!r}; expected one of {', '.join(known)}{meant}. Pass one of these names.")
        importlib.import_module(f"fastbus.methods.{modules[0]}")
    return METHODS[name]


def methods_for(setting: str) -> tuple[str, ...]:
    """Names of the methods that serve a supervision, given by its registry name; imports every family."""
    from fastbus.supervision import REGISTRY

    if setting not in REGISTRY:
        known = ", ".join(sorted(REGISTRY))
        raise InputError(f"setting {setting!r}; expected the name of a supervision: {known}. Check the spelling.")
    return tuple(name for name in method_names() if setting in get_method(name).settings)


def objective_of(name: str, **facts: Any) -> Callable[[ImageRun], StepObjective]:
    """What `ImageRun(objective=...)` takes: the method, told the facts; unknown facts are settings of its own.

    A fact that is not given is read off the supervision where that holds it: the prior of positive_unlabeled, the
    rate of noisy_label.
    """
    method = get_method(name)
    known = {key: facts.pop(key, None) for key in NEEDS}
    unknown = sorted(set(facts) - set(method.extra))
    if unknown:
        takes = ", ".join((*NEEDS, *method.extra))
        raise InputError(f"{name}: {unknown[0]}={facts[unknown[0]]!r}; expected facts among {takes}. Leave it out.")
    for key, value in known.items():
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < 1):
            raise InputError(f"{name}: {key}={value!r}; expected a share in (0, 1). Pass e.g. {NEEDS[key][1]}.")
    given = MethodOptions(**known, extra=facts)

    def make(run: ImageRun) -> StepObjective:
        check_fit(method, run.supervision, run.num_classes)
        return method.make(run, met(method, given, run))

    return make


def check_fit(method: Method, supervision: Supervision, num_classes: int) -> None:
    """Refuse weak labels the method does not speak about, and classes beyond two where it knows only two."""
    setting = supervision.name
    if setting not in method.settings:
        served = ", ".join(method.settings)
        raise InputError(
            f"{method.name} on {setting or 'weak labels of another kind'}; expected weak labels of kind {served}. "
            "Choose a method for this kind, or leave it out to train with FastBUS, which serves every kind."
        )
    if method.binary and num_classes != 2:
        raise InputError(
            f"{method.name} on {num_classes} classes; expected 2, it is defined for positive against negative only. "
            "Group the classes into two, or choose another method."
        )
    noise = getattr(supervision, "noise", None)
    if not method.noise and noise is not None:
        raise InputError(
            f"{method.name} on noisy weak labels (noise={noise!r}); expected labels that are always "
            "right, it has no noise channel. Use gbm, or leave the method out to train with FastBUS."
        )


def met(method: Method, options: MethodOptions, run: ImageRun) -> MethodOptions:
    """The options with what the supervision itself says; refused where a need stays open."""
    if options.prior is None:
        options = replace(options, prior=getattr(run.supervision, "prior", None))
    if options.noise_rate is None:
        options = replace(options, noise_rate=getattr(run.supervision, "rate", None))
    for need in method.needed(run.supervision.name):
        more = getattr(run.supervision, SAYS_MORE.get(need, need), None)
        if getattr(options, need) is None and more is None:
            meaning, example = NEEDS[need]
            cure = f" {method.instead}" if method.instead else ""
            raise InputError(f"{method.name} needs {meaning}; expected {need}=. Pass it, e.g. {example}.{cure}")
    return options
