"""Rows that WeakClassifier refuses: not finite, named by row and column, or images in a layout it would misread."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits, load_iris

from fastbus import Bags, WeakClassifier
from fastbus.errors import InputError, WeakLabelError
from malformed import FORM

torch.set_num_threads(1)

X, Y = load_iris(return_X_y=True)
DIGITS = load_digits()
IMAGES, LABELS = DIGITS.images[:40], DIGITS.target[:40]
NAN, INF = float("nan"), float("inf")


def classifier(**options: Any) -> WeakClassifier:
    return WeakClassifier(**{"epochs": 1, "random_state": 0} | options)


def broken(rows: Any, *entries: tuple[tuple[int, ...], float]) -> Any:
    rows = rows.copy()
    for place, value in entries:
        rows[place] = value
    return rows


def refused(call: Any, *texts: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert FORM.fullmatch(message), message
    for text in texts:
        assert text in message, message


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        (broken(X, ((3, 2), NAN)), ("NaN", "row 3, column 2. ")),
        (broken(X, ((7, 0), INF), ((9, 1), NAN), ((9, 2), NAN)), ("infinity", "row 7, column 0 (and 1 more rows)")),
        (broken(X.astype(np.float32), ((149, 3), -INF)), ("infinity", "row 149, column 3")),
        (pd.DataFrame(broken(X, ((3, 2), NAN)), columns=["a", "b", "height", "d"]), ("row 3, column 'height'",)),
        (torch.tensor(broken(X, ((3, 2), NAN))), ("row 3, column 2",)),
    ],
    ids=["nan", "several", "float32", "frame", "tensor"],
)
def test_rows_that_are_not_finite_are_named_in_fit_and_predict(rows: Any, texts: tuple[str, ...]) -> None:
    refused(lambda: classifier().fit(rows, Y), "X contains ", *texts)
    frame = isinstance(rows, pd.DataFrame)
    clf = classifier().fit(rows.fillna(0) if frame else X, Y)
    for method in (clf.predict, clf.predict_proba, clf.decision_function):
        refused(lambda method=method: method(rows), "X contains ", *texts)
    refused(lambda: clf.score(rows, Y), *texts)
    refused(lambda: clf.posterior(rows, Y), *texts)


def test_rows_are_named_as_the_caller_has_them() -> None:
    ids = np.arange(150) % 50
    rows = broken(X, ((60, 1), NAN))
    counts = np.ones((50, 3), dtype=int)
    proportions = classifier(supervision="label_proportion")
    refused(lambda: proportions.fit(rows, counts, bags=ids), "row 60, column 1")
    named = Bags.from_lists([X[:3], rows[60:63]], ids=["left", "right"])
    refused(
        lambda: proportions.fit(named, {"left": [1, 1, 1], "right": [1, 1, 1]}), "bag 'right', row 0 of it, column 1"
    )
    refused(lambda: proportions.fit([X[:3], rows[58:61]], [[1, 1, 1], [1, 1, 1]]), "bag 1, row 2 of it, column 1")


def test_images_that_are_not_finite_are_refused() -> None:
    images = broken(IMAGES[:, None], ((5, 0, 7, 1), NAN))
    refused(lambda: classifier().fit(images, LABELS), "NaN", "row 5, entry (0, 7, 1)")
    clf = classifier().fit(IMAGES[:, None], LABELS)
    refused(lambda: clf.predict(images), "NaN", "row 5, entry (0, 7, 1)")


def test_large_numbers_are_finite() -> None:
    classifier().fit(np.abs(X) * 1e307, Y)


@pytest.mark.parametrize(
    ("images", "texts"),
    [
        (np.zeros((40, 16, 16, 3), dtype=np.uint8), ("(16, 16, 3)", "channels last", "X.transpose(0, 3, 1, 2)")),
        (IMAGES[..., None], ("(8, 8, 1)", "channels last", "X.transpose(0, 3, 1, 2)")),
        (np.zeros((40, 28, 28), dtype=np.uint8), ("(28, 28)", "grey images", "X[:, None]")),
        (np.zeros((40, 20, 30), dtype=np.uint8), ("(20, 30)", "grey images", "X[:, None]")),
        (IMAGES, ("(8, 8)", "grey images", "X[:, None]")),
    ],
    ids=["colour bytes", "grey floats last", "grey bytes", "oblong bytes", "grey floats"],
)
def test_images_in_another_layout_are_refused(images: Any, texts: tuple[str, ...]) -> None:
    refused(lambda: classifier().fit(images, LABELS), *texts, "(channels, height, width)")
    flat = classifier(backbone="mlp").fit(images, LABELS)  # asked for by name
    assert flat.predict(images).shape == LABELS.shape


def test_blocks_of_features_are_taken() -> None:
    rng = np.random.default_rng(0)
    for shape in ((40, 3, 5), (40, 12, 6), (40, 2, 3, 4)):
        classifier().fit(rng.standard_normal(shape), LABELS)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    assert classifier(backbone=network).fit(IMAGES, LABELS).input_shape_ == (8, 8)


def test_new_images_in_another_layout_are_refused_with_the_cure() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (40, 3, 8, 8), dtype=np.uint8)
    clf = classifier().fit(images, LABELS)
    refused(
        lambda: clf.predict(images.transpose(0, 2, 3, 1)),
        "(8, 8, 3)",
        "(3, 8, 8), as fitted",
        "X.transpose(0, 3, 1, 2)",
    )


def test_a_class_that_is_unknown_is_named_as_the_caller_wrote_it() -> None:
    with pytest.raises(WeakLabelError, match=r"class 2; expected one of \[0, 1\]\. Correct it"):
        classifier(classes=[0, 1]).fit(X, Y)


def test_labels_of_a_single_class_are_told_how_to_name_others() -> None:
    refused(lambda: classifier().fit(X, np.zeros(150, dtype=int)), "1 classes", "label rows of others", "classes=")
