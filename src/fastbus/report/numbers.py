"""All numbers of a report, computed once: the page draws them, report.json holds them.

N instances in B bags, C classes. Everything is computed in the order of the bags.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastbus.bags import Bags
from fastbus.errors import ImpossibleEvidenceWarning, SupervisionError
from fastbus.inference.posterior import likelihood_kinds
from fastbus.inference.predict_weak import expected_weak
from fastbus.report.agreement import UNBOUND, Agreement, agree
from fastbus.report.channels import Channel, channel_of
from fastbus.report.gold import Gold, against_truth, true_classes
from fastbus.report.likelihood import Likelihood, held_out_likelihood, measure
from fastbus.report.resample import Estimate, bag_sums, ratios
from fastbus.report.words import class_texts, describe, environment, options_text, weak_text
from fastbus.supervision.base import Supervision
from fastbus.training.bag_set import BagSet
from fastbus.training.inputs import as_bags, missing, parts_of, read_inputs
from fastbus.training.whole_set import infer_set

Array = NDArray[np.float64]
SURPRISES = 15
CONFIDENCE_BINS = 20


class Run(NamedTuple):
    """What was trained, on what, for how long, and where."""

    supervision: str
    options: str
    description: str
    head: str
    classes: tuple[str, ...]
    bags: int
    instances: int
    bag_sizes: tuple[int, float, int]  # smallest, median, largest
    input_shape: tuple[int, ...]
    backbone: str
    parameters: int
    epochs: int
    seconds: float | None
    environment: dict[str, str]


class ClassShare(NamedTuple):
    """The share of one class among all instances."""

    name: str
    predicted: Estimate
    with_weak: float
    true: float | None


class Confidence(NamedTuple):
    """How sure predictions are before and after the weak labels are read: counts in bins of equal width."""

    edges: Array
    predicted: NDArray[np.int64]
    with_weak: NDArray[np.int64]
    mean_predicted: float
    mean_with_weak: float
    chance: float


class Surprise(NamedTuple):
    """A bag whose weak label the predictions find hard to believe."""

    bag: str
    size: int
    weak: str
    expected: str
    log_likelihood: float
    per_instance: float
    baseline: float


class Numbers(NamedTuple):
    """Everything a report shows."""

    title: str
    run: Run
    history: list[dict[str, float]]
    likelihood: Likelihood
    agreements: tuple[Agreement, ...]
    shares: tuple[ClassShare, ...]
    confidence: Confidence
    channels: tuple[Channel, ...]
    surprises: tuple[Surprise, ...]
    gold: Gold | None
    notes: tuple[str, ...]


class _Belief(NamedTuple):
    """Predictions and posteriors, one column a class; log-likelihoods of bags, or of draws from sets."""

    probs: Array
    posterior: Array
    log_likelihood: Array
    constant: Array  # log-likelihoods where all instances have the same predictions
    kinds: list[str]  # what the log-likelihoods are: exact, composite, ...


def collect(classifier: Any, X: Any, weak: Any, bags: Any = None, labels: Any = None, title: str = "") -> Numbers:
    """The numbers of a fitted classifier on rows with weak labels, and true labels (N,) or (N, C) if known."""
    rule: Supervision = classifier.supervision_
    grouped = as_bags(X, bags, np.asarray)
    given = read_inputs(rule, grouped, weak, classifier.head, classifier.classes_, None)
    parts, values = parts_of(rule), [x.numpy() for x in _entries(given.weak)]
    names = class_texts(classifier.classes_)
    sizes = grouped.sizes
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ImpossibleEvidenceWarning)
        belief = _believe(classifier, X, grouped, given.weak)
    for warning in caught:
        if not issubclass(warning.category, ImpossibleEvidenceWarning):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    notes = []
    if any(issubclass(warning.category, ImpossibleEvidenceWarning) for warning in caught):
        notes.append("Some weak labels contradict every labelling of their bags; they were left out of account.")
    several = classifier.head == "sigmoid" and classifier.n_outputs_ > 1
    truth = None
    if labels is not None:
        truth = np.asarray(grouped.arrange(true_classes(labels, classifier.classes_)))
    unbound = all(part.title in UNBOUND for part in parts)
    gold = None if truth is None else against_truth(truth, belief.probs, belief.posterior, sizes, names, unbound)
    if unbound:
        notes.append("Pairs tell classes apart without naming them: which class is which is not known.")
    agreements = []
    for part, entry, columns in zip(parts, values, classifier.weak_columns_, strict=True):
        try:
            agreements.append(agree(part, entry, _outputs(classifier, belief.probs), sizes, columns, names))
        except SupervisionError:  # an own rule that does not list its weak labels
            agreements.append(None)
    channels = [channel_of(part, x, belief.posterior, sizes, names) for part, x in zip(parts, values, strict=True)]
    is_set = any(part.level == "set" for part in parts)
    return Numbers(
        title=title or "What was learnt from weak labels",
        run=_run(classifier, grouped, names),
        history=[dict(row) for row in classifier.history_],
        likelihood=measure(
            belief.log_likelihood,
            belief.constant,
            sizes,
            is_set,
            belief.kinds,
            held_out_likelihood(classifier.history_, classifier.patience),
        ),
        agreements=tuple(found for found in agreements if found is not None),
        shares=_shares(belief, sizes, names, truth),
        confidence=_confidence(belief, several),
        channels=tuple(found for found in channels if found is not None),
        surprises=_surprises(classifier, grouped, values, belief, is_set),
        gold=gold,
        notes=tuple(notes),
    )


def _entries(weak: Any) -> tuple[Any, ...]:
    return weak if isinstance(weak, tuple) else (weak,)


def _outputs(classifier: Any, probs: Array) -> Array:
    """Probabilities as the network's outputs: a single sigmoid has one column."""
    return probs[:, 1:] if classifier.n_outputs_ == 1 and classifier.head == "sigmoid" else probs


def _believe(classifier: Any, X: Any, grouped: Bags, weak: Any) -> _Belief:
    probs = np.asarray(grouped.arrange(classifier.predict_proba(X)), dtype=np.float64)
    logits = np.asarray(grouped.arrange(classifier.decision_function(X)), dtype=np.float64)
    single = classifier.head == "sigmoid" and classifier.n_outputs_ == 1
    if logits.ndim == 1:  # the log-odds of the second of two classes
        logits = logits[:, None] if single else np.stack([np.zeros_like(logits), logits], 1)
    mean = np.clip(_outputs(classifier, probs).mean(0), 1e-9, 1 - 1e-9)
    constant = np.log(mean) if classifier.head == "softmax" else np.log(mean) - np.log1p(-mean)
    data = BagSet(classifier.supervision_, torch.from_numpy(logits), torch.from_numpy(grouped.sizes), weak)
    options = classifier._inference()
    found = infer_set(data, torch.from_numpy(logits), grouped.ids, **options)
    same = infer_set(data, torch.from_numpy(np.tile(constant, (len(logits), 1))), grouped.ids, **options)
    posterior = found.labels.numpy()
    if single:
        posterior = np.concatenate([1 - posterior, posterior], 1)
    kinds = likelihood_kinds(found.exact_bags, found.coupling)
    return _Belief(probs, posterior, found.log_likelihood.numpy(), same.log_likelihood.numpy(), kinds)


def _run(classifier: Any, grouped: Bags, names: tuple[str, ...]) -> Run:
    sizes = grouped.sizes
    network = classifier.network_
    backbone = classifier.backbone if isinstance(classifier.backbone, str) else type(classifier.backbone).__name__
    shown = type(network).__name__
    seconds = getattr(classifier, "seconds_", None)
    return Run(
        supervision=classifier.supervision_.title,
        options=_short(options_text(classifier.supervision_)),
        description=describe(classifier.supervision_),
        head=classifier.head,
        classes=names,
        bags=len(grouped),
        instances=grouped.num_instances,
        bag_sizes=(int(sizes.min()), float(np.median(sizes)), int(sizes.max())),
        input_shape=tuple(int(n) for n in classifier.input_shape_),
        backbone=backbone if backbone == shown else f"{backbone} ({shown})",
        parameters=sum(x.numel() for x in network.parameters()),
        epochs=int(classifier.n_iter_),
        seconds=None if seconds is None else float(seconds),
        environment=environment(),
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else text[:159] + "…"


def _shares(
    belief: _Belief, sizes: NDArray[np.int64], names: tuple[str, ...], truth: NDArray[np.int64] | None
) -> tuple[ClassShare, ...]:
    count = sizes[:, None].astype(np.float64)
    value, low, high = ratios(bag_sums(belief.probs, sizes), count)
    after = belief.posterior.mean(0)
    true: list[float | None] = [None] * len(names)
    if truth is not None and (truth >= 0).any():
        if truth.ndim == 2:
            true = list((truth == 1).sum(0) / np.maximum((truth >= 0).sum(0), 1))
        else:
            true = list(np.bincount(truth[truth >= 0], minlength=len(names)) / (truth >= 0).sum())
    return tuple(
        ClassShare(name, Estimate(float(v), float(lo), float(hi)), float(w), None if t is None else float(t))
        for name, v, lo, hi, w, t in zip(names, value, low, high, after, true, strict=True)
    )


def _confidence(belief: _Belief, several: bool) -> Confidence:
    def sure(probs: Array) -> Array:
        return np.maximum(probs, 1 - probs).reshape(-1) if several else probs.max(1)

    before, after = sure(belief.probs), sure(belief.posterior)
    chance = 0.5 if several else 1 / belief.probs.shape[1]
    edges = np.linspace(chance, 1, CONFIDENCE_BINS + 1)
    counts = [np.histogram(np.clip(x, chance, 1), edges)[0] for x in (before, after)]
    return Confidence(edges, counts[0], counts[1], float(before.mean()), float(after.mean()), chance)


def _surprises(
    classifier: Any, grouped: Bags, values: list[NDArray[Any]], belief: _Belief, is_set: bool
) -> tuple[Surprise, ...]:
    """The bags of lowest log-likelihood an instance; of sets, the known positives of lowest probability."""
    parts = parts_of(classifier.supervision_)
    sizes = grouped.sizes
    if is_set:
        return _doubtful_positives(parts, values, grouped, belief)
    likelihood = belief.log_likelihood / sizes
    order = np.argsort(likelihood, kind="stable")[:SURPRISES]
    order = order[belief.log_likelihood[order] < -1e-9]  # what is certain surprises nobody
    probs = torch.from_numpy(_outputs(classifier, belief.probs))
    foretold: list[NDArray[Any] | None] = []
    for part, columns in zip(parts, classifier.weak_columns_, strict=True):
        try:
            weak = expected_weak(part, probs, torch.from_numpy(sizes), columns, exclusive=classifier.head == "softmax")
            foretold.append(weak.numpy())
        except SupervisionError:
            foretold.append(None)
    names = np.asarray(class_texts(classifier.classes_), dtype=object)
    starts = grouped.offsets
    found = []
    for bag in order.tolist():
        rows = slice(int(starts[bag]), int(starts[bag + 1]))
        told = [_told(part, x, bag, rows, names) for part, x in zip(parts, values, strict=True)]
        wanted = [
            "?" if x is None else _told(part, x, bag, rows, names) for part, x in zip(parts, foretold, strict=True)
        ]
        found.append(
            Surprise(
                _short(str(grouped.ids[bag])),
                int(sizes[bag]),
                " & ".join(told),
                " & ".join(wanted),
                float(belief.log_likelihood[bag]),
                float(likelihood[bag]),
                float(belief.constant[bag]),
            )
        )
    return tuple(found)


def _told(part: Supervision, values: NDArray[Any], bag: int, rows: slice, names: NDArray[Any]) -> str:
    """The weak label of one bag as text; classes by their names."""
    if part.level == "bag":
        own = getattr(part, "values", None)
        if own is not None and values.ndim == 1 and not all(isinstance(x, (bool, int, float)) for x in own):
            return _short(str(own[int(values[bag])]))
        return weak_text(values[bag])
    entry = values[rows]
    if part.title == "partial_label" or (entry.ndim == 2 and part.title == "complementary_label"):
        return weak_text(["|".join(names[row == 1]) if row.ndim else names[int(row)] for row in entry])
    if entry.ndim == 2 and part.title == "semi_supervised":
        return weak_text(entry)
    gone = missing(entry)
    texts = np.where(gone, "–", names[np.where(gone, 0, entry).astype(np.int64)])
    return weak_text(texts.reshape(-1) if texts.size > 1 else texts.reshape(()))


def _doubtful_positives(
    parts: tuple[Supervision, ...], values: list[NDArray[Any]], grouped: Bags, belief: _Belief
) -> tuple[Surprise, ...]:
    known = [np.nonzero(x == 1)[0] for part, x in zip(parts, values, strict=True) if part.title == "positive_unlabeled"]
    if not known:
        return ()
    p = belief.probs[:, 1]
    order = known[0][np.argsort(p[known[0]], kind="stable")][:SURPRISES]
    owner = np.repeat(np.arange(len(grouped)), grouped.sizes)
    usual = float(np.log(max(p.mean(), 1e-300)))
    return tuple(
        Surprise(
            _short(str(grouped.ids[owner[row]])),
            1,
            "positive",
            "positive" if p[row] >= 0.5 else "negative",
            float(np.log(max(p[row], 1e-300))),
            float(np.log(max(p[row], 1e-300))),
            usual,
        )
        for row in order.tolist()
    )
