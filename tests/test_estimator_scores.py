"""Scores and inputs that mean the same in every fold: missing labels, bags told in part, numbers of numpy, pixels."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

import fastbus
from fastbus import WeakClassifier
from fastbus.cli import main
from fastbus.errors import InputError

torch.set_num_threads(1)
X, Y = load_wine(return_X_y=True)
ORDER = np.random.default_rng(0).permutation(len(X))
X, Y = X[ORDER], Y[ORDER]
ONE: dict[str, Any] = {"epochs": 1, "random_state": 0}


@pytest.fixture(scope="module")
def wines() -> WeakClassifier:
    return WeakClassifier("semi_supervised", epochs=10, random_state=0).fit(X, Y)


def test_rows_without_a_class_are_left_out_of_an_accuracy(wines: WeakClassifier) -> None:
    some = Y.copy()
    some[[5, 100]] = -1
    known = some >= 0
    assert wines.score(X, some) == (wines.predict(X) == Y)[known].mean()
    weight = np.arange(len(Y), dtype=float)
    right = (wines.predict(X) == Y)[known]
    assert wines.score(X, some, sample_weight=weight) == pytest.approx(np.average(right, weights=weight[known]))
    as_floats = np.where(known, some, np.nan)
    assert wines.score(X, as_floats) == wines.score(X, some)
    with pytest.raises(InputError, match="without a single class"):
        wines.score(X[:2], [-1, -1])
    # in two folds of four a label is missing: all four are accuracies
    scores = cross_val_score(WeakClassifier("semi_supervised", epochs=10, random_state=0), X, some, cv=KFold(4))
    assert scores.min() > 0.8


def test_positives_among_unlabelled_rows_are_scored_as_weak_labels() -> None:
    rule = fastbus.PositiveUnlabeled(0.3)
    weak = np.where(np.arange(len(Y)) % 3 == 0, np.where(Y == 0, 1, -1), -1)
    clf = WeakClassifier(rule, **ONE).fit(X, weak)
    assert clf.score(X, weak) == clf.weak_log_likelihood(X, weak) < 0 <= clf.score(X, (Y == 0).astype(int))


def test_a_bag_is_right_in_all_that_it_says_or_not_at_all() -> None:
    ids = np.arange(len(Y)) // 6
    counts = fastbus.weaken("label_proportion", Y, ids)
    clf = WeakClassifier("label_proportion", epochs=2, random_state=0).fit(X, counts, bags=ids)
    bags, told = fastbus.bag_sequence(X, counts, ids)
    right = (np.asarray(clf.predict_weak(bags)) == told).all(1)
    assert 0 < right.mean() < 1  # or the lines below tell nothing
    assert fastbus.weak_accuracy(clf, bags, told) == right.mean()
    silent = told.copy()
    silent[::2] = -1
    assert fastbus.weak_accuracy(clf, bags, silent) == right[1::2].mean()
    assert np.isnan(fastbus.weak_accuracy(clf, bags, np.full_like(told, -1)))


def test_numbers_of_numpy_are_numbers() -> None:
    grid = {"epochs": np.arange(1, 3)}
    search = GridSearchCV(WeakClassifier("semi_supervised", random_state=0), grid, cv=2, error_score="raise")
    assert search.fit(X, Y).best_params_["epochs"] in (1, 2)
    logits, counts = torch.zeros(1, 3, 2), torch.tensor([[1, 2]])
    for rank in (3, np.int64(3)):
        post = fastbus.infer("label_proportion", logits, counts, coupling="independent", rank=rank)
        assert post.labels.shape == (1, 3, 2)


def test_a_likelihood_weighs_something_or_nothing() -> None:
    with pytest.raises(InputError, match="likelihood=-1; expected a weight from 0"):
        WeakClassifier("semi_supervised", likelihood=-1, **ONE).fit(X, Y)


def test_missing_names_of_pandas_are_missing() -> None:
    names = pd.Series(np.array(["a", "b", "c"])[Y], dtype="string")
    names[::3] = pd.NA
    clf = WeakClassifier("semi_supervised", **ONE).fit(X, names)
    assert clf.classes_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("fitted_on", ["bytes", "fractions"])
def test_images_of_another_range_are_refused(fitted_on: str) -> None:
    digits = load_digits()
    images = (digits.images[:100, None] * 15).astype(np.uint8)
    ranges = {"bytes": images, "fractions": images / 255.0}
    other = next(name for name in ranges if name != fitted_on)
    clf = WeakClassifier("semi_supervised", **ONE).fit(ranges[fitted_on], digits.target[:100])
    assert clf.predict(ranges[fitted_on]).shape == (100,) and clf.predict(ranges[fitted_on][:1] * 0).shape == (1,)
    with pytest.raises(InputError, match="Multiply them by 255" if fitted_on == "bytes" else "Divide them by 255"):
        clf.predict(ranges[other])
    if fitted_on == "bytes":
        assert np.array_equal(clf.predict(images.astype(float)), clf.predict(images))


def test_a_run_by_a_method_that_knows_no_rate_is_finished_without_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    table.write_text("height,width,weak\n1.0,2.0,cat\n1.5,2.5,dog\n3,.5,\n2,2,cat\n", encoding="utf-8")
    flags = ["fit", str(table), "--supervision", "noisy_label", "--method", "elr", "--epochs", "2"]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 0
    assert "--option rate=0.2" in capsys.readouterr().out
    assert (tmp_path / "run" / "summary.json").is_file() and not (tmp_path / "run" / "report.html").exists()
    assert main([*flags, "--option", "rate=0.2", "--out", str(tmp_path / "told")]) == 0
    assert (tmp_path / "told" / "report.html").is_file()
