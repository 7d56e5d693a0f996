"""The numbers of a report against hand computation, on digits in bags."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score, confusion_matrix

import fastbus
from fastbus.data.weaken import weaken
from fastbus.errors import InputError
from fastbus.learner import WeakClassifier
from fastbus.report.gold import true_classes
from fastbus.report.likelihood import exactness
from fastbus.report.numbers import collect
from fastbus.report.page import render
from fastbus.report.resample import bag_sums, ratio
from fastbus.report.words import describe, weak_text
from fastbus.report.write import write_report
from fastbus.supervision.base import REGISTRY

pytest.importorskip("matplotlib")
N = 240


def digits(rows: int = N) -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))[:rows]
    return X[order], y[order]


@pytest.fixture(scope="module")
def proportions() -> tuple:
    """A classifier of three groups of digits from counts in bags of 3 and 5, shuffled rows, text ids."""
    X, y = digits()
    y = y % 3
    ids = np.array([f"bag_{row // 5}" if row < 120 else f"bag_{row // 3}x" for row in range(N)])
    order = np.random.default_rng(1).permutation(N)
    X, y, ids = X[order], y[order], ids[order]
    counts = {name: np.bincount(y[ids == name], minlength=3) for name in np.unique(ids)}
    classifier = WeakClassifier("label_proportion", epochs=3, held_out=0.2, random_state=0)
    return classifier.fit(X, counts, bags=ids), X, y, ids, counts


def test_numbers_of_proportions_by_hand(proportions: tuple) -> None:
    classifier, X, y, ids, counts = proportions
    found = collect(classifier, X, counts, ids, y)
    probs, guess = classifier.predict_proba(X), classifier.predict(X)
    names = list(dict.fromkeys(ids))
    given = np.array([counts[name] / counts[name].sum() for name in names])
    foretold = np.array([probs[ids == name].mean(0) for name in names])
    (agreement,) = found.agreements
    assert agreement.kind == "numbers" and agreement.points == given.size
    assert agreement.score.value == pytest.approx(np.abs(given - foretold).mean())
    assert agreement.baseline.value == pytest.approx(np.abs(given - given.mean(0)).mean())
    assert agreement.score.low < agreement.score.value < agreement.score.high
    assert found.run.bags == len(names) and found.run.instances == N and found.run.bag_sizes[::2] == (3, 5)
    assert [share.predicted.value for share in found.shares] == pytest.approx(probs.mean(0))
    assert [share.true for share in found.shares] == pytest.approx(np.bincount(y) / N)
    gold = found.gold
    assert gold is not None
    assert gold.accuracy.value == pytest.approx(accuracy_score(y, guess))
    assert gold.majority.value == pytest.approx(np.bincount(y).max() / N)
    np.testing.assert_array_equal(gold.confusion, confusion_matrix(y, guess))
    after = classifier.posterior(X, counts, bags=ids)
    assert gold.with_weak.value == pytest.approx((after.argmax(1) == y).mean())
    assert gold.calibration.brier == pytest.approx(((probs - np.eye(3)[y]) ** 2).sum(1).mean())
    assert gold.calibration.counts.sum() == N
    assert found.confidence.mean_with_weak == pytest.approx(after.max(1).mean())


def test_likelihoods_and_surprises_by_hand(proportions: tuple) -> None:
    classifier, X, _, ids, counts = proportions
    found = collect(classifier, X, counts, ids)
    logits = torch.from_numpy(classifier.decision_function(X))
    names = list(dict.fromkeys(ids))
    mean = classifier.predict_proba(X).mean(0)
    mine, constant, sizes = [], [], []
    for name in names:
        rows = torch.from_numpy(np.nonzero(ids == name)[0])
        weak = torch.from_numpy(counts[name])[None]
        mine.append(float(fastbus.infer("label_proportion", logits[rows][None], weak).log_likelihood))
        # equal predictions: the multinomial probability
        log = math.lgamma(len(rows) + 1) + sum(
            n * math.log(p) - math.lgamma(n + 1) for n, p in zip(counts[name].tolist(), mean.tolist(), strict=True)
        )
        constant.append(log)
        sizes.append(len(rows))
    assert found.likelihood.per_bag == pytest.approx(np.mean(mine))
    assert found.likelihood.baseline_per_bag == pytest.approx(np.mean(constant), rel=1e-6)
    assert found.likelihood.per_instance.value == pytest.approx(sum(mine) / N)
    order = np.argsort(np.array(mine) / np.array(sizes))
    assert [row.bag for row in found.surprises] == [names[at] for at in order[: len(found.surprises)]]
    worst = found.surprises[0]
    assert worst.weak == f"({', '.join(map(str, counts[names[order[0]]].tolist()))})"
    assert worst.log_likelihood == pytest.approx(mine[order[0]])
    assert worst.baseline == pytest.approx(constant[order[0]], rel=1e-6)
    assert found.gold is None


def test_a_mislabelled_bag_surprises_most() -> None:
    X, y = digits(600)
    y = (y >= 5).astype(int)
    ids = np.arange(600) // 4
    counts = np.bincount(ids, weights=y).astype(int)
    classifier = WeakClassifier("label_proportion", epochs=12, random_state=0).fit(X, counts, bags=ids)
    clear = int(np.nonzero(counts == 4)[0][0])
    wrong = counts.copy()
    wrong[clear] = 0
    assert collect(classifier, X, wrong, ids).surprises[0].bag == str(clear)


def test_bootstrap_intervals() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 5, 400)
    right = rng.binomial(sizes, 0.3).astype(float)
    found = ratio(right, sizes.astype(float))
    share = right.sum() / sizes.sum()
    spread = 1.96 * np.sqrt(((right - share * sizes) ** 2).sum()) / sizes.sum()  # the ratio's linear variance
    assert found.value == pytest.approx(share)
    assert (found.high - found.low) / 2 == pytest.approx(spread, rel=0.12)
    assert ratio(right, sizes.astype(float)) == found
    assert math.isnan(ratio(right[:1], sizes[:1].astype(float)).low)
    np.testing.assert_array_equal(bag_sums(np.arange(6.0), np.array([1, 2, 3])), [0, 3, 12])


def fitted(supervision: fastbus.Supervision, X: np.ndarray, weak: object, bags: object = None, **options: object):
    return WeakClassifier(supervision, epochs=2, random_state=0, **options).fit(X, weak, bags=bags)


def test_noise_is_counted_with_intervals() -> None:
    X, y = digits()
    y = y % 3
    weak = weaken(fastbus.NoisyLabel(rate=0.3), y, rng=0)
    classifier = fitted(fastbus.NoisyLabel(rate=0.3), X, weak)
    found = collect(classifier, X, weak, None, y)
    (channel,) = found.channels
    assert channel.assumed.diagonal() == pytest.approx([0.7] * 3)
    after = classifier.posterior(X, weak)
    table = after.T @ np.eye(3)[weak]
    np.testing.assert_allclose(channel.counted, table / table.sum(1, keepdims=True))
    assert (channel.low <= channel.counted).all() and (channel.counted <= channel.high).all()
    guess = classifier.predict_proba(X).argmax(1)
    np.testing.assert_array_equal(found.agreements[0].table, confusion_matrix(weak, guess))
    assert found.agreements[0].baseline.value == pytest.approx(np.bincount(weak).max() / N)


def test_a_report_says_what_its_likelihoods_are(proportions: tuple) -> None:
    classifier, X, _, ids, counts = proportions
    found = collect(classifier, X, counts, ids).likelihood
    assert found.kinds == {"exact": len(counts)} and found.exact
    assert found.held_out == pytest.approx(-classifier.history_[-1]["held_out"])
    tilted = copy.copy(classifier).set_params(coupling="tilted")
    numbers = collect(tilted, X, counts, ids)
    sizes = fastbus.Bags.from_ids(X, ids).sizes
    given = np.array([counts[name] for name in dict.fromkeys(ids)])
    logits = np.concatenate([np.log(classifier.predict_proba(X[ids == name])) for name in dict.fromkeys(ids)])
    post = fastbus.infer("label_proportion", logits, given, bag_sizes=sizes, coupling="tilted")
    exact = int(post.exact_bags.sum())
    assert post.likelihood != "exact" and numbers.likelihood.kinds.get("exact", 0) == exact
    assert numbers.likelihood.kinds["composite"] == len(counts) - exact and not numbers.likelihood.exact
    assert "composite" in render(numbers) and "are exact" not in render(numbers)
    several = {"exact": 2, "bethe": 1, "truncated": 3}
    assert exactness(several).startswith("Of 6 likelihoods, 2 exact; 1 of Bethe")


def binary(y: np.ndarray) -> np.ndarray:
    return (y >= 5).astype(int)


def many() -> dict[str, tuple]:
    """name -> (supervision, labels, bags, weak, options of the classifier)."""
    _, y = digits()
    three, two, pairs = y % 3, binary(y), np.arange(N) // 2
    flags = np.stack([y % 2 == 0, y > 4, y < 3], 1).astype(int)
    majority = fastbus.Supervision.from_function(lambda labels: "yes" if sum(labels) > 1 else "no", 3)
    thirds, crowd = np.arange(N) // 3, fastbus.CrowdLabel(rate=0.3)
    both = fastbus.LabelProportion() & fastbus.SemiSupervised()
    interval = fastbus.LabelProportion("interval")
    return {
        "interval": (interval, three, np.arange(N) // 4, weaken(interval, three, np.arange(N) // 4, 0), {}),
        "multi_instance": (fastbus.MultiInstance(noise=(0.1, 0.1)), two, thirds, None, {}),
        "several labels": (fastbus.MultiInstance(), flags, thirds, None, {"head": "sigmoid"}),
        "single sigmoid": (fastbus.LabelProportion(), two, thirds, None, {"head": "sigmoid"}),
        "pairs": (fastbus.PairSimilarity(), two, pairs, None, {}),
        "comparison": (fastbus.PairComparison(), two, pairs, None, {}),
        "difference": (fastbus.ConfidenceDifference(), two, pairs, np.clip(np.diff(two)[::2] * 0.8, -1, 1)[:120], {}),
        "majority": (majority, two, thirds, None, {}),
        "partial": (fastbus.PartialLabel(), three, None, weaken("partial_label", three, rng=0, ratio=0.3), {}),
        "complementary": (fastbus.ComplementaryLabel(), three, None, None, {"n_classes": 3}),
        "crowd": (crowd, three, None, weaken(crowd, three, rng=0, annotators=4), {}),
        "semi": (fastbus.SemiSupervised(), three, None, weaken("semi_supervised", three, rng=0, labelled=0.3), {}),
        "positive_unlabeled": (
            fastbus.PositiveUnlabeled(0.5), two, None, np.where((two == 1) & (np.arange(N) % 3 == 0), 1, -1), {}
        ),
        "unlabeled_unlabeled": (fastbus.UnlabeledUnlabeled((0.8, 0.2)), two, None, 1 - two, {}),
        "both": (both, three, thirds, weaken(both, three, thirds, 0, labelled=0.2), {"n_classes": 3}),
    }  # fmt: skip


KINDS = tuple(many())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # so few epochs
def test_every_kind_has_a_report(kind: str, tmp_path: Path) -> None:
    supervision, y, bags, weak, options = many()[kind]
    X, _ = digits()
    if weak is None:
        weak = weaken(supervision, y, bags, rng=0)
    classifier = WeakClassifier(supervision, epochs=1, random_state=0, queue=0, batch_bags=30, **options)
    report = write_report(tmp_path / "run", classifier.fit(X, weak, bags=bags), X, weak, bags, y, title=kind)
    stored = json.loads(report.json.read_text())
    found = report.numbers
    assert found.gold is not None and stored["gold"]["accuracy"]["value"] == pytest.approx(found.gold.accuracy.value)
    assert 0 <= found.gold.majority.value <= 1 and len(found.agreements) == (2 if kind == "both" else 1)
    assert all(math.isfinite(part.score.value) and math.isfinite(part.baseline.value) for part in found.agreements)
    page = report.page.read_text()
    assert f"{100 * found.gold.majority.value:.1f}" in page and page.count("<svg") >= 4


def test_words() -> None:
    assert all(describe(kind).endswith(".") for kind in (fastbus.LabelProportion(), fastbus.MultiInstance()))
    assert "rule of its own" not in " ".join(
        describe(REGISTRY[name]()) for name in REGISTRY if name in ("noisy_label", "crowd_label", "partial_label")
    )
    assert weak_text(np.array([1.0, np.nan])) == "(1, ?)" and len(weak_text(np.arange(99))) == 60


def test_true_labels_are_names_or_positions() -> None:
    names = np.array(["cat", "dog"])
    assert true_classes(["dog", "cat", ""], names).tolist() == [1, 0, -1]
    assert true_classes(np.array([1, 0, -1]), names).tolist() == [1, 0, -1]
    with pytest.raises(InputError, match="true label 'cow'"):
        true_classes(["cow"], names)
