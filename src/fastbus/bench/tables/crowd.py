"""Crowds: classes of dogs and faces from answers alone, and a classifier of scenes from answers and features.

dog, face: (task, worker, label) rows without features; the share of tasks whose class is found, unknown truths
left out. What our model was chosen by stands in its note. labelme: train on the answers of 59 workers to 1,000
images, test on 1,188 others (VGG features).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbus.bench.tables.entries import Entry, Progress, Source
from fastbus.bench.tables.repeats import Method, repeated

NAMES = ("dog", "face", "labelme")
FOUND = "labels found from answers alone"
TESTED = ("test accuracy", "training labels found")
PEERS = ("DawidSkene", "OneCoinDawidSkene", "GLAD", "MMSR", "MACE")
CLASSES = 8  # of labelme
# What WeakClassifier would pick for a crowd, stated so that the baselines get the same network.
NETWORK: dict[str, Any] = {"backbone": "mlp", "dropout": 0.5}
# The first of 1, 2 and 3 kinds that was within the noise of the best held-out likelihood.
SAMPLING: dict[str, Any] = {"samples": 800, "kinds": 2}
QUICK = (
    "chosen with the truth in view: models with several kinds of tasks a class made held-out answers more probable, "
    "but were dropped after they had been seen to find fewer labels"
)
SAMPLED = (
    "the model without sampling, itself chosen with the truth of dog and face in view, extended by two kinds of "
    "annotators and averaged over Gibbs samples; this step was taken because it made held-out answers of dog, face and "
    "labelme more probable, before its accuracy was looked at"
)
Answers = NDArray[np.int64]  # (N, A), -1 for none
Shares = NDArray[np.float64]  # (N, C)


def run(name: str, source: Source, seeds: int, progress: Progress) -> Iterator[Entry]:
    """The entries of one data set."""
    arrays = source.load(f"crowd_{name}")
    yield from _labelme(arrays, seeds, progress) if name == "labelme" else _answers_alone(name, arrays, seeds, progress)


def _answers_alone(name: str, arrays: dict[str, NDArray[Any]], seeds: int, progress: Progress) -> Iterator[Entry]:
    from fastbus.supervision.imperfect import answers_from_table

    truth = arrays["truth"].astype(np.int64)
    columns = [arrays[column].astype(np.int64) for column in ("task", "worker", "label")]
    answers = answers_from_table(*columns, num_tasks=len(truth)).numpy()  # type: ignore[arg-type]

    def scored(find: Callable[[Answers], Shares]) -> Callable[[int], tuple[float]]:
        return lambda repeat: (found_share(find(answers), truth),)

    def sampled(repeat: int) -> tuple[float]:
        return (found_share(ours(answers, random_state=repeat, **SAMPLING), truth),)

    yield from repeated(name, (FOUND,), Method("fastbus", "ours", SAMPLING, sampled, SAMPLED), seeds, progress)
    methods = [
        Method("fastbus, no sampling", "ours", {}, scored(ours), QUICK),
        Method("majority", "trivial", {}, scored(majority), "ties count by halves, thirds, ..."),
        Method("Dawid-Skene", "trivial", {"rounds": 100}, scored(partial(dawid_skene, rounds=100)), "plain EM"),
    ]
    if has_crowd_kit():
        methods += [Method(f"crowd-kit {peer}", "peer", {}, scored(partial(crowd_kit, peer=peer))) for peer in PEERS]
    else:
        progress(f"{name}: crowd-kit is not installed, its methods are left out")
    for method in methods:
        yield from repeated(name, (FOUND,), method, 1, progress)


def found_share(shares: Shares, truth: NDArray[np.int64]) -> float:
    """Expected accuracy where classes that tie are drawn from at random."""
    known = truth >= 0
    best = shares[known] == shares[known].max(1, keepdims=True)
    return float((best / best.sum(1, keepdims=True))[np.arange(known.sum()), truth[known]].mean())


def ours(answers: Answers, **options: Any) -> Shares:
    from fastbus.crowds import aggregate_crowd

    return np.asarray(aggregate_crowd(answers, **options).posterior.numpy())


def majority(answers: Answers) -> Shares:
    votes = np.stack([(answers == label).sum(1) for label in range(answers.max() + 1)], 1)
    return np.asarray(votes / np.maximum(votes.sum(1, keepdims=True), 1), dtype=np.float64)


def dawid_skene(answers: Answers, rounds: int) -> Shares:
    """Maximum likelihood by EM from the majority, without any smoothing (Dawid and Skene 1979)."""
    shares = majority(answers)
    said = (answers[..., None] == np.arange(shares.shape[1])).astype(np.float64)  # (N, A, C)
    for _ in range(rounds):
        counts = np.einsum("ny,nac->ayc", shares, said)
        confusion = counts / np.maximum(counts.sum(-1, keepdims=True), 1e-300)
        # 1e-300 stands for "never seen", so that a task with two such answers still has a best class
        score = np.log(np.maximum(shares.mean(0), 1e-300))
        score = score + np.einsum("nac,ayc->ny", said, np.log(np.maximum(confusion, 1e-300)))
        shares = np.exp(score - score.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
    return shares


def has_crowd_kit() -> bool:
    from importlib.util import find_spec

    return find_spec("crowdkit") is not None


def crowd_kit(answers: Answers, peer: str) -> Shares:
    """A method of crowd-kit with its own defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, about newer versions of what it is built on
        import pandas as pd
        from crowdkit import aggregation

        task, worker = np.nonzero(answers >= 0)
        table = pd.DataFrame({"task": task, "worker": worker, "label": answers[task, worker]})
        options = {"random_state": 0} if peer in ("MMSR", "MACE") else {}
        labels = getattr(aggregation, peer)(**options).fit_predict(table)
    shares = np.zeros((len(answers), int(answers.max()) + 1))
    shares[labels.index.to_numpy(), labels.to_numpy().astype(np.int64)] = 1.0
    return shares


def _labelme(arrays: dict[str, NDArray[Any]], seeds: int, progress: Progress) -> Iterator[Entry]:
    from fastbus.learner import WeakClassifier

    x, x_test = arrays["x_train"], arrays["x_test"]
    answers = arrays["answers"].astype(np.int64)
    truth, truth_test = arrays["y_train"].astype(np.int64), arrays["y_test"].astype(np.int64)
    votes = majority(answers)

    def learned(kind: str, weak: NDArray[np.int64]) -> Callable[[int], tuple[float, float]]:
        def once(repeat: int) -> tuple[float, float]:
            learner = WeakClassifier(kind, n_classes=CLASSES, random_state=repeat, **NETWORK).fit(x, weak)
            test = float((learner.predict(x_test) == truth_test).mean())
            return test, found_share(learner.posterior(x, weak), truth)

        return once

    methods = (
        Method("fastbus", "ours", NETWORK, learned("crowd_label", answers), "library defaults, nothing selected here"),
        Method(
            "same network on the majority",
            "trivial",
            NETWORK,
            learned("semi_supervised", votes.argmax(1)),
            "the first of tied classes",
        ),
        Method("same network on the truth", "trivial", NETWORK, learned("semi_supervised", truth), "the ceiling"),
    )
    for method in methods:
        yield from repeated("labelme", TESTED, method, seeds, progress)

    def alone(repeat: int) -> tuple[float]:
        return (found_share(ours(answers, random_state=repeat, **SAMPLING), truth),)

    features_unseen = Method("fastbus, answers alone", "ours", SAMPLING, alone, SAMPLED)
    yield from repeated("labelme", TESTED[1:], features_unseen, seeds, progress)
    layer = "Rodrigues and Pereira 2018, rounded: VGG features of the same images"
    yield Entry("labelme", TESTED[0], "published CrowdLayer", "published", 0.83, None, 1, 0.0, {}, layer)
