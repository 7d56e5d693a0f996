"""Weak labels of several kinds at once: exact against enumeration, and worth training with."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fastbus import LabelProportion, NoisyLabel, PairSimilarity, SemiSupervised, WeakClassifier, weaken
from fastbus.bench import weak_labels as by
from fastbus.bench.problems import MANY_CLASSES, ONE, ONE_LABEL, PAIR, SIGMOID, SOFTMAX, TWO_CLASSES, Case
from fastbus.bench.verify_exact import bound, check_case
from fastbus.errors import ImpossibleError

torch.set_num_threads(1)
GOLD = partial(by.semi_supervised, share=0.3)
RATE = partial(by.noisy_label, by_rate=True)
# name, how weak labels are made, heads, sizes of bags
COMBINED: list[tuple[str, by.Weaken, Any, tuple[int, int]]] = [
    ("noisy and gold labels, single", by.all_of(by.noisy_label, GOLD), ONE_LABEL, ONE),
    ("noisy and gold labels, in bags", by.all_of(by.noisy_label, GOLD), ONE_LABEL, (1, 6)),
    ("noisy labels of a known rate and gold labels", by.all_of(RATE, GOLD), ONE_LABEL, (1, 6)),
    ("noisy pairs and gold labels", by.all_of(partial(by.pair_similarity, noisy=True), GOLD), ONE_LABEL, PAIR),
    ("pairs, noisy labels and gold labels", by.all_of(by.pair_similarity, by.noisy_label, GOLD), (MANY_CLASSES,), PAIR),
    ("noisy counts and gold labels", by.all_of(by.noisy_counts, GOLD), (SIGMOID, TWO_CLASSES, SOFTMAX), (1, 6)),
    ("noisy counts and noisy labels", by.all_of(by.noisy_counts, RATE), (SIGMOID, SOFTMAX), (1, 6)),
]
CASES = [
    Case(f"{title} [{form.title}]", how, form.head, form.classes, sizes, form.binary, True)
    for title, how, forms, sizes in COMBINED
    for form in forms
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_combinations_are_enumerated(case: Case) -> None:
    row = check_case(case, 40, seed=2)
    assert row.bags >= 80 and row.truths_possible
    assert max(row.float64) <= bound(torch.float64, row.largest_bag)
    assert max(row.float32) <= bound(torch.float32, row.largest_bag)


# -- training on digits ------------------------------------------------------------------------------

X, Y = load_digits(return_X_y=True)
TRAIN, TEST = slice(0, 600), slice(600, None)


def accuracy(supervision: Any, weak: Any, bags: Any = None, **options: Any) -> float:
    clf = WeakClassifier(supervision, random_state=0, n_classes=10, **{"epochs": 10} | options)
    return float(clf.fit(X[TRAIN], weak, bags=bags).score(X[TEST], Y[TEST]))


def test_incomplete_and_noisy_labels() -> None:
    """Most digits have a label that is wrong at a rate of 0.7, 60 a certain one, some none at all."""
    noisy = weaken(NoisyLabel(rate=0.7), Y[TRAIN], rng=np.random.default_rng(0), missing=0.3)
    gold = np.where(np.arange(600) < 60, Y[TRAIN], -1)
    both = accuracy(NoisyLabel(rate=0.7) & SemiSupervised(), (noisy, gold))
    assert both > accuracy(NoisyLabel(rate=0.7), noisy) + 0.05
    assert both > accuracy("semi_supervised", gold, consistency=0.0) + 0.01


def test_partly_annotated_pairs() -> None:
    """Pairs of the digits 0 to 3, a fifth of them without an answer; twelve gold labels give the classes their names.

    They are weighed up: pairs alone would settle on any naming before the few are heard.
    """
    few = np.random.default_rng(0).permutation(np.flatnonzero(Y < 4))
    x, y, bags = X[few], Y[few], np.arange(400) // 2
    similar = weaken(PairSimilarity(), y[:400], bags, np.random.default_rng(0), missing=0.2)
    gold = np.where(np.arange(400) < 12, y[:400], -1)
    options: dict[str, Any] = {"random_state": 0, "n_classes": 4, "epochs": 20}
    both = WeakClassifier(PairSimilarity() & SemiSupervised(), **options)
    both.fit(x[:400], (similar, gold), bags=bags, sample_weight=np.where(gold >= 0, 10.0, 1.0))
    alone = WeakClassifier("semi_supervised", consistency=0.0, **options).fit(x[:400], gold)
    assert both.score(x[400:], y[400:]) > alone.score(x[400:], y[400:]) + 0.05


def test_noisy_counts() -> None:
    """Counts of the digits 0 to 3 that are off by one now and then, so that many do not even sum to the bag size."""
    few = np.flatnonzero(Y < 4)
    x, y, bags = X[few], Y[few], np.arange(400) // 4
    rule = LabelProportion(noise={-1: 0.1, 0: 0.8, 1: 0.1})
    counts = weaken(rule, y[:400], bags, np.random.default_rng(0), num_classes=4)
    assert (counts.sum(1) != 4).mean() > 0.3
    with pytest.raises(ImpossibleError, match="sum to"):
        WeakClassifier("label_proportion", random_state=0, epochs=1).fit(x[:400], counts, bags=bags)
    clf = WeakClassifier(rule, random_state=0, epochs=6).fit(x[:400], counts, bags=bags)
    assert clf.score(x[400:], y[400:]) > 0.85
