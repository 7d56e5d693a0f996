"""Files of a fitted classifier: model.safetensors holds all of it, verified by checksum and free of pickle.

model.json beside it repeats the options for people to read; `load` does not look at it. Supervisions of the
catalogue are kept as their names and constructor options, combinations as a list of these.
"""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fastbus.errors import FastbusError, InputError
from fastbus.learner_inputs import is_image
from fastbus.learner_plugs import CLASS_LOOPS, build_class_loop, describe_class_loop
from fastbus.models.backbone import Backbone
from fastbus.models.build import build_backbone
from fastbus.supervision.base import REGISTRY, Supervision
from fastbus.supervision.combine import Combination
from fastbus.training.checkpoint import CheckpointError, read_checkpoint, write_atomically, write_checkpoint

WEIGHTS, SUMMARY = "model.safetensors", "model.json"
FORMAT = "fastbus-classifier-1"
KEPT_APART = ("supervision", "backbone", "classes", "random_state", "class_loop")
Classifier = TypeVar("Classifier")


# -- supervisions -----------------------------------------------------------------------------------


def describe_supervision(supervision: Supervision | str) -> Any:
    """A supervision as names, numbers and tensors; of an own rule, its title alone."""
    if isinstance(supervision, str):
        return {"registry": supervision, "by_name": True}
    if isinstance(supervision, Combination):
        parts = [describe_supervision(part) for part in supervision.parts]
        own = [part["own"] for part in parts if "own" in part]
        return {"own": supervision.title} if own else {"parts": parts}
    kind = type(supervision)
    if REGISTRY.get(kind.name) is not kind or not kind.__module__.startswith("fastbus.supervision."):
        return {"own": supervision.title}
    names = [name for name in inspect.signature(kind).parameters if hasattr(supervision, name)]
    options = {name: getattr(supervision, name) for name in names}
    plain = {name: value.detach() if isinstance(value, Tensor) else value for name, value in options.items()}
    return {"registry": kind.name, "options": plain}


def build_supervision(tree: Any) -> Supervision | str:
    """The supervision that `describe_supervision` described."""
    if "parts" in tree:
        parts = [build_supervision(part) for part in tree["parts"]]
        return Combination(*(part for part in parts if isinstance(part, Supervision)))
    name = tree["registry"]
    kind = REGISTRY[name]
    if not kind.__module__.startswith("fastbus.supervision."):
        raise KeyError(f"{name} is a rule of your own")
    return str(name) if tree.get("by_name") else kind(**tree["options"])


# -- writing ----------------------------------------------------------------------------------------


def save_classifier(classifier: Any, folder: Path) -> None:
    """Write model.safetensors, and model.json for people."""
    parameters = classifier.get_params(deep=False)
    options = {key: value for key, value in parameters.items() if key not in KEPT_APART}
    seed = classifier.random_state
    network = classifier.network_
    state = {
        "format": FORMAT,
        "options": options,
        "random_state": int(seed) if isinstance(seed, (int, np.integer)) else None,
        "given_classes": None if classifier.classes is None else np.asarray(classifier.classes).tolist(),
        "supervision": describe_supervision(classifier.supervision),
        "fitted_supervision": describe_supervision(classifier.supervision_),
        "backbone": classifier.backbone if isinstance(classifier.backbone, str) else None,
        "class_loop": classifier.class_loop if isinstance(classifier.class_loop, str) else None,
        "fitted_class_loop": describe_class_loop(classifier.class_loop_),
        "network_config": network.config if isinstance(network, Backbone) and network.config else None,
        "network": network.state_dict(),
        "classes": classifier.classes_.tolist(),
        "input_shape": list(classifier.input_shape_),
        "mean": classifier.mean_,
        "scale": classifier.scale_,
        "temperature": classifier.temperature_,
        "n_outputs": classifier.n_outputs_,
        "n_features_in": int(classifier.n_features_in_),
        "feature_names": list(getattr(classifier, "feature_names_in_", [])) or None,
        "weak_columns": classifier.weak_columns_,
        "history": classifier.history_,
        "recipe": classifier.recipe_,
    }
    write_checkpoint(state, folder / WEIGHTS)
    tensors = ("network", "mean", "scale", "fitted_class_loop")
    readable = {key: value for key, value in state.items() if key not in tensors}
    write_atomically((json.dumps(readable, indent=2, default=_readable) + "\n").encode(), folder / SUMMARY)


def _readable(value: Any) -> Any:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray, np.generic)) else repr(value)


# -- reading ----------------------------------------------------------------------------------------


def load_classifier(
    classifier: Classifier, folder: Path, supervision: Supervision | None, backbone: nn.Module | None
) -> Classifier:
    """Fill a new classifier from a folder; whatever is not what `save` writes is refused in one line."""
    place = folder if folder.suffix == ".safetensors" else folder / WEIGHTS
    if not place.is_file():
        raise InputError(f"{place}: no such file; expected a saved classifier. Check the folder.")
    try:
        state = read_checkpoint(place)
        if state.get("format") != FORMAT:
            raise InputError(
                f"{place}: a state of format {state.get('format')!r}; expected {FORMAT!r}, as save writes it. "
                "Pass the folder of a saved classifier."
            )
        _restore(classifier, state, supervision, backbone)
    except FastbusError as problem:
        raise problem if str(place) in str(problem) else type(problem)(f"{place}: {problem}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError, OverflowError) as problem:
        line = " ".join(str(problem).split())[:200]
        raise CheckpointError(
            f"{place}: no classifier that save wrote ({line}); expected all its entries. Save it again."
        ) from None
    return classifier


def _restore(clf: Any, state: dict[str, Any], supervision: Supervision | None, backbone: nn.Module | None) -> None:
    known = set(clf.get_params(deep=False)) - set(KEPT_APART)
    options = state["options"]
    if set(options) != known:
        odd = sorted(set(options) ^ known)[0]
        raise CheckpointError(f"option {odd!r} unknown or missing; expected those of this version. Save it again.")
    clf.set_params(**options, random_state=state["random_state"])
    clf.classes = state["given_classes"]
    clf.classes_ = np.asarray(_plain_list(state["classes"], (str, int, float), "classes"))
    clf.weak_columns_ = _plain_list(state["weak_columns"], (bool,), "weak_columns")
    clf.mean_, clf.scale_ = _finite(state["mean"], "mean"), _finite(state["scale"], "scale")
    clf.input_shape_ = tuple(_plain_list(state["input_shape"], (int,), "input_shape"))
    clf.temperature_ = float(state["temperature"])
    clf.n_outputs_, clf.n_features_in_ = int(state["n_outputs"]), int(state["n_features_in"])
    wanted = (*clf.input_shape_[:1], 1, 1) if is_image(clf.input_shape_) else clf.input_shape_
    alike = tuple(clf.scale_.shape) == tuple(clf.mean_.shape) == wanted
    if not alike or not bool((clf.scale_ > 0).all()) or not clf.input_shape_:
        raise CheckpointError("scales that are not positive, or of another shape than the means; expected both alike.")
    if not 0 < clf.temperature_ < math.inf or clf.n_outputs_ not in (1, len(clf.classes_)):
        raise CheckpointError("a temperature or a number of outputs that no fit gives; expected T > 0. Save it again.")
    if clf.n_features_in_ != clf.input_shape_[0] or clf.head not in ("softmax", "sigmoid"):
        raise CheckpointError("a head or a number of features that no fit gives; expected a saved one. Save it again.")
    if state["feature_names"] is not None:
        clf.feature_names_in_ = np.asarray(_plain_list(state["feature_names"], (str,), "feature names"), dtype=object)
    clf.history_ = _plain_list(state["history"], (dict,), "history")
    clf.recipe_ = state["recipe"]
    clf.n_iter_ = len(clf.history_)
    clf.supervision = _supervision(state["supervision"], supervision)
    clf.supervision_ = _supervision(state["fitted_supervision"], supervision)
    if isinstance(clf.supervision_, str):
        raise CheckpointError("a fitted supervision by name; expected its options. Save it again.")
    clf.class_loop_ = build_class_loop(state["fitted_class_loop"], clf.n_outputs_)
    clf.evolution_ = None  # of use in training only
    if state["class_loop"] not in (None, *CLASS_LOOPS):
        raise CheckpointError(f"class_loop={state['class_loop']!r}; expected one of {', '.join(CLASS_LOOPS)}.")
    clf.class_loop = clf.class_loop_ if state["class_loop"] is None else state["class_loop"]
    _restore_network(clf, state, backbone)


def _supervision(tree: Any, given: Supervision | None) -> Supervision | str:
    if given is not None and "own" in tree:
        return given
    if "own" in tree:
        raise InputError(
            f"the supervision {tree['own']!r} is a rule of your own; expected it as code, which no file holds. "
            "Pass it again: WeakClassifier.load(folder, supervision=...)."
        )
    return build_supervision(tree)


def _restore_network(clf: Any, state: dict[str, Any], backbone: nn.Module | None) -> None:
    weights, config = state["network"], state["network_config"]
    for name, value in weights.items():
        _finite(value, name)
    if config is None:
        if backbone is None:
            raise InputError(
                "the backbone is a network of your own; expected it as code, which no file holds. Pass it again: "
                "WeakClassifier.load(folder, backbone=...)."
            )
        clf.network_ = clf.backbone = backbone
    else:
        sizes = {side for value in weights.values() for side in value.shape}
        config = dict(config)
        hidden = config.get("hidden", ())
        if tuple(config["input_shape"]) != clf.input_shape_ or config["num_outputs"] != clf.n_outputs_:
            raise CheckpointError("a network for other inputs or outputs; expected those of the classifier.")
        # a width that no tensor has would reserve memory for nothing
        if not set(hidden) <= sizes or len(hidden) > len(weights):
            raise CheckpointError(f"hidden widths {hidden!r}; expected those of the weights. Save it again.")
        name, shape, outputs = config.pop("name"), config.pop("input_shape"), config.pop("num_outputs")
        clf.network_ = build_backbone(name, shape, outputs, **config)
        clf.backbone = state["backbone"] if state["backbone"] is not None else clf.network_
    clf.network_.load_state_dict(weights)
    clf.network_.eval()


def _finite(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor) or not bool(torch.isfinite(value).all()):
        raise CheckpointError(f"{what} with entries that are no finite numbers; expected a tensor. Save it again.")
    return value


def _plain_list(value: Any, kinds: tuple[type, ...], what: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(entry, kinds) for entry in value):
        raise CheckpointError(f"{what} of other types; expected a list of {kinds[0].__name__}. Save it again.")
    return value
