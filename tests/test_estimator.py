"""WeakClassifier as an estimator: inputs of every form, weights, pipelines, folds of bags, calibration."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fastbus import (
    BagKFold,
    Bags,
    CrowdLabel,
    LabelProportion,
    MultiInstance,
    NoisyLabel,
    PartialLabel,
    SimilarDissimilarUnlabeled,
    UnlabeledUnlabeled,
    WeakClassifier,
    bag_sequence,
    infer,
    weak_accuracy,
    weaken,
)
from fastbus.errors import FastbusError, ImpossibleError, InputError, SupervisionError, WeakLabelError
from fastbus.inference.predict_weak import weak_probabilities
from fastbus.supervision import PairComparison, PairSimilarity

torch.set_num_threads(1)

X, Y = load_iris(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER], Y[ORDER]
IDS = np.arange(len(X)) // 3
COUNTS = weaken("label_proportion", Y, IDS)
# Few epochs for speed, a tenth of the default's steps, and a larger rate with them; iris needs neither.
FAST: dict[str, Any] = {"epochs": 15, "learning_rate": 0.02, "random_state": 0}


@pytest.fixture(scope="module")
def proportions() -> WeakClassifier:
    return WeakClassifier("label_proportion", **FAST).fit(X, COUNTS, bags=IDS)


def test_learns_from_proportions(proportions: WeakClassifier) -> None:
    assert proportions.score(X, Y) > 0.9
    assert np.allclose(proportions.predict_proba(X).sum(1), 1)


def test_refits_are_bit_identical(proportions: WeakClassifier) -> None:
    state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    again = clone(proportions).fit(X, COUNTS, bags=IDS)
    assert np.array_equal(again.predict_proba(X), proportions.predict_proba(X))
    assert np.array_equal(state[0], np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(state[1], torch.get_rng_state())
    other = clone(proportions).set_params(random_state=1).fit(X, COUNTS, bags=IDS)
    assert not np.array_equal(other.predict_proba(X), proportions.predict_proba(X))


def test_every_form_of_bags_gives_the_same_fit(proportions: WeakClassifier) -> None:
    names = np.array([f"bag_{i}" for i in IDS])
    keyed = {f"bag_{i}": row for i, row in enumerate(COUNTS)}
    frame = pd.DataFrame(COUNTS, index=[f"bag_{i}" for i in range(len(COUNTS))])
    by_row = COUNTS[IDS]
    forms: list[tuple[Any, Any, Any]] = [
        (X, keyed, names),
        (X, frame, names),
        (X, by_row, names),
        (Bags.from_ids(X, IDS), COUNTS, None),
        (list(Bags.from_ids(X, IDS)), COUNTS, None),
        (torch.tensor(X), torch.tensor(COUNTS), torch.tensor(IDS)),
    ]
    expected = proportions.predict_proba(X)
    for rows, weak, bags in forms[1:]:
        fitted = WeakClassifier("label_proportion", epochs=1, random_state=0).fit(rows, weak, bags=bags)
        reference = WeakClassifier("label_proportion", epochs=1, random_state=0).fit(X, COUNTS, bags=IDS)
        assert np.array_equal(fitted.predict_proba(X), reference.predict_proba(X))
    rows, weak, bags = forms[0]
    assert np.array_equal(WeakClassifier("label_proportion", **FAST).fit(rows, weak, bags).predict_proba(X), expected)


def test_posterior_keeps_the_order_of_rows_and_the_counts(proportions: WeakClassifier) -> None:
    shuffled = np.random.default_rng(1).permutation(len(X))
    post = proportions.posterior(X, COUNTS, bags=IDS)
    again = proportions.posterior(X[shuffled], COUNTS, bags=IDS[shuffled])
    assert np.allclose(post[shuffled], again, atol=1e-9)
    sums = np.stack([post[bag == IDS].sum(0) for bag in range(len(COUNTS))])
    assert np.allclose(sums, COUNTS, atol=1e-6)
    assert (post.argmax(1) == Y).mean() >= proportions.score(X, Y)


def test_predicted_weak_labels(proportions: WeakClassifier) -> None:
    predicted = proportions.predict_weak(X, bags=IDS)
    assert predicted.shape == COUNTS.shape
    assert (predicted == COUNTS).mean() > 0.85
    names = ["setosa", "versicolor", "virginica"]
    clf = WeakClassifier(epochs=2, random_state=0).fit(X, np.array(names)[Y])
    assert set(clf.predict_weak(X)) <= set(names)


@pytest.mark.parametrize(
    ("rule", "values", "size"),
    [
        (MultiInstance(noise=(0.1, 0.2)), [0, 1], 4),
        (LabelProportion(noise={-1: 0.1, 0: 0.8, 1: 0.1}), [0, 1, 2, 3], 3),
        (PairComparison(), [0, 1], 2),
        (PairSimilarity(noise=(0.1, 0.0)), [0, 1], 2),
    ],
    ids=lambda value: getattr(value, "title", ""),
)
def test_weak_probabilities_are_those_of_inference(rule: Any, values: list[int], size: int) -> None:
    p = torch.rand(5, size, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.cat([1 - p, p], -1)
    mine = weak_probabilities(rule, labels, torch.tensor(values))
    assert torch.allclose(mine.sum(1), torch.ones(5, dtype=torch.float64))
    for column, value in enumerate(values):
        post = infer(rule, labels, torch.full((5,), value), inputs="probs")
        assert torch.allclose(mine[:, column].log(), post.log_likelihood, atol=1e-9)


def test_weights(proportions: WeakClassifier) -> None:
    ones = clone(proportions).fit(X, COUNTS, bags=IDS, sample_weight=np.ones(len(X)), bag_weight=np.ones(50))
    assert np.allclose(ones.predict_proba(X), proportions.predict_proba(X), atol=1e-4)
    # bags of weight 0 may say anything
    wrong = COUNTS.copy()
    wrong[25:] = wrong[25:, ::-1]
    weight = np.where(np.arange(50) < 25, 1.0, 0.0)
    assert clone(proportions).fit(X, wrong, bags=IDS, bag_weight=weight).score(X, Y) > 0.85
    noisy = np.where(np.arange(len(X)) < 75, Y, (Y + 1) % 3)
    clf = WeakClassifier(**FAST).fit(X, noisy, sample_weight=(np.arange(len(X)) < 75).astype(float))
    assert clf.score(X, Y) > 0.85


def test_names_of_features_are_kept() -> None:
    frame = load_wine(as_frame=True)
    clf = WeakClassifier(epochs=2, random_state=0).fit(frame.data, frame.target)
    assert list(clf.feature_names_in_) == list(frame.data.columns)
    with pytest.raises(ValueError, match="feature names"):
        clf.predict(frame.data.rename(columns={"ash": "other"}))


@pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # a learning rate of 1e-5
def test_sequences_of_bags_in_grid_search() -> None:
    names = np.array([f"bag_{i}" for i in IDS])
    bags, weak = bag_sequence(X, {f"bag_{i}": row for i, row in enumerate(COUNTS)}, names)
    grid = GridSearchCV(WeakClassifier("label_proportion", **FAST), {"learning_rate": [1e-5, 1e-2]}, cv=3)
    grid.fit(bags, weak)
    assert grid.best_params_ == {"learning_rate": 1e-2}  # chosen by likelihood, without true labels
    assert grid.best_estimator_.score(X, Y) > 0.9
    present = (COUNTS[:, 2] > 0).astype(int)
    scores = cross_val_score(
        WeakClassifier("multi_instance", **FAST), bags, present, cv=BagKFold(3), scoring=weak_accuracy
    )
    assert scores.mean() > max(present.mean(), 1 - present.mean())


@pytest.mark.parametrize("folds", [GroupKFold(3), BagKFold(3)], ids=["GroupKFold", "BagKFold"])
def test_rows_with_bag_ids_in_a_routed_pipeline(folds: Any) -> None:
    names = np.array([f"bag_{i}" for i in IDS])
    with sklearn.config_context(enable_metadata_routing=True):
        clf = WeakClassifier("label_proportion", **FAST).set_fit_request(bags=True).set_score_request(bags=True)
        pipe = make_pipeline(StandardScaler(), clf)
        params = {"bags": names, "groups": names}
        scores = cross_val_score(pipe, X, COUNTS[IDS], cv=folds, params=params)
        assert scores.shape == (3,) and (scores > -3).all()
        pipe.fit(X, COUNTS[IDS], bags=names)
        assert (pipe.predict(X) == Y).mean() > 0.9
    for train, test in folds.split(X, Y, names):
        assert not set(names[train]) & set(names[test])


def test_pipeline_without_routing() -> None:
    pipe = make_pipeline(StandardScaler(), WeakClassifier("label_proportion", **FAST))
    pipe.fit(X, COUNTS, weakclassifier__bags=IDS)
    assert pipe.score(X, Y) > 0.9


def test_calibration_makes_held_out_labels_more_probable() -> None:
    rows, y2 = load_breast_cancer(return_X_y=True)
    half = np.arange(len(rows)) % 2 == 0
    plain = WeakClassifier(epochs=40, held_out=0.3, dropout=0.0, random_state=0).fit(rows[half], y2[half])
    warm = WeakClassifier(epochs=40, held_out=0.3, dropout=0.0, calibrate=True, random_state=0).fit(
        rows[half], y2[half]
    )
    assert plain.temperature_ == 1 and warm.temperature_ != 1
    assert np.array_equal(plain.predict(rows), warm.predict(rows))
    losses = [log_loss(y2[~half], clf.predict_proba(rows[~half])) for clf in (plain, warm)]
    assert losses[1] < losses[0]


def test_noise_is_estimated_out_of_fold() -> None:
    rows, y3 = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    noisy = weaken(NoisyLabel([[0.9, 0.1], [0.35, 0.65]]), y3, rng=rng)
    clf = WeakClassifier("noisy_label", **FAST).fit(rows, noisy)
    T = clf.supervision_.transition
    assert abs(float(T[0, 0]) - 0.9) < 0.1 and abs(float(T[1, 1]) - 0.65) < 0.1
    assert clf.supervision == "noisy_label" and clf.score(rows, y3) > 0.88 > (noisy == y3).mean()
    answers = weaken(CrowdLabel(rate=0.35), y3, rng=rng, annotators=5)
    crowd = WeakClassifier("crowd_label", **FAST).fit(rows, answers)
    assert crowd.supervision_.transitions.shape == (5, 2, 2) and crowd.score(rows, y3) > 0.9


def test_heads_of_sigmoids() -> None:
    several = np.stack([Y != 0, Y != 1, X[:, 0] > 5.8], 1).astype(int)
    clf = WeakClassifier(head="sigmoid", **FAST).fit(X, several)
    assert clf.predict(X).shape == several.shape and (clf.predict(X) == several).mean() > 0.85
    positive = (Y == 2).astype(int)
    binary = WeakClassifier(head="sigmoid", **FAST).fit(X, np.where(positive, "yes", "no"))
    assert binary.n_outputs_ == 1 and binary.predict_proba(X).shape == (150, 2)
    assert binary.decision_function(X).shape == (150,) and binary.score(X, np.where(positive, "yes", "no")) > 0.85
    present = weaken("multi_instance", positive, IDS)
    bags = WeakClassifier("multi_instance", head="sigmoid", **FAST).fit(X, present, IDS)
    assert bags.posterior(X, present, IDS).shape == (150, 2) and bags.predict_weak(X, IDS).shape == (50,)


def test_sets_and_combinations() -> None:
    positive = (Y == 0).astype(int)
    rng = np.random.default_rng(0)
    which = np.where(rng.random(150) < np.where(positive, 0.8, 0.2), 1, 0)
    priors = tuple(float(positive[which == i].mean()) for i in (0, 1))
    clf = WeakClassifier(UnlabeledUnlabeled(priors), **FAST).fit(X, which)
    assert clf.score(X, positive) > 0.9 and clf.posterior(X, which).shape == (150, 2)
    both = LabelProportion() & PartialLabel()
    sets = weaken("partial_label", Y, rng=0, ratio=0.5)
    joint = WeakClassifier(both, **FAST).fit(X, (COUNTS, sets), bags=IDS)
    assert joint.score(X, Y) > 0.9
    counts, labels = joint.predict_weak(X, bags=IDS)
    assert counts.shape == COUNTS.shape and labels.shape == (150,)


def test_missing_labels_and_labels_of_minus_one() -> None:
    some = np.where(np.arange(150) % 3 == 0, Y, -1)
    assert WeakClassifier(**FAST).fit(X, some).classes_.tolist() == [0, 1, 2]
    text = np.where(some < 0, "", np.array(["a", "b", "c"])[Y])
    assert WeakClassifier(epochs=1, random_state=0).fit(X, text).classes_.tolist() == ["a", "b", "c"]
    signs = np.where(Y == 0, -1, 1)
    clf = WeakClassifier(**FAST).fit(X, signs)
    assert clf.classes_.tolist() == [-1, 1] and clf.score(X, signs) > 0.95


NAMES = np.array([f"bag_{i}" for i in IDS])
MALFORMED: list[tuple[type[Exception], str, Any, tuple[Any, ...], dict[str, Any]]] = [
    (WeakLabelError, "bag_10", "label_proportion", (X, COUNTS, NAMES), {}),
    (WeakLabelError, "differ within a bag", "label_proportion", (X, np.arange(150), NAMES), {}),
    (WeakLabelError, "no weak label", "label_proportion", (X, {"bag_0": COUNTS[0]}, NAMES), {}),
    (ImpossibleError, "bag 'bag_7'", "label_proportion",
     (X, {f"bag_{i}": row + (i == 7) for i, row in enumerate(COUNTS)}, NAMES), {}),
    (InputError, "150 instances", "label_proportion", (X, COUNTS, IDS[:-1]), {}),
    (InputError, "sequence of bags", "label_proportion", (list(Bags.from_ids(X, IDS)), COUNTS, IDS), {}),
    (InputError, "y is None", "label_proportion", (X, None, IDS), {}),
    (WeakLabelError, "inconsistent number", "semi_supervised", (X, Y[:-1]), {}),
    (WeakLabelError, "mixed types", "semi_supervised", (X, np.array([1, "a"] * 75, dtype=object)), {}),
    (WeakLabelError, "no instance has a label", "semi_supervised", (X, np.full(150, -1)), {}),
    (WeakLabelError, "one of", WeakClassifier(classes=[0, 1]), (X, Y), {}),
    (InputError, "classes", WeakClassifier("label_proportion", n_classes=4), (X, COUNTS, IDS), {}),
    (WeakLabelError, "tuple of 2", LabelProportion() & PartialLabel(), (X, COUNTS, IDS), {}),
    (SupervisionError, "one of", "no_such_kind", (X, Y), {}),
    (SupervisionError, "needs options", "unlabeled_unlabeled", (X, Y), {}),
    (SupervisionError, "sum over", SimilarDissimilarUnlabeled(0.4), (X, Y), {}),
    (InputError, "head", WeakClassifier(head="tanh"), (X, Y), {}),  # type: ignore[arg-type]
    (InputError, "device", WeakClassifier(device="tpu9"), (X, Y), {}),
    (InputError, "backbone", WeakClassifier(backbone="vgg"), (X, Y), {}),
    (InputError, "epochs", WeakClassifier(epochs=0), (X, Y), {}),
    (InputError, "learning_rate", WeakClassifier(learning_rate=-1.0), (X, Y), {}),
    (InputError, "leaves none", WeakClassifier(held_out=0.999), (X, Y), {}),
    (InputError, "bag_weight", "label_proportion", (X, COUNTS, IDS), {"bag_weight": -np.ones(50)}),
    (ValueError, "zero", "semi_supervised", (X, Y), {"sample_weight": np.zeros(150)}),
    (ValueError, "sample_weight", "semi_supervised", (X, Y), {"sample_weight": np.ones(149)}),
    (ValueError, "NaN", "semi_supervised", (np.where(X > 7, np.nan, X), Y), {}),
    (ValueError, "could not convert", "semi_supervised", (np.array([["a"]] * 150), Y), {}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "match", "kind", "given", "options"), MALFORMED, ids=lambda v: str(v)[:30])
def test_malformed_inputs(error: type[Exception], match: str, kind: Any, given: Any, options: Any) -> None:
    clf = kind if isinstance(kind, WeakClassifier) else WeakClassifier(kind, epochs=1)
    with pytest.raises(error, match=match) as caught:
        clf.fit(*given, **options)
    if isinstance(caught.value, FastbusError):
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # a rule of numbers by chance
def test_malformed_predictions(proportions: WeakClassifier) -> None:
    with pytest.raises(ValueError, match="expecting 4 features"):
        proportions.predict(X[:, :2])
    with pytest.raises(InputError, match="shape"):
        proportions.predict(X[:, :, None])
    pairs = WeakClassifier(PairComparison(), epochs=1, random_state=0)
    pairs.fit(X, weaken("pair_comparison", (Y == 0).astype(int), np.arange(150) // 2, rng=0), np.arange(150) // 2)
    with pytest.raises(InputError, match="expected 2 instances"):
        pairs.predict_weak(X, bags=IDS)
