"""When WeakClassifier trains images by the recipe of their weak labels, and which recipe that is."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastbus.errors import InputError
from fastbus.learner_defaults import device_of
from fastbus.learner_inputs import is_image
from fastbus.training.bag_set import BagSet
from fastbus.training.recipes import Recipe, recipe_for


def image_recipe(parameters: dict[str, Any], data: BagSet, num_outputs: int) -> Recipe | None:
    """The recipe to train by, None for the ordinary way.

    parameters: those of the classifier; recipe=None asks for one on a GPU, True or a mapping of entries anywhere.
    """
    asked = parameters["recipe"]
    if asked is not None and not isinstance(asked, (bool, dict)):
        raise InputError(f"recipe={asked!r}; expected True, False or a mapping of entries. Pass e.g. {{'epochs': 50}}.")
    if asked is False or (asked is None and device_of(parameters["device"]).type != "cuda"):
        return None
    obstacle = _obstacle(parameters, data, num_outputs)
    if obstacle is not None:
        if asked is None:
            return None
        raise InputError(f"recipe= with {obstacle}; expected plain images under a softmax head. Leave recipe=None.")
    shape = tuple(data.instances.shape[1:])
    recipe = recipe_for(data.supervision, num_images=len(data.instances), num_bags=len(data), image_shape=shape)
    changes = {name: parameters[name] for name in ("epochs", "learning_rate") if parameters[name] is not None}
    if isinstance(parameters["backbone"], str) and parameters["backbone"] != "auto":
        changes["backbone"] = parameters["backbone"].replace("-", "_")
    return recipe.replace(**changes | (asked if isinstance(asked, dict) else {}))


def _obstacle(parameters: dict[str, Any], data: BagSet, num_outputs: int) -> str | None:
    """What a recipe cannot serve."""
    shape = tuple(data.instances.shape[1:])
    if not is_image(shape):
        return f"inputs of shape {shape}"
    if parameters["head"] != "softmax" or num_outputs < 2:
        return f'head="{parameters["head"]}"'
    if not isinstance(data.weak, Tensor):
        return f"{data.supervision.title}, a combination"
    if data.bag_weights is not None or data.sample_weights is not None:
        return "weights of bags or samples"
    if parameters["views"] is False:
        return "views=False"
    off = {"rank": None, "evolution": None, "class_loop": None, "train_options": None, "patience": 0, "likelihood": 0}
    off |= {"batch_bags": None, "consistency": None, "ema": 0, "on_impossible": "error", "queue": None}
    for name, value in off.items():
        if parameters[name] != value:
            return f"{name}={parameters[name]!r}"
    if parameters["coupling"] not in ("auto", "independent"):
        return f'coupling="{parameters["coupling"]}"'
    return None
