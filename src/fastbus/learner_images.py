"""When WeakClassifier trains by the recipe of a kind of weak label, by which recipe, and by which method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from fastbus.errors import InputError
from fastbus.learner_defaults import device_of
from fastbus.learner_inputs import is_image
from fastbus.methods.registry import check_fit, get_method, objective_of
from fastbus.models.backbone import Backbone
from fastbus.supervision.base import Supervision
from fastbus.supervision.imperfect import NoisyLabel
from fastbus.supervision.incomplete import PositiveUnlabeled
from fastbus.training.bag_set import BagSet
from fastbus.training.image_run import ImageRun
from fastbus.training.noise import needs_estimate
from fastbus.training.recipes import UNNORMALISED, Recipe, recipe_for, unaided
from fastbus.training.step_objective import StepObjective

OWN_METHOD = "fastbus"
WEIGHT_DECAY = 1e-3  # what the classifier has unless told otherwise; the recipe has its own then


def image_recipe(parameters: dict[str, Any], data: BagSet, num_outputs: int) -> Recipe | None:
    """The recipe to train by, None for the ordinary way.

    parameters: those of the classifier; recipe=None asks for one on a GPU, True or a mapping of entries anywhere. A
        competing method is always trained by a recipe, on tables too.
    """
    asked = parameters["recipe"]
    method = parameters["method"]
    if not isinstance(method, str):
        raise InputError(f"method={method!r}; expected a name. Pass one of those in docs/methods.md, or leave it out.")
    if method != OWN_METHOD:
        check_fit(get_method(method), data.supervision, num_outputs)
        asked = True if asked is None else asked
        if asked is False:
            raise InputError(
                f'method="{method}" with recipe=False; expected a recipe to train it by. Leave recipe=None.'
            )
    elif parameters["method_options"] is not None:
        raise InputError(
            "method_options without method=; expected the method they are meant for. Name it, or drop them."
        )
    if asked is not None and not isinstance(asked, (bool, dict)):
        raise InputError(f"recipe={asked!r}; expected True, False or a mapping of entries. Pass e.g. {{'epochs': 50}}.")
    if asked is False or (asked is None and device_of(parameters["device"]).type != "cuda"):
        return None
    obstacle = _obstacle(parameters, data, num_outputs)
    if obstacle is not None:
        if asked is None:
            return None
        if method == OWN_METHOD:
            what, inputs, cure = "recipe=", "images", "set recipe=None"
        else:
            what, inputs, cure = f'method="{method}"', "images or rows", "leave method= out"
        raise InputError(
            f"{what} with {obstacle}; expected {inputs} under a softmax head, weak labels of one kind, and a schedule "
            f"that is the recipe's own. Leave that out, or {cure}."
        )
    shape = tuple(data.instances.shape[1:])
    changes = {name: parameters[name] for name in ("epochs", "learning_rate") if parameters[name] is not None}
    if parameters["coupling"] == "independent":
        changes["coupling"] = "independent"
    if parameters["weight_decay"] != WEIGHT_DECAY:
        changes["weight_decay"] = parameters["weight_decay"]
    if isinstance(parameters["backbone"], str) and parameters["backbone"] != "auto":
        changes["backbone"] = parameters["backbone"].replace("-", "_")
    changes |= asked if isinstance(asked, dict) else {}
    size = {"num_images": len(data.instances), "num_bags": len(data)}
    recipe = recipe_for(data.supervision, **size, image_shape=shape, epochs=changes.get("epochs"))
    if not _pretrained(parameters["backbone"], changes):
        recipe = unaided(recipe, data.supervision.name)
    return recipe.replace(**changes)


def _pretrained(backbone: Any, changes: dict[str, Any]) -> bool:
    """Whether the network begins with what it learns without labels, where the recipe says so."""
    if isinstance(backbone, nn.Module) and not isinstance(backbone, Backbone):
        return False
    return changes.get("pretrain") != 0 and changes.get("backbone") not in UNNORMALISED


def method_objective(parameters: dict[str, Any]) -> Callable[[ImageRun], StepObjective] | None:
    """What a competing method minimises; None for posterior-weighted risk."""
    if parameters["method"] == OWN_METHOD:
        return None
    options = parameters["method_options"]
    if options is not None and not isinstance(options, dict):
        raise InputError(f"method_options={options!r}; expected a mapping of facts. Pass e.g. {{'prior': 0.4}}.")
    return objective_of(parameters["method"], **(options or {}))


def told_supervision(supervision: Supervision, parameters: dict[str, Any]) -> Supervision:
    """The supervision with the facts that a competing method is told, where it does not hold them itself."""
    if method_objective(parameters) is None:  # which complains of facts that are none
        return supervision
    told = parameters["method_options"] or {}
    if needs_estimate(supervision):
        if isinstance(supervision, PositiveUnlabeled) and told.get("prior") is not None:
            return PositiveUnlabeled(told["prior"], constraint=supervision.constraint)
        if isinstance(supervision, NoisyLabel) and told.get("noise_rate") is not None:
            return NoisyLabel(rate=told["noise_rate"])
    return supervision


def _obstacle(parameters: dict[str, Any], data: BagSet, num_outputs: int) -> str | None:
    """What a recipe cannot serve."""
    shape = tuple(data.instances.shape[1:])
    if not is_image(shape) and (parameters["method"] == OWN_METHOD or len(shape) != 1):
        return f"inputs of shape {shape}"
    if parameters["head"] != "softmax" or num_outputs < 2:
        return f'head="{parameters["head"]}"'
    if not isinstance(data.weak, Tensor):
        return f"{data.supervision.title}, a combination"
    if getattr(data.supervision, "weighting", None) is not None:
        return f"{data.supervision!r}, which weighs instances"
    if data.bag_weights is not None or data.sample_weights is not None:
        return "weights of bags or samples"
    if parameters["views"] is False:
        return "views=False"
    off: dict[str, Any] = {
        "rank": None,
        "evolution": None,
        "class_loop": None,
        "train_options": None,
        "patience": 0,
        "likelihood": 0,
    }
    off |= {"batch_bags": None, "consistency": None, "ema": 0, "on_impossible": "error", "queue": None}
    for name, value in off.items():
        if parameters[name] != value:
            return f"{name}={parameters[name]!r}"
    if parameters["coupling"] not in ("auto", "independent"):
        return f'coupling="{parameters["coupling"]}"'
    return None
