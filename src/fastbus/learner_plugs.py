"""What a WeakClassifier may plug into its loss: a state evolution, a rank, a class loop.

A rank and an evolution serve training only. A class loop belongs to the model of the weak labels, so posteriors and
likelihoods of a fitted classifier keep it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fastbus.errors import InputError, choice
from fastbus.inference.class_coupling import ClassCoupling
from fastbus.inference.class_loop import ClassLoop
from fastbus.inference.class_transition import ClassTransition
from fastbus.inference.evolution import VARIANTS, StateEvolution
from fastbus.inference.evolution_build import build_evolution
from fastbus.supervision.aggregate import LabelProportion, MultiInstance
from fastbus.supervision.base import Supervision
from fastbus.supervision.incomplete import UnlabeledUnlabeled
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import CheckpointError
from fastbus.training.config import TrainConfig

CLASS_LOOPS = ("labels", "learned")
# rows whose count a learned module follows at once: the constraint is little biased, a step takes 0.1 s on a CPU
SET_SIZE = 256
# as measured by fastbus.bench.class_loop_map; up to 12 classes of two values are exact and need no sweeps
SWEEPS: dict[str, Any] = {"sweeps": 4, "damping": 0.0, "tolerance": 1e-6}
KINDS: dict[str, type[ClassLoop] | type[ClassTransition]] = {kind.route: kind for kind in (ClassLoop, ClassTransition)}


# -- state evolution --------------------------------------------------------------------------------


def make_evolution(
    variant: Any, data: BagSet, network: Any, head: Any, num_outputs: int, config: TrainConfig
) -> StateEvolution | None:
    """A fresh module for the features of `network` and the batches of `data`; None where none is asked for."""
    if variant is None:
        return None
    choice(variant, VARIANTS, "evolution", InputError)
    if not all(hasattr(network, name) for name in ("features", "classify", "num_features")):
        raise InputError(
            f'evolution="{variant}" with a {type(network).__name__}; expected a network with features(x), '
            "classify(features) and num_features, such as those of build_backbone. Give it these three."
        )
    few = data.batch(torch.arange(min(4, len(data))))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # of the module's initial weights
        return build_evolution(
            data.supervision,
            torch.zeros(len(few.instances), num_outputs),
            few.weak,
            int(network.num_features),
            bag_sizes=few.sizes,
            head=head,
            max_bag_size=_largest_set(data, config),
            variant=variant,
        )


def _largest_set(data: BagSet, config: TrainConfig) -> int:
    """Instances that one count may run over: those of a bag, or of a whole batch drawn from sets."""
    largest = int(data.sizes.max())
    if not data.is_set:
        return largest
    fullest = int(data.sizes.topk(min(config.max_bags, len(data))).values.sum())
    return min(fullest, max(config.max_instances, largest))


def batch_of_sets(data: BagSet, held_out: Any) -> int:
    """Rows of a batch whose sets are all that a learned count sees: SET_SIZE of each set, and hardly any left over.

    A set of three rows says next to nothing, or something wrong, so of the sizes from half the wanted one on that
    one is taken which fills the last batch of an epoch best.
    """
    sets = max((len(part.priors) for part in data.parts if isinstance(part, UnlabeledUnlabeled)), default=1)
    told = isinstance(held_out, (int, float)) and 0 <= held_out < 1  # TrainConfig refuses others
    rows = max(1, len(data) - (round(held_out * len(data)) if told else 0))
    most = min(SET_SIZE * sets, rows)
    return max(range(most, most // 2, -1), key=lambda batch: ((rows - 1) % batch + 1) / batch)


# -- class loop -------------------------------------------------------------------------------------


def make_class_loop(asked: Any, data: BagSet, largest: int, head: str, num_outputs: int) -> ClassCoupling | None:
    """The caller's module, copied, or one made for the weak labels of `data`, in bags of up to `largest`."""
    if asked is None:
        return None
    if not isinstance(asked, (str, ClassLoop, ClassTransition)):
        raise InputError(
            f"class_loop of type {type(asked).__name__}; expected {', '.join(map(repr, CLASS_LOOPS))}, a ClassLoop or "
            "a ClassTransition. Pass one of them, or None."
        )
    if head != "sigmoid" or num_outputs < 2:
        raise InputError(
            f'class_loop with head="{head}" and {num_outputs} outputs; expected head="sigmoid" with two classes or '
            "more, each with a weak label of its own. Leave class_loop=None, since there is nothing to tie."
        )
    if not isinstance(asked, str):
        return copy.deepcopy(asked)
    choice(asked, CLASS_LOOPS, "class_loop", InputError)
    rule, weak = _tied(asked, data)
    if asked == "learned":
        return ClassLoop.ones(num_outputs, _num_values(rule, largest), **SWEEPS)
    noise = getattr(rule, "noise", None)
    two_valued = isinstance(rule, MultiInstance)
    told = not isinstance(rule, LabelProportion) or (rule.kind == "exact" and rule.unit == "count")
    if weak.dim() != 2 or not told or (noise is not None and not two_valued):
        raise InputError(
            f'class_loop="labels" with {rule.title} as intervals, fractions, distributions or noisy counts; expected '
            'labels whose values can be counted. Pass class_loop="learned".'
        )
    return ClassLoop.from_labels(weak, _num_values(rule, largest), noise=noise, learn=False, **SWEEPS)


def _tied(asked: str, data: BagSet) -> tuple[Supervision, Tensor]:
    """The one rule of bags, and its weak labels."""
    parts = zip(data.parts, data.parts_of(data.weak), strict=True)
    rules = [(part, weak) for part, weak in parts if part.level == "bag" and part.labels == "per_class"]
    if len(rules) != 1:
        raise InputError(
            f'class_loop="{asked}" with {data.supervision.title}; expected exactly one rule that reads one class at a '
            "time, e.g. multi_instance or label_proportion. Leave class_loop=None."
        )
    return rules[0]


def _num_values(rule: Supervision, largest: int) -> int:
    """How many values the weak label of a class may take."""
    if rule.fold in ("any", "count"):
        return rule.checked_num_states(largest)
    return len(rule.weak_labels(largest) or (0, 1))  # inference explains what it cannot enumerate


def to_be_learned(module: nn.Module | None) -> bool:
    """Whether something of it is optimised."""
    return module is not None and any(p.requires_grad for p in module.parameters())


# -- files ------------------------------------------------------------------------------------------


def describe_class_loop(module: Any) -> dict[str, Any] | None:
    """A class loop as names, numbers and tensors."""
    if module is None:
        return None
    options = {
        name: getattr(module, name) for name in (*SWEEPS, "method", "max_configurations") if hasattr(module, name)
    }
    return {"kind": module.route, "num_values": module.num_values, "options": options, "state": module.state_dict()}


def build_class_loop(tree: Any, num_classes: int) -> ClassCoupling | None:
    """The class loop that `describe_class_loop` described; its sizes are those of tensors that are at hand."""
    if tree is None:
        return None
    values, state = int(tree["num_values"]), dict(tree["state"])
    pairs = (num_classes * (num_classes - 1) // 2, values, values)
    wanted: dict[str, tuple[int, ...]] = {"log_pair": pairs, "forbidden": pairs}
    if tree["kind"] == ClassTransition.route:
        wanted = {"log_weight": (num_classes, num_classes), "zero": (num_classes, num_classes)}
    fits = set(state) == set(wanted) and all(tuple(state[name].shape) == shape for name, shape in wanted.items())
    if not fits or not all(bool(torch.isfinite(x).all()) for x in state.values()) or not 2 <= values <= 2**20:
        raise CheckpointError("a class loop of other sizes than the classes; expected that of the fit. Save it again.")
    options = dict(tree["options"])
    module = KINDS[tree["kind"]](num_classes, values, **options)
    module.to(next(x.dtype for x in state.values() if x.is_floating_point()))
    module.load_state_dict(state)
    return module.requires_grad_(False)
