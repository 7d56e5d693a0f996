"""Bags with a yes or no: drugs that bind (musk1), pictures with an elephant or a fox.

10-fold cross-validation of whole bags, stratified by their labels, once for each seed's shuffle; a figure is the share
of bags of all ten test folds whose label is predicted right. The features of a method are scaled on its training
folds, and whatever it chooses it chooses there: fastbus learns the weights of its rules from training bags that its
members did not see. The settings are the same for all sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.bags import Bags
from fastbus.bench.tables import mil_peers
from fastbus.bench.tables.entries import Entry, Progress, Source
from fastbus.bench.tables.records import installed
from fastbus.bench.tables.repeats import Method, repeated

NAMES = ("musk1", "elephant", "fox")
FOLDS = 10
# one positive instance is enough, or half of them are needed
SETTINGS: dict[str, Any] = {
    "shares": [0.0, 0.5],
    "members": 2,
    "held_out": 0.1,
    "hidden": 64,
    "dropout": 0.5,
    "input_dropout": 0.5,
    "epochs": 30,
    "learning_rate": 0.01,
    "weight_decay": 0.1,
}
SINGLE = {"supervision": "multi_instance", "head": "sigmoid", "epochs": 30, "batch_bags": 256}
PUBLISHED = {
    "mi-SVM": {"musk1": 0.874, "elephant": 0.822, "fox": 0.582},
    "attention MIL": {"musk1": 0.892, "elephant": 0.868, "fox": 0.615},
}
Labels = NDArray[np.int64]
Predict = Callable[[Bags, Labels, Bags, int], NDArray[Any]]  # training bags, their labels, test bags, seed


def run(name: str, source: Source, seeds: int, progress: Progress) -> Iterator[Entry]:
    """The entries of one data set."""
    arrays = source.load(f"mil_{name}")
    bags = Bags.from_ids(arrays["x"].astype(np.float64), arrays["bag"])
    labels = arrays["bag_label"].astype(np.int64)[bags.ids]
    task = f"bag accuracy, {FOLDS}-fold x {seeds}"

    def method(title: str, kind: Any, config: dict[str, Any], predict: Any, note: str = "") -> Method:
        once = partial(cross_validated, partial(predict, **config), bags, labels)
        return Method(title, kind, config, lambda seed: (once(seed),), note)

    chosen = "the weights of the two rules are learnt from training bags kept apart; all else is the same for all sets"
    methods = [
        method("fastbus", "ours", SETTINGS, ensemble, chosen),
        method("fastbus, one network", "ours", SINGLE, single, "one WeakClassifier with its own network"),
        method("majority", "trivial", {}, mil_peers.majority),
        method("logistic on bag mean, min, max", "trivial", {"C": 1.0}, mil_peers.logistic),
    ]
    if found := installed("torchmil"):
        config = mil_peers.ATTENTION | {"version": found}
        methods.append(method("torchmil ABMIL", "peer", config, mil_peers.attention, "its defaults, Adam"))
    for contender in methods:
        yield from repeated(name, (task,), contender, seeds, progress)
    for title, values in PUBLISHED.items():
        if progress.wants(name, task, f"published {title}", {}):
            yield Entry(name, task, f"published {title}", "published", values[name], None, 1, 0.0, {})


def cross_validated(predict: Predict, bags: Bags, labels: Labels, seed: int) -> float:
    """The share of bags that are predicted right by folds that did not hold them."""
    from sklearn.model_selection import StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    right = 0
    for fold, (train, test) in enumerate(folds.split(labels, labels)):
        answers = predict(bags.subset(train), labels[train], bags.subset(test), FOLDS * seed + fold)
        right += int((answers == labels[test]).sum())
    return right / len(labels)


def ensemble(train: Bags, labels: Labels, test: Bags, seed: int, **settings: Any) -> NDArray[Any]:
    """Networks under both rules, weighted by the likelihood of bags that they did not see."""
    from fastbus.bench.tables.mil_rules import AtLeastShare
    from fastbus.ensemble import WeakEnsemble
    from fastbus.learner import WeakClassifier
    from fastbus.supervision.aggregate import MultiInstance

    candidates = [
        WeakClassifier(
            AtLeastShare(share) if share else MultiInstance(),
            head="sigmoid",
            backbone=network(train.instances.shape[1], settings),
            epochs=settings["epochs"],
            batch_bags=len(train),
            learning_rate=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
        )
        for share in settings["shares"]
    ]
    clf = WeakEnsemble(candidates, members=settings["members"], held_out=settings["held_out"], random_state=seed)
    return np.asarray(clf.fit(train, _keyed(train, labels)).predict_weak(test))


def network(num_inputs: int, settings: dict[str, Any]) -> Any:
    """A small perceptron that sees a random half of its squashed inputs at a time; the ensemble draws its weights."""
    from torch import nn

    from fastbus.bench.tables.mil_network import Squash

    return nn.Sequential(
        Squash(),
        nn.Dropout(settings["input_dropout"]),
        nn.Linear(num_inputs, settings["hidden"]),
        nn.ReLU(),
        nn.Dropout(settings["dropout"]),
        nn.Linear(settings["hidden"], 1),
    )


def single(train: Bags, labels: Labels, test: Bags, seed: int, **settings: Any) -> NDArray[Any]:
    """One WeakClassifier with its own defaults."""
    from fastbus.learner import WeakClassifier

    clf = WeakClassifier(**settings, random_state=seed).fit(train, _keyed(train, labels))
    return np.asarray(clf.predict_weak(test))


def _keyed(bags: Bags, labels: Labels) -> dict[Any, Any]:
    return dict(zip(bags.ids.tolist(), labels.tolist(), strict=True))
