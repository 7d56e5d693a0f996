"""Networks under several rules, combined by what they say of training bags that they did not see.

The training bags are cut into M folds. Every rule is fitted once, to M perceptrons and M linear maps (`ManyNetworks`),
each a class of its own to the library: network m has no label for the bags of fold m, and so never learns from them.
That gives every training bag its probability under each candidate (a rule with a kind of network) out of fold, and
a combination of the candidates is learnt from these alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastbus.bags import Bags
from fastbus.bench.tables.mil_network import ManyNetworks
from fastbus.bench.tables.mil_rules import ShareOfPositives
from fastbus.inference.predict_weak import weak_probabilities
from fastbus.learner import WeakClassifier

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
NETWORKS = 2  # kinds: perceptron, linear map
MISSING = -1
FOLDS = 5  # to choose the penalty by
LARGEST_ODDS = 4.0  # a network's probability of a bag counts as at most sigmoid(4)


def ensemble(train: Bags, labels: Labels, test: Bags, seed: int, **settings: Any) -> NDArray[Any]:
    """Labels of the test bags."""
    fold = fold_numbers(labels, settings["copies"], seed)
    out_of_fold, unseen = candidate_odds(train, labels, fold, test, seed, **settings)
    return combined(out_of_fold, labels, unseen, settings["penalties"], seed)


def fold_numbers(labels: Labels, copies: int, seed: int) -> Labels:
    """The fold 0..copies-1 of every bag (B,), stratified by the labels."""
    from sklearn.model_selection import StratifiedKFold

    fold = np.empty(len(labels), dtype=np.int64)
    parts = StratifiedKFold(copies, shuffle=True, random_state=seed).split(labels, labels)
    for number, (_, apart) in enumerate(parts):
        fold[apart] = number
    return fold


def candidate_odds(
    train: Bags, labels: Labels, fold: Labels, test: Bags, seed: int, **settings: Any
) -> tuple[Floats, Floats]:
    """Log odds of every candidate for the training bags, out of fold (B, R * 2), and for the test bags (T, R * 2)."""
    copies = settings["copies"]
    own = fold[:, None] == np.arange(copies)  # (B, M) whether network m must not see the bag
    weak = np.where(np.tile(own, NETWORKS), MISSING, labels[:, None])
    known, unseen = [], []
    for number, (threshold, softness) in enumerate(settings["rules"]):
        rule = ShareOfPositives(threshold, softness)
        clf = WeakClassifier(
            rule,
            head="sigmoid",
            n_classes=NETWORKS * copies,
            backbone=ManyNetworks(
                train.instances.shape[1],
                copies,
                settings["hidden"],
                settings["dropout"],
                undecided(rule, len(train.instances) / len(train)),
                len(settings["rules"]) * seed + number,
            ),
            epochs=settings["epochs"],
            batch_bags=len(train),
            learning_rate=settings["learning_rate"],
            weight_decay=settings["weight_decay"],
            random_state=seed,
        ).fit(train, dict(zip(train.ids.tolist(), weak, strict=True)))
        known.append(np.where(own, _odds(clf, rule, train, copies), 0.0).sum(-1))  # (2, B)
        unseen.append(_odds(clf, rule, test, copies).mean(-1))
    return np.concatenate(known).T, np.concatenate(unseen).T


def undecided(rule: ShareOfPositives, bag_size: float) -> float:
    """The probability of an instance at which a bag of that size is about as often positive as not."""
    return rule.threshold if rule.threshold > 0 else 1 - 0.5 ** (1 / bag_size)


def combined(known: Floats, labels: Labels, unseen: Floats, penalties: list[float], seed: int) -> NDArray[Any]:
    """Labels by a logistic regression on the candidates' log odds (B, candidates), learnt out of fold.

    The penalty on its weights is the one under which bags kept apart once more are most probable.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    choices = {"C": [1 / penalty for penalty in penalties]}
    search = GridSearchCV(LogisticRegression(), choices, scoring="neg_log_loss", cv=folds)
    return np.asarray(search.fit(known, labels).predict(unseen))


def _odds(clf: WeakClassifier, rule: ShareOfPositives, bags: Bags, copies: int) -> Floats:
    """Log odds of a positive bag, (2, B, M), by every network of a fit."""
    rows = torch.from_numpy(clf.predict_proba(bags.instances))
    result = torch.empty(rows.shape[1], len(bags), dtype=rows.dtype)
    for size in np.unique(bags.sizes).tolist():
        chosen = np.flatnonzero(bags.sizes == size)
        positive = rows[torch.from_numpy(bags.rows(chosen))].reshape(len(chosen), size, -1)  # (b, K, 2 M)
        positive = positive.permute(2, 0, 1).reshape(-1, size)
        given = weak_probabilities(rule, torch.stack([1 - positive, positive], -1), torch.tensor([1]))
        result[:, chosen] = given.reshape(-1, len(chosen))
    odds = torch.logit(result).clamp(-LARGEST_ODDS, LARGEST_ODDS).numpy()
    return np.asarray(odds.reshape(NETWORKS, copies, -1).swapaxes(1, 2))
