"""How the estimator trains: early stopping on weak labels, devices, and the options of TrainConfig."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fastbus import WeakClassifier, weaken
from fastbus.errors import InputError

torch.set_num_threads(1)
X, Y = load_digits(return_X_y=True)
X, Y = X[:300], Y[:300]
IDS = np.arange(300) // 5
COUNTS = weaken("label_proportion", Y, IDS)
STOP: dict[str, Any] = {"epochs": 60, "patience": 3, "held_out": 0.3, "random_state": 0, "learning_rate": 0.02}


def held_out_loss(clf: WeakClassifier) -> float:
    """Mean -log P(w | x) of the bags that the fit kept apart, chosen with the fit's own seed."""
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    kept = order[: round(0.3 * 60)].sort().values.tolist()
    rows = [X[bag == IDS] for bag in kept]
    return -clf.weak_log_likelihood(rows, COUNTS[kept])


def test_early_stopping_ends_and_goes_back_to_the_best_epoch() -> None:
    clf = WeakClassifier("label_proportion", train_options={"schedule": "constant"}, **STOP).fit(X, COUNTS, bags=IDS)
    losses = [row["held_out"] for row in clf.history_]
    best = int(np.argmin(losses))
    assert clf.n_iter_ == len(losses) == best + 1 + 3 < 60
    # the weights are those of the best epoch, not of the last
    assert losses[-1] > losses[best] + 1e-3
    assert held_out_loss(clf) == pytest.approx(losses[best], rel=1e-4)


def test_early_stopping_never_sees_a_true_label() -> None:
    """Bags whose labels are permuted within give the same weak labels, hence the same fit to the last bit."""
    shuffled = Y.reshape(-1, 5)[:, ::-1].reshape(-1)
    assert (shuffled != Y).mean() > 0.5
    counts = weaken("label_proportion", shuffled, IDS)
    fits = [WeakClassifier("label_proportion", **STOP).fit(X, weak, bags=IDS) for weak in (COUNTS, counts)]
    assert fits[0].history_ == fits[1].history_
    assert np.array_equal(fits[0].predict_proba(X), fits[1].predict_proba(X))


def test_patience_alone_keeps_a_fifth_of_the_bags() -> None:
    clf = WeakClassifier("label_proportion", epochs=2, patience=1, random_state=0).fit(X, COUNTS, bags=IDS)
    assert "held_out" in clf.history_[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so that asking for one is right")
def test_a_missing_gpu_is_one_clear_error() -> None:
    with pytest.raises(InputError, match='device="cuda" without one') as caught:
        WeakClassifier(device="cuda").fit(X, Y)
    assert "\n" not in str(caught.value) and 'device="cpu"' in str(caught.value)


def test_auto_takes_the_best_device_there_is() -> None:
    given: dict[str, Any] = {"epochs": 2, "random_state": 0}
    cpu = WeakClassifier(device="cpu", **given).fit(X, Y).predict_proba(X)
    auto = WeakClassifier(device="auto", **given).fit(X, Y).predict_proba(X)
    # a GPU draws other units to drop
    assert np.abs(cpu - auto).max() < 0.1 if torch.cuda.is_available() else np.array_equal(cpu, auto)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: needs one to train on it")
def test_a_gpu_learns_what_the_cpu_does() -> None:
    clf = WeakClassifier("label_proportion", device="cuda", epochs=20, random_state=0).fit(X, COUNTS, bags=IDS)
    assert clf.score(X, Y) > 0.8
    assert next(clf.network_.parameters()).device.type == "cpu"
    images = X.reshape(-1, 1, 8, 8)
    labelled = WeakClassifier(device="cuda", epochs=40, random_state=0).fit(images, Y)
    assert labelled.score(images, Y) > 0.8


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd", "momentum": 0.5},
        {"schedule": "linear", "warmup": 5},
        {"precision": "bf16"},
        {"clip": 0.01},
        {"accumulate": 3},
    ],
    ids=str,
)
def test_further_options_reach_the_trainer(options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"epochs": 3, "random_state": 0, "learning_rate": 0.01}
    plain = WeakClassifier(**given).fit(X, Y).predict_proba(X)
    other = WeakClassifier(train_options=options, **given).fit(X, Y)
    assert not np.array_equal(plain, other.predict_proba(X)) and other.score(X, Y) > 0.3


def test_an_averaged_teacher_is_saved_with_its_options(tmp_path: Any) -> None:
    clf = WeakClassifier(ema=0.9, train_options={"teacher": "average"}, epochs=2, random_state=0).fit(X, Y)
    clf.save(tmp_path)
    again = WeakClassifier.load(tmp_path)
    assert again.train_options == {"teacher": "average"}
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"optimiser": "sgd"}, "an entry of train_options"),
        ({"epochs": 3}, "Pass epochs= instead"),
        ({"max_bags": 3}, "Pass batch_bags= instead"),
        ({"optimizer": "adam"}, "optimizer"),
        ({"teacher": "average"}, "ema > 0"),
        (["sgd"], "a mapping"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        WeakClassifier(train_options=options, epochs=1).fit(X, Y)
    assert "\n" not in str(caught.value)
