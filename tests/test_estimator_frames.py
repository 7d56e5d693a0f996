"""A frame of weak labels with one column a class says which column is which class, in every order."""

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, cross_val_score

from fastbus import (
    BagKFold,
    CrowdLabel,
    LabelProportion,
    PartialLabel,
    WeakClassifier,
    WeakLoss,
    bag_sequence,
    infer,
    weak_accuracy,
    weaken,
)
from fastbus.errors import InputError, WeakLabelError
from malformed import FORM

torch.set_num_threads(1)

X, Y = load_wine(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER], Y[ORDER]
NAMES = np.array(["a", "b", "c"])[Y]
IDS = np.array([f"bag_{i // 4}" for i in range(len(X))])
COUNTS = pd.crosstab(IDS, NAMES)  # by bag id, in the order of text: bag_0, bag_1, bag_10, ...
MIXED = COUNTS[["c", "a", "b"]]
FAST: dict[str, Any] = {"epochs": 12, "learning_rate": 0.05, "random_state": 0}
ONE = {"epochs": 1, "random_state": 0}


def in_polars(frame: pd.DataFrame) -> pl.DataFrame:
    return pl.DataFrame({"bag": list(frame.index)} | {str(name): frame[name].tolist() for name in frame.columns})


def candidates() -> pd.DataFrame:
    return pd.DataFrame(weaken("partial_label", Y, rng=0, ratio=0.3), columns=["a", "b", "c"])


@pytest.fixture(scope="module")
def fitted() -> WeakClassifier:
    return WeakClassifier("label_proportion", classes=["a", "b", "c"], **FAST).fit(X, MIXED, bags=IDS)


def test_columns_are_put_into_the_order_of_the_classes(fitted: WeakClassifier) -> None:
    assert fitted.score(X, NAMES) > 0.95
    assert fitted.classes_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("form", ["pandas", "column bag", "polars", "prefix"])
def test_columns_are_the_classes_where_none_are_given(form: str) -> None:
    forms = {
        "pandas": MIXED,
        "column bag": MIXED.rename_axis("bag").reset_index(),
        "polars": in_polars(MIXED),
        "prefix": MIXED.add_prefix("weak_"),
    }
    clf = WeakClassifier("label_proportion", **FAST).fit(X, forms[form], bags=IDS)
    assert clf.classes_.tolist() == ["c", "a", "b"]
    assert clf.score(X, NAMES) > 0.95


def test_later_frames_agree_with_the_fitted_classes(fitted: WeakClassifier) -> None:
    plain = COUNTS.loc[list(dict.fromkeys(IDS))].to_numpy()
    keyed = dict(zip(dict.fromkeys(IDS), plain, strict=True))
    expected = fitted.posterior(X, keyed, bags=IDS)
    for frame in (COUNTS, MIXED, in_polars(MIXED)):
        assert np.array_equal(fitted.posterior(X, frame, bags=IDS), expected)
        assert fitted.score(X, frame, bags=IDS) == fitted.score(X, keyed, bags=IDS)
        assert fitted.weak_log_likelihood(X, frame, bags=IDS) == fitted.weak_log_likelihood(X, keyed, bags=IDS)
    assert fitted.predict_weak(X, bags=IDS).shape == plain.shape
    with pytest.raises(WeakLabelError, match=r"columns \['x', 'y', 'z'\].*classes \['a', 'b', 'c'\]"):
        fitted.posterior(X, COUNTS.set_axis(["x", "y", "z"], axis=1), bags=IDS)


@pytest.mark.parametrize(
    ("frame", "classes"),
    [
        (COUNTS, ["x", "y", "z"]),
        (COUNTS[["a", "b"]], ["a", "b", "c"]),
        (COUNTS.assign(d=0), ["a", "b", "c"]),
        (COUNTS[["a", "a", "b"]], ["a", "b", "c"]),
        (in_polars(COUNTS), ["x", "y", "z"]),
    ],
    ids=["other names", "one too few", "one too many", "one twice", "polars"],
)
def test_columns_that_are_not_the_classes_are_refused(frame: Any, classes: list[str]) -> None:
    with pytest.raises(WeakLabelError) as caught:
        WeakClassifier("label_proportion", classes=classes, **ONE).fit(X, frame, bags=IDS)
    message = str(caught.value)
    assert FORM.fullmatch(message), message
    assert str([name for name in frame.columns if name != "bag"]) in message and str(classes) in message


def test_columns_that_only_count_name_nothing() -> None:
    ids = np.unique(IDS, return_inverse=True)[1]
    default = pd.DataFrame(COUNTS.to_numpy())
    unnamed = pl.DataFrame(COUNTS.to_numpy()).with_columns(bag=pl.arange(len(COUNTS), eager=True))
    assert unnamed.columns[:3] == ["column_0", "column_1", "column_2"]
    for frame in (default, unnamed, default.rename(columns=str)):
        clf = WeakClassifier("label_proportion", **ONE).fit(X, frame, bags=ids)
        assert clf.classes_.tolist() == [0, 1, 2] and clf.classes_.dtype.kind == "i"
        named = WeakClassifier("label_proportion", classes=["a", "b", "c"], **ONE).fit(X, frame, bags=ids)
        assert np.array_equal(named.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_numbers_chosen_as_names_are_names(kind: str) -> None:
    counts = pd.crosstab(IDS, Y)
    mixed = counts[[2, 0, 1]]
    given = in_polars(mixed) if kind == "polars" else mixed
    # 0, 1, 2 in order, under classes in another
    back = WeakClassifier("label_proportion", classes=[2, 1, 0], **FAST).fit(X, counts, bags=IDS)
    assert back.score(X, Y) > 0.95
    clf = WeakClassifier("label_proportion", classes=[0, 1, 2], **FAST).fit(X, given, bags=IDS)
    assert clf.score(X, Y) > 0.95 and clf.classes_.tolist() == [0, 1, 2]


def test_a_number_of_classes_may_stand_beside_their_names() -> None:
    assert WeakClassifier("label_proportion", n_classes=3, **ONE).fit(X, MIXED, bags=IDS).classes_[0] == "c"
    with pytest.raises(InputError, match="as classes; expected 3, as the weak labels show"):
        WeakClassifier("label_proportion", n_classes=4, **ONE).fit(X, MIXED, bags=IDS)


def test_candidate_sets_name_their_classes() -> None:
    sets = candidates()
    clf = WeakClassifier("partial_label", **FAST).fit(X, sets[["b", "c", "a"]])
    assert clf.classes_.tolist() == ["b", "c", "a"] and clf.score(X, NAMES) > 0.95
    assert np.array_equal(clf.posterior(X, sets), clf.posterior(X, sets[["b", "c", "a"]].to_numpy()))
    assert clf.score(X, sets) == clf.score(X, sets[["b", "c", "a"]])
    told = WeakClassifier("partial_label", classes=["a", "b", "c"], **FAST)
    assert told.fit(X, pl.from_pandas(sets[["b", "c", "a"]])).score(X, NAMES) > 0.95
    bags = [X[:80], X[80:]]
    split = [sets[["b", "c", "a"]][:80], sets[["a", "c", "b"]][80:]]
    assert WeakClassifier("partial_label", **FAST).fit(bags, split).score(X, NAMES) > 0.95
    with pytest.raises(WeakLabelError, match=r"a column 'bag' among weak labels of instances; expected one"):
        told.fit(X, sets.assign(bag=0))
    excluded = pd.DataFrame(np.eye(3, dtype=int)[(Y + 1) % 3], columns=["a", "b", "c"])
    assert WeakClassifier("complementary_label", **ONE).fit(X, excluded[["c", "b", "a"]]).classes_[0] == "c"


def test_folds_and_grids_read_the_names_again() -> None:
    sets = candidates()[["c", "b", "a"]]
    grid = GridSearchCV(
        WeakClassifier("partial_label", classes=["a", "b", "c"], **FAST), {"ema": [0.0]}, cv=BagKFold(3)
    )
    plain = GridSearchCV(grid.estimator, {"ema": [0.0]}, cv=BagKFold(3)).fit(X, sets[["a", "b", "c"]].to_numpy())
    grid.fit(X, sets)
    assert grid.best_score_ == plain.best_score_ and grid.score(X, sets) == plain.best_estimator_.score(
        X, sets[["a", "b", "c"]].to_numpy()
    )


def test_sequences_of_bags_take_the_order_of_the_classes() -> None:
    bags, counts = bag_sequence(X, MIXED, IDS, classes=["a", "b", "c"])
    assert np.array_equal(counts, bag_sequence(X, COUNTS, IDS)[1])
    clf = WeakClassifier("label_proportion", classes=["a", "b", "c"], **FAST)
    assert cross_val_score(clf, bags, counts, cv=BagKFold(3), scoring=weak_accuracy).mean() > 0.8
    named = pd.DataFrame(counts, columns=["a", "b", "c"])[["b", "c", "a"]]
    clf.fit(bags, counts)
    assert weak_accuracy(clf, bags, named) == weak_accuracy(clf, bags, counts)
    with pytest.raises(WeakLabelError, match="bag_sequence: weak labels in columns"):
        bag_sequence(X, MIXED, IDS, classes=["x", "y", "z"])


def test_several_labels_an_instance() -> None:
    table = pd.DataFrame(np.eye(3, dtype=int)[Y], columns=["a", "b", "c"])
    clf = WeakClassifier(head="sigmoid", **FAST).fit(X, table[["b", "a", "c"]])
    assert clf.classes_.tolist() == ["b", "a", "c"]
    assert clf.score(X, table) == clf.score(X, table[["b", "a", "c"]].to_numpy()) > 0.9


def test_parts_of_a_combination_agree() -> None:
    sets = candidates()
    clf = WeakClassifier(LabelProportion() & PartialLabel(), **FAST).fit(X, (MIXED, sets), bags=IDS)
    assert clf.classes_.tolist() == ["c", "a", "b"] and clf.score(X, NAMES) > 0.95
    with pytest.raises(WeakLabelError, match=r"partial_label: weak labels in columns \['x', 'b', 'c'\]"):
        clf.fit(X, (MIXED, sets.rename(columns={"a": "x"})), bags=IDS)


def test_columns_that_are_no_classes_stay_in_place() -> None:
    answers = pd.DataFrame({"ann": NAMES, "bob": NAMES})
    crowd = WeakClassifier(CrowdLabel(rate=0.1), **ONE).fit(X, answers)
    assert crowd.classes_.tolist() == ["a", "b", "c"]
    bounds = pd.DataFrame({"low": COUNTS["a"], "high": COUNTS["a"]})
    shares = pd.DataFrame(np.eye(5)[COUNTS["a"]], index=COUNTS.index, columns=list("vwxyz"))
    for kind, frame in (("interval", bounds), ("soft", shares)):
        rule = LabelProportion(kind)  # type: ignore[arg-type]
        clf = WeakClassifier(rule, classes=["no", "yes"], **ONE).fit(X, frame, bags=IDS)
        assert clf.posterior(X, frame, bags=IDS).shape == (len(X), 2)


def test_named_classes_survive_a_file(tmp_path: Any, fitted: WeakClassifier) -> None:
    fitted.save(tmp_path)
    assert np.array_equal(
        WeakClassifier.load(tmp_path).posterior(X, MIXED, bags=IDS), fitted.posterior(X, COUNTS, bags=IDS)
    )


@pytest.mark.parametrize("frame", [pd.DataFrame, lambda rows: pl.DataFrame(np.asarray(rows))], ids=["pandas", "polars"])
def test_frames_are_read_as_their_arrays(frame: Any) -> None:
    logits = np.random.default_rng(0).standard_normal((6, 3))
    counts = np.array([[2, 1, 0], [0, 1, 2]])
    plain = infer("label_proportion", logits, counts, bag_sizes=[3, 3])
    for rows, weak, sizes in ((frame(logits), frame(counts), [3, 3]), (logits, frame(counts), pd.Series([3, 3]))):
        post = infer("label_proportion", rows, weak, bag_sizes=sizes)
        assert torch.allclose(post.labels, plain.labels)
        assert torch.allclose(post.log_likelihood, plain.log_likelihood)
    loss = WeakLoss("label_proportion")
    leaf = torch.tensor(logits, requires_grad=True)
    assert torch.allclose(loss(leaf, frame(counts), bag_sizes=[3, 3]), loss(leaf, counts, bag_sizes=[3, 3]))
