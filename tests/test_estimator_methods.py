"""Competing methods by name: in the estimator, on tables and images, and on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

from fastbus import NoisyLabel, PositiveUnlabeled, WeakClassifier, weaken
from fastbus.cli import main
from fastbus.errors import InputError

X, Y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
WINE, CULTIVAR = load_wine(return_X_y=True)


def positive_unlabeled() -> tuple[np.ndarray, float]:
    known = (Y == 1) & (np.random.default_rng(0).random(len(Y)) < 0.3)
    return np.where(known, 1, -1), float(Y[~known].mean())


def test_a_table_is_learned_by_a_rival_as_well(tmp_path: Path) -> None:
    weak, prior = positive_unlabeled()
    clf = WeakClassifier(PositiveUnlabeled(prior=prior), method="nnpu", epochs=30, random_state=0).fit(X, weak)
    assert clf.score(X, Y) > 0.85
    clf.save(tmp_path)
    again = WeakClassifier.load(tmp_path)
    assert again.method == "nnpu" and again.recipe_ == clf.recipe_
    assert np.array_equal(again.predict_proba(X[:9]), clf.predict_proba(X[:9]))


def test_two_networks_learn_a_table() -> None:
    rows = StandardScaler().fit_transform(WINE)
    rng = np.random.default_rng(0)
    said = np.where(rng.random(len(CULTIVAR)) < 0.2, (CULTIVAR + rng.integers(1, 3, len(CULTIVAR))) % 3, CULTIVAR)
    clf = WeakClassifier(NoisyLabel(rate=0.2), method="dividemix", epochs=12, random_state=0).fit(rows, said)
    assert clf.score(rows, CULTIVAR) > 0.9


def test_what_a_rival_does_without_is_estimated_to_read_its_predictions_and_nothing_else() -> None:
    rows = StandardScaler().fit_transform(WINE)
    said = weaken(NoisyLabel(rate=0.2), CULTIVAR, rng=0)
    common: dict[str, Any] = {"method": "elr", "epochs": 4, "random_state": 0}
    alone, told = (WeakClassifier(rule, **common).fit(rows, said) for rule in (NoisyLabel(), NoisyLabel(rate=0.2)))
    assert np.array_equal(alone.predict_proba(rows), told.predict_proba(rows))  # its training knows nothing of it
    assert isinstance(alone.supervision_, NoisyLabel) and alone.supervision_.transition is not None
    assert 0.5 < alone.supervision_.transition.diagonal().mean() < 1
    assert (alone.posterior(rows, said).argmax(1) == CULTIVAR).mean() > 0.8
    weak, prior = positive_unlabeled()
    clf = WeakClassifier("positive_unlabeled", method="nnpu", method_options={"prior": prior}, epochs=4, random_state=0)
    assert isinstance(clf.fit(X, weak).supervision_, PositiveUnlabeled) and clf.supervision_.prior == prior
    assert clf.posterior(X, weak)[weak == 1, 1].min() == 1


def test_dropout_of_a_rival_repeats_itself_and_leaves_the_callers_numbers_alone() -> None:
    """The network of a table has dropout, which draws from torch's global numbers."""
    weak, prior = positive_unlabeled()
    found = []
    for mine in (1, 2):
        torch.manual_seed(mine)
        clf = WeakClassifier(PositiveUnlabeled(prior=prior), method="nnpu", epochs=2, dropout=0.3, random_state=0)
        found.append(clf.fit(X, weak).predict_proba(X))
        drawn = torch.rand(3)
        torch.manual_seed(mine)
        assert torch.equal(drawn, torch.rand(3))
    assert np.array_equal(*found)


def test_images_are_too() -> None:
    data = load_digits(n_class=5)
    images = (data.images[:, None] * 15).astype(np.uint8)
    rng = np.random.default_rng(0)
    candidates = rng.random((len(images), 5)) < 0.3
    candidates[np.arange(len(images)), data.target] = True
    entries = {"rows": 64, "warmup": 5, "learning_rate": 0.1}
    clf = WeakClassifier("partial_label", method="proden", recipe=entries, epochs=8, random_state=0)
    assert clf.fit(images, candidates.astype(int)).score(images, data.target) > 0.85


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"method": "nonsense"}, "expected one of"),
        ({"method": 3}, "expected a name"),
        ({"method": "nnpu"}, "nnpu on partial_label"),
        ({"method": "cc", "recipe": False}, "recipe"),
        ({"method": "cc", "method_options": {"temperature": 2}}, "temperature"),
        ({"method": "cc", "method_options": 3}, "mapping"),
        ({"method": "cc", "evolution": "mlp"}, "evolution"),
        ({"method_options": {"prior": 0.3}}, "without method="),
    ],
)
def test_what_does_not_fit_is_said(options: dict[str, Any], complaint: str) -> None:
    candidates = np.eye(3, dtype=int)[CULTIVAR]
    with pytest.raises(InputError, match=complaint):
        WeakClassifier("partial_label", epochs=1, **options).fit(WINE, candidates)


def test_the_command_line_takes_a_method(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "wine.csv"
    names = [f"f{i}" for i in range(13)]
    rng = np.random.default_rng(0)
    lines = [",".join([*names, "weak"])]
    for row, label in zip(WINE, CULTIVAR, strict=True):
        noisy = label if rng.random() > 0.1 else (label + 1) % 3
        lines.append(",".join([*(f"{value:g}" for value in row), str(noisy)]))
    table.write_text("\n".join(lines) + "\n")
    flags = ["fit", str(table), "--supervision", "noisy_label", "--option", "rate=0.1", "--epochs", "10", "--quiet"]
    assert main([*flags, "--method", "forward", "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "model.json").read_text())["options"]["method"] == "forward"
    for method, facts in (("elr", []), ("forward", ["--method-option", "noise_rate=0.1"])):  # no rate in the rule
        out = tmp_path / method
        assert main([*flags[:4], *flags[6:], "--method", method, *facts, "--out", str(out)]) == 0
        assert (out / "report.html").is_file()
    capsys.readouterr()
    assert main([*flags, "--method", "upu", "--out", str(tmp_path / "other")]) == 2
    assert "upu on noisy_label" in capsys.readouterr().err


def test_the_command_line_tells_a_method_its_facts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(X))[:80].reshape(40, 2)
    order = Y[rows[:, 0]] >= Y[rows[:, 1]]
    frame = pd.DataFrame(X[rows.flatten(), :4], columns=list("abcd"))
    frame["bag"] = np.repeat(np.arange(40), 2)
    frame.to_csv(tmp_path / "pairs.csv", index=False)
    pd.DataFrame({"bag": np.arange(40), "weak": order.astype(int)}).to_csv(tmp_path / "bags.csv", index=False)
    told = {}
    for prior in (0.4, 0.7):
        run = tmp_path / f"run{prior}"
        flags = ["fit", str(tmp_path / "pairs.csv"), "--bags", str(tmp_path / "bags.csv"), "--epochs", "1", "--quiet"]
        flags += ["--supervision", "pair_comparison", "--method", "pc_abs", "--method-option", f"prior={prior}"]
        assert main([*flags, "--out", str(run)]) == 0
        assert json.loads((run / "model.json").read_text())["options"]["method_options"] == {"prior": prior}
        told[prior] = WeakClassifier.load(run).predict_proba(X[:50, :4])
    assert np.abs(told[0.4] - told[0.7]).max() > 1e-3  # the fact has reached the risk
