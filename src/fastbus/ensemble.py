"""WeakEnsemble: several WeakClassifiers as one, weighted by how well they foretell the labels of bags they did not see.

    rules = [WeakClassifier(MultiInstance(), head="sigmoid"), WeakClassifier(MyRule(), head="sigmoid")]
    clf = WeakEnsemble(rules, members=4, random_state=0).fit(X, bag_labels, bags=bag_ids)
    clf.weights_; clf.predict_weak(X_new, bags=new_ids); clf.predict_proba(X_new)

Each of the M rounds keeps its own bags apart, the same ones for every candidate. The weights w of the candidates
maximise the likelihood of the mixture on these bags, sum_b log sum_c w_c P_c(weak_b), times a flat-topped prior.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted
from torch import nn

from fastbus.bags import Bags
from fastbus.errors import InputError
from fastbus.inference.predict_weak import weak_probabilities
from fastbus.learner import WeakClassifier

PRIOR = 1.0  # bags' worth of evidence for every candidate before any bag is seen
STEPS = 200
TINY = 1e-12


class WeakEnsemble(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Averages the probabilities of WeakClassifiers.

    candidates: a WeakClassifier, or several whose weights are learnt; all speak about the same classes.
    members: networks of each candidate, with other first weights; an nn.Module is drawn anew for each.
    held_out: share of the bags that a member does not see, and that the weights are learnt from; 0 for equal weights.
    random_state: an integer makes every fit bit-identical on one machine; it replaces those of the candidates.
    """

    def __init__(
        self,
        candidates: WeakClassifier | Sequence[WeakClassifier] | None = None,
        *,
        members: int = 5,
        held_out: float = 0.1,
        random_state: int | None = None,
    ) -> None:
        self.candidates = candidates
        self.members = members
        self.held_out = held_out
        self.random_state = random_state

    def fit(self, X: Any, y: Any, bags: Any = None) -> WeakEnsemble:
        """Train every member. X, y, bags: as WeakClassifier takes them, with one weak label a bag."""
        candidates = self._candidates()
        grouped = X if isinstance(X, Bags) else Bags.from_ids(X, bags)
        weak = np.asarray(grouped.align(y))
        rng = np.random.default_rng(self.random_state)
        kept_apart = round(self.held_out * len(grouped)) if len(candidates) > 1 else 0
        self.estimators_: list[list[WeakClassifier]] = [[] for _ in candidates]
        likelihoods = []  # (candidates, bags kept apart) of each round
        for _ in range(self.members):
            order = rng.permutation(len(grouped))
            apart, seen = np.sort(order[:kept_apart]), np.sort(order[kept_apart:])
            labels = dict(zip(grouped.ids[seen].tolist(), weak[seen], strict=True))
            for candidate, fitted in zip(candidates, self.estimators_, strict=True):
                member = _drawn_anew(candidate, int(rng.integers(2**31 - 1)))
                fitted.append(member.fit(grouped.subset(seen), labels))
            if kept_apart:
                unseen = grouped.subset(apart)
                chances = [_bag_probabilities(fitted[-1], unseen) for fitted in self.estimators_]
                likelihoods.append(np.stack([np.where(weak[apart] == 1, p, 1 - p) for p in chances]))
        self.classes_ = self.estimators_[0][0].classes_
        equal = np.full(len(candidates), 1 / len(candidates))
        self.weights_ = mixture_weights(np.concatenate(likelihoods, 1)) if likelihoods else equal
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """P(class) of every row, (N, C), averaged over the members."""
        return self._average(lambda member: member.predict_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(1)])

    def weak_proba(self, X: Any, bags: Any = None) -> NDArray[np.float64]:
        """P(the weak label of a bag is 1), (B,), in the order of first appearance, averaged over the members."""
        grouped = X if isinstance(X, Bags) else Bags.from_ids(X, bags)
        return self._average(lambda member: _bag_probabilities(member, grouped))

    def predict_weak(self, X: Any, bags: Any = None) -> NDArray[np.int64]:
        """The more probable weak label, 0 or 1, of every bag."""
        return np.asarray(self.weak_proba(X, bags) >= 0.5).astype(np.int64)

    def _average(self, answer: Any) -> NDArray[np.float64]:
        check_is_fitted(self, "estimators_")
        means = [np.mean([answer(member) for member in fitted], axis=0) for fitted in self.estimators_]
        return np.asarray(np.tensordot(self.weights_, np.stack(means), 1))

    def _candidates(self) -> list[WeakClassifier]:
        given = self.candidates
        found = [given] if isinstance(given, WeakClassifier) else list(given or ())
        if not found or not all(isinstance(candidate, WeakClassifier) for candidate in found):
            raise InputError(
                f"candidates={given!r}; expected a WeakClassifier, or several. Pass one, or a list of some."
            )
        if isinstance(self.members, bool) or not isinstance(self.members, int) or self.members < 1:
            raise InputError(f"members={self.members!r}; expected a whole number >= 1. Pass e.g. members=5.")
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out={self.held_out!r}; expected a share in [0, 1). Pass e.g. held_out=0.1.")
        return found


def mixture_weights(likelihoods: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights (C,) of the mixture under which bags with likelihoods (C, B) are most probable, by EM."""
    floored = np.maximum(likelihoods, TINY)  # one bag must not rule a candidate out
    weights = np.full(len(floored), 1 / len(floored))
    for _ in range(STEPS):
        joint = weights[:, None] * floored
        counts = (joint / joint.sum(0)).sum(1) + PRIOR
        weights = counts / counts.sum()
    return weights


def _drawn_anew(candidate: WeakClassifier, seed: int) -> WeakClassifier:
    """The candidate with another seed; the layers of a network of its own get other first weights."""
    member: WeakClassifier = clone(candidate).set_params(random_state=seed)
    if isinstance(member.backbone, nn.Module):
        network = copy.deepcopy(member.backbone)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in network.modules():
                reset = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        member.set_params(backbone=network)
    return member


def _bag_probabilities(member: WeakClassifier, grouped: Bags) -> NDArray[np.float64]:
    """P(weak label 1) of every bag (B,) by a fitted member."""
    rule = member.supervision_
    if rule.level != "bag" or rule.labels != "per_class" or len(member.classes_) != 2:
        raise InputError(
            f"{rule.title} with {len(member.classes_)} classes; expected yes or no of bags with two classes. "
            "Read predict_proba instead, or pass held_out=0 to fit."
        )
    rows = torch.from_numpy(member.predict_proba(grouped.instances))
    result = np.empty(len(grouped))
    for size in np.unique(grouped.sizes).tolist():
        chosen = np.flatnonzero(grouped.sizes == size)
        labels = rows[torch.from_numpy(grouped.rows(chosen))].reshape(len(chosen), size, 2)
        result[chosen] = weak_probabilities(rule, labels, torch.tensor([1]))[:, 0].numpy()
    return result
