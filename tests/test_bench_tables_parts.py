"""The parts on partial labels, crowds, several labels and peers: tiny real runs, and their figures by hand."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

from fastbus.bench.tables import crowd, multilabel, partial, peers
from fastbus.bench.tables.entries import Entry, Progress, Source
from fastbus.bench.tables.repeats import Method, repeated

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the folder shared/data with the real sets is absent")


def quiet(seeds: int = 1) -> Progress:
    return Progress(lambda text: None, seeds=seeds)


def by_method(entries: list[Entry], task: str) -> dict[str, float]:
    return {entry.method: entry.value for entry in entries if entry.task == task}


def test_mean_and_deviation_of_the_repeats() -> None:
    method = Method("a", "ours", {"k": 1}, lambda repeat: (repeat, 10.0))
    first, second = repeated("set", ("x", "y"), method, 3, quiet())
    assert (first.value, first.spread, first.repeats) == (1.0, 1.0, 3)
    assert (second.value, second.spread) == (10.0, 0.0)
    known = Progress(lambda text: None, frozenset({first.key(1), second.key(1)}), 1)
    assert list(repeated("set", ("x", "y"), method, 3, known)) == []


def test_dawid_skene_finds_an_annotator_who_swaps() -> None:
    """Whoever always says the opposite is as informative as whoever is always right."""
    truth = np.array([0, 1] * 6)
    answers = np.stack([truth, truth, truth, 1 - truth, 1 - truth], 1)
    answers[0, :3] = [0, -1, -1]  # one right and two swapped answers: the majority is wrong here
    assert crowd.majority(answers)[0].argmax() == 1
    assert crowd.dawid_skene(answers, rounds=20)[0].argmax() == 0


def test_ties_count_by_halves_and_unknown_truths_do_not() -> None:
    shares = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    assert crowd.found_share(shares, np.array([0, 0, -1])) == pytest.approx(0.75)


@needs_shared
def test_crowd_without_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(crowd.SAMPLING, "samples", 50)
    monkeypatch.setattr(crowd, "PEERS", ("DawidSkene",))
    found = by_method(list(crowd.run("face", Source(SHARED), 1, quiet())), crowd.FOUND)
    assert found["fastbus, no sampling"] > found["majority"] > 0.6
    if crowd.has_crowd_kit():  # two writers, one algorithm
        assert found["Dawid-Skene"] == pytest.approx(found["crowd-kit DawidSkene"], abs=0.01)


@needs_shared
def test_partial_labels_beat_guesses() -> None:
    arrays = Source(SHARED).load("partial_lost")
    split = partial.split_of(arrays, 0)
    assert len(split.y_test) == len(arrays["y"]) // 10 and len(split.y) + len(split.y_test) == len(arrays["y"])
    ours = partial.fastbus_scores(split, 0, backbone="linear", epochs=10)
    assert min(ours) > 0.5
    for guess in (partial.random_candidate, partial.frequent_candidate):
        assert all(np.array(ours) > np.array(guess(split, 0)))
    for peer in (partial.nearest_neighbours(split, 0, k=10), partial.averaging_logistic(split, 0, C=1.0)):
        assert peer[0] > partial.random_candidate(split, 0)[0] and peer[1] > 0.2


def test_settings_are_chosen_by_held_out_candidates_alone() -> None:
    """Of two numbers of epochs, one learns nothing; true labels that are all wrong change nothing."""
    x, y = load_iris(return_X_y=True)
    others = np.random.default_rng(0).random((len(y), 3)) < 0.2
    candidates = np.maximum(np.eye(3)[y], others).astype(np.int64)
    split = partial.Split(x, candidates, (y + 1) % 3, x, (y + 1) % 3)
    slow, quick = ({"backbone": "linear", "epochs": 5, "learning_rate": rate} for rate in (1e-6, 3e-2))
    assert partial.chosen_settings(split, [slow, quick]) == quick
    assert partial.chosen_settings(split, [quick, slow]) == quick


@needs_shared
def test_several_labels_with_some_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(multilabel.NETWORK, "epochs", 5)
    arrays = Source(SHARED).load("multilabel_scene")
    truth = arrays["y_train"].astype(np.float64)
    weak = multilabel._hidden(truth, 0.6)(0)
    assert abs(np.isnan(weak).mean() - 0.6) < 0.02
    ours = multilabel.figures(arrays, multilabel.network_scores(arrays, weak, 0.0, 0))
    naive = multilabel.figures(arrays, multilabel.network_scores(arrays, np.nan_to_num(weak), 0.0, 0))
    guess = multilabel.figures(arrays, multilabel.class_shares(arrays, weak))
    assert ours[1] > naive[1] > guess[1]
    perfect = multilabel.figures(arrays, arrays["y_test"].astype(np.float64))
    assert perfect == (1.0, 1.0, 1.0, 1.0)


def test_digits_with_positives_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in (peers.EPOCHS, peers.PU):
        monkeypatch.setitem(settings, "epochs", 10)
    (ours,), (naive,) = peers._pu(peers._fastbus_pu)(0), peers._pu(peers._naive_pu)(0)
    assert ours > naive and ours > 0.75
