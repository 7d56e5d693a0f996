"""The tables of real data: a small run end to end, results that are kept, and flags that are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fastbus.bags import Bags
from fastbus.bench.results import append_record
from fastbus.bench.tables import mil
from fastbus.bench.tables.entries import Entry, Progress, Source, find_source
from fastbus.bench.tables.mil_ensemble import candidate_odds, combined, fold_numbers, undecided
from fastbus.bench.tables.mil_network import ManyNetworks
from fastbus.bench.tables.mil_rules import ShareOfPositives
from fastbus.bench.tables.records import as_record, newest, read_records
from fastbus.bench.tables.render import as_markdown
from fastbus.cli import main
from fastbus.errors import DataError, SupervisionError
from fastbus.testing import check_supervision

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the folder shared/data with the real bag data is absent")
ABOUT = {"device": "cpu", "versions": {"torch": "2"}, "commit": "abc"}
ENTRY = Entry("musk1", "bag accuracy", "majority", "trivial", 0.5, 0.01, 2, 1.5, {"C": 1.0})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same path with less work in it."""
    monkeypatch.setattr(mil, "FOLDS", 2)
    monkeypatch.setattr(mil, "SETTINGS", mil.SETTINGS | {"copies": 2, "rules": [[0.5, 0.0]]})
    monkeypatch.setattr(mil, "SINGLE", mil.SINGLE | {"epochs": 2})
    monkeypatch.setattr(mil, "installed", lambda package: None)


@needs_shared
@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # two epochs
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
    assert "## musk1" in (tmp_path / "tables.md").read_text()


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
        (["bench"], "no <name>; expected one of tables"),
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


@pytest.mark.parametrize("softness", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 1.0])
def test_the_rule_keeps_the_contract(threshold: float, softness: float) -> None:
    check_supervision(ShareOfPositives(threshold, softness))


def test_the_rule_counts() -> None:
    yes = torch.tensor([1])
    assert ShareOfPositives(0.3).evidence(torch.arange(11), yes).tolist() == [False] * 3 + [True] * 8  # 3 of 10
    soft = ShareOfPositives(0.5, 0.25).evidence(torch.arange(3), yes)  # 0, 1 and 2 of 2
    np.testing.assert_allclose(soft, [1 / (1 + np.exp(2)), 0.5, 1 / (1 + np.exp(-2))], rtol=1e-12)
    hardly_soft = ShareOfPositives(0.05, 1e-4).evidence(torch.arange(5), yes)
    np.testing.assert_allclose(hardly_soft, [0, 1, 1, 1, 1], atol=1e-12)  # one positive is enough


@pytest.mark.parametrize("given", [{"threshold": 1.5}, {"threshold": 0.5, "softness": -1.0}], ids=str)
def test_rules_refused(given: dict[str, float]) -> None:
    with pytest.raises(SupervisionError, match=list(given)[-1]):
        ShareOfPositives(**given)


def test_networks_of_one_module_do_not_share_parameters() -> None:
    networks = ManyNetworks(4, copies=3, hidden=5, dropout=0.0, start=0.2, seed=0)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    assert networks(x).shape == (7, 6)
    networks(x)[:, 1].sum().backward()
    first, linear = networks.first.weight.grad, networks.linear.weight.grad
    assert first is not None and linear is not None
    assert first[5:10].abs().sum() > 0 and first[:5].abs().sum() == 0 and first[10:].abs().sum() == 0
    assert linear.abs().sum() == 0
    np.testing.assert_allclose(networks(x)[:, 3:].sigmoid().detach(), 0.2, rtol=1e-6)  # linear maps begin there


def test_bags_begin_undecided() -> None:
    assert 1 - (1 - undecided(ShareOfPositives(0.0), 7)) ** 7 == pytest.approx(0.5)
    assert undecided(ShareOfPositives(0.5, 0.2), 7) == 0.5


@needs_shared
def test_a_network_learns_nothing_from_the_bags_of_its_fold() -> None:
    arrays = Source(SHARED).load("mil_musk1")
    bags = Bags.from_ids(arrays["x"].astype(np.float64), arrays["bag"])
    labels = arrays["bag_label"].astype(np.int64)[bags.ids]
    fold = fold_numbers(labels, 2, seed=0)
    assert abs(int((fold == 0).sum()) - 46) <= 1 and set(fold.tolist()) == {0, 1}
    settings = mil.SETTINGS | {"copies": 2, "rules": [[0.5, 0.2]], "epochs": 3}
    test = bags.subset(np.arange(5))
    known, unseen = candidate_odds(bags, labels, fold, test, 0, **settings)
    assert known.shape == (92, 2) and unseen.shape == (5, 2)
    flipped, _ = candidate_odds(bags, np.where(fold == 0, 1 - labels, labels), fold, test, 0, **settings)
    np.testing.assert_allclose(flipped[fold == 0], known[fold == 0], atol=1e-5)
    assert np.abs(flipped[fold == 1] - known[fold == 1]).max() > 0.01


def test_a_candidate_that_errs_by_a_constant_is_put_right() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    useful = 2.0 * labels - 1 + rng.normal(size=200) / 4 - 3  # the sign alone would always say no
    known = np.stack([useful, rng.normal(size=200)], 1)
    assert (combined(known[:100], labels[:100], known[100:], [1.0, 10.0], 0) == labels[100:]).mean() > 0.97
