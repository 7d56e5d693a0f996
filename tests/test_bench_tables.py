"""The tables of real data: a small run end to end, results that are kept, and flags that are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastbus.bench.tables import mil
from fastbus.bench.tables.entries import Entry, Progress, Source, find_source
from fastbus.bench.tables.mil_rules import AtLeastShare
from fastbus.bench.tables.records import append_record, as_record, newest, read_records
from fastbus.bench.tables.render import as_markdown
from fastbus.cli import main
from fastbus.ensemble import WeakEnsemble, mixture_weights
from fastbus.errors import DataError, InputError, SupervisionError
from fastbus.learner import WeakClassifier
from fastbus.testing import check_supervision

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the folder shared/data with the real bag data is absent")
ABOUT = {"device": "cpu", "versions": {"torch": "2"}, "commit": "abc"}
ENTRY = Entry("musk1", "bag accuracy", "majority", "trivial", 0.5, 0.01, 2, 1.5, {"C": 1.0})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same path with less work in it."""
    monkeypatch.setattr(mil, "FOLDS", 2)
    monkeypatch.setattr(mil, "SETTINGS", mil.SETTINGS | {"members": 1, "epochs": 10})
    monkeypatch.setattr(mil, "SINGLE", mil.SINGLE | {"epochs": 2})
    monkeypatch.setattr(mil, "installed", lambda package: None)


@needs_shared
@pytest.mark.usefixtures("quick")
def test_a_run_beats_the_majority_and_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "tables", "--only", "musk1", "--seeds", "1", "--data", str(SHARED), "--out", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    entries = {entry["method"]: entry for entry in json.loads(capsys.readouterr().out)["entries"]}
    assert entries["fastbus"]["value"] > entries["majority"]["value"] + 0.1
    assert entries["published mi-SVM"]["value"] == 0.874
    log = (tmp_path / "tables.jsonl").read_text()
    assert len(log.splitlines()) == len(entries)
    assert main(words) == 0
    assert (tmp_path / "tables.jsonl").read_text() == log
    table = capsys.readouterr().out
    assert "musk1" in table and "attention MIL 89.2" in " ".join(table.split())
    assert "| musk1 |" in (tmp_path / "tables.md").read_text()


@needs_shared
def test_majority_is_the_share_of_the_larger_class() -> None:
    arrays = Source(SHARED).load("mil_elephant")
    assert set(np.unique(arrays["bag_label"]).tolist()) == {0, 1}
    found = [entry for entry in _cheap("elephant") if entry.method == "majority"]
    assert found[0].value == 0.5  # 100 bags of each, whatever the folds


def _cheap(name: str) -> list[Entry]:
    """The entries of a set without those that train networks."""
    task = f"bag accuracy, {mil.FOLDS}-fold x 1"
    trained = {"fastbus": mil.SETTINGS, "fastbus, one network": mil.SINGLE}
    known = {Entry(name, task, method, "ours", 0, None, 1, 0, config).key(1) for method, config in trained.items()}
    found: list[Entry] = []
    for entry in mil.run(name, Source(SHARED), 1, Progress(lambda text: None, frozenset(known), 1)):
        found.append(entry)
        if entry.method == "logistic on bag mean, min, max":
            break
    return found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench"], "suite"),
        (["bench", "nonsense"], "nonsense"),
        (["bench", "tables", "--seeds", "0"], "whole number >= 1"),
        (["bench", "tables", "--seeds", "many"], "whole number >= 1"),
        (["bench", "tables", "--sedes", "2"], "sedes"),
        (["bench", "tables", "--data", "no/such/folder"], "--data DIR"),
        (["bench", "tables", "--only", "musk9", "--data", "."], "musk1"),
        (["bench", "tables", "--only", "musk1", "--data", "."], "mil_musk1.npz"),
    ],
)
def test_flags_refused(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path)] if "tables" in words else []
    assert main([*words, *out]) == 2
    complaint = capsys.readouterr().err.strip().splitlines()
    assert len(complaint) == 1
    assert said in complaint[0]


def test_help_names_the_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    assert "tables" in capsys.readouterr().out
    assert main(["bench", "tables", "--help"]) == 0
    assert "--again" in capsys.readouterr().out


def test_records_survive_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "tables.jsonl"
    record = as_record(ENTRY, 2, ABOUT)
    append_record(path, record)
    with open(path, "a") as file:
        file.write('{"data": "mu')
    assert read_records(path) == [record]
    append_record(path, record)
    assert read_records(path) == [record, record]
    path.write_text("nonsense\n" + path.read_text())
    with pytest.raises(DataError, match="line 1"):
        read_records(path)


def test_the_newest_record_is_shown() -> None:
    records = [as_record(ENTRY._replace(value=value), 2, ABOUT) for value in (0.5, 0.75)]
    assert [record["value"] for record in newest(records, ["musk1"], 2)] == [0.75]
    assert newest(records, ["musk1"], 3) == [] and newest(records, ["fox"], 2) == []
    assert "| majority | trivial | 75.0 ± 1.0 | 2 | 1.5 |" in as_markdown(newest(records, ["musk1"], 2), "x")


def test_the_source_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--data DIR"):
        find_source(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_rule_keeps_the_contract(share: float) -> None:
    check_supervision(AtLeastShare(share))


def test_the_rule_counts() -> None:
    import torch

    says_yes = AtLeastShare(0.3).evidence(torch.arange(11), torch.tensor([1]))  # 3 of 10 are enough
    assert says_yes.tolist() == [False] * 3 + [True] * 8
    with pytest.raises(SupervisionError, match="share"):
        AtLeastShare(1.5)


def test_weights_follow_the_likelihood() -> None:
    sure, unsure = np.full(50, 0.9), np.full(50, 0.5)
    weights = mixture_weights(np.stack([sure, unsure]))
    assert weights[0] > 0.95 and weights.sum() == pytest.approx(1)
    assert mixture_weights(np.stack([sure, sure])) == pytest.approx([0.5, 0.5])


@needs_shared
def test_an_ensemble_averages_its_members() -> None:
    arrays = Source(SHARED).load("mil_musk1")
    x, ids, labels = arrays["x"], arrays["bag"], arrays["bag_label"].astype(int)
    base = WeakClassifier("multi_instance", head="sigmoid", epochs=2)
    clf = WeakEnsemble(base, members=2, random_state=0).fit(x, labels, bags=ids)
    first, second = clf.estimators_[0]
    mean = (first.predict_proba(x) + second.predict_proba(x)) / 2
    assert not np.allclose(first.predict_proba(x), second.predict_proba(x))
    np.testing.assert_allclose(clf.predict_proba(x), mean, rtol=1e-12)
    # one positive instance is enough: 1 - prod(1 - p) of each member, then the mean
    any_positive = [
        [1 - np.prod(1 - member.predict_proba(x)[ids == bag, 1]) for bag in range(len(labels))]
        for member in (first, second)
    ]
    np.testing.assert_allclose(clf.weak_proba(x, ids), np.mean(any_positive, 0), rtol=1e-9)
    again = WeakEnsemble(base, members=2, random_state=0).fit(x, labels, bags=ids)
    np.testing.assert_array_equal(again.predict_proba(x), clf.predict_proba(x))


@pytest.mark.parametrize(
    "options", [{"candidates": None}, {"candidates": ["a"]}, {"members": 0}, {"held_out": 1.0}], ids=str
)
def test_ensembles_refused(options: dict[str, Any]) -> None:
    given = {"candidates": WeakClassifier("multi_instance")} | options
    with pytest.raises(InputError, match=next(iter(options))):
        WeakEnsemble(**given).fit(np.zeros((4, 2)), [0, 1], bags=[0, 0, 1, 1])
