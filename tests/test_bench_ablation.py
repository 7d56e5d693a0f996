"""The ablation: every variant trains on real data, runs are kept and not repeated, and the table adds them up."""

import json
from pathlib import Path

import pytest

from fastbus.bench.ablation.cell import run_cell
from fastbus.bench.ablation.run import read_runs
from fastbus.bench.ablation.settings import SETTINGS, draw
from fastbus.bench.ablation.table import as_markdown, summarise
from fastbus.bench.ablation.variants import VARIANTS, heard
from fastbus.cli import main

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the folder shared/data with the real sets is absent")
DIGITS = [name for name, variant in VARIANTS.items() if variant.applies(SETTINGS["digits proportions"])]


@pytest.mark.parametrize("variant", DIGITS)
def test_every_variant_trains_on_digits(variant: str) -> None:
    record = run_cell("digits proportions", variant, 0, Path(), 1, "cpu")
    assert 0.1 < record["accuracy"] < 1
    assert record["seconds_per_step"] > 0 and record["peak_bytes"] > 0
    assert record["config"]["epochs"] == 1


@needs_shared
def test_the_class_loop_trains_on_bags_with_missing_labels() -> None:
    record = run_cell("scene bags", "class loop", 0, SHARED, 1, "cpu")
    assert record["metric"] == "mean average precision" and 0.15 < record["accuracy"] < 1


def test_weak_labels_depend_on_the_seed_alone() -> None:
    setting = SETTINGS["digits bags"]
    first, again, other = (draw(setting, seed, Path()).bags for seed in (0, 0, 1))
    assert first.weak.equal(again.weak) and first.instances.equal(again.instances)
    assert not first.instances[: len(other.instances)].equal(other.instances[: len(first.instances)])


def test_counts_beyond_the_rank_are_not_heard() -> None:
    weak = draw(SETTINGS["digits proportions"], 0, Path()).bags.weak
    cut = heard(VARIANTS["rank 2"], weak)
    assert ((cut == -1) == (weak >= 2)).all() and (cut[weak < 2] == weak[weak < 2]).all()


def test_a_run_is_kept_and_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["bench", "ablation", "--only", "digits bags", "--methods", "exact", "--seeds", "1", "--epochs", "1"]
    flags += ["--out", str(tmp_path), "--json"]
    assert main(flags) == 0
    (kept,) = json.loads(capsys.readouterr().out)
    assert main(flags) == 0
    assert json.loads(capsys.readouterr().out) == [kept]
    assert len(read_runs(tmp_path / "ablation.jsonl")) == 1
    assert "| digits bags | exact |" in (tmp_path / "ablation.md").read_text(encoding="utf-8")


def test_gains_are_paired_by_seed() -> None:
    common = {"cell": "digits bags", "seconds_per_step": 0.01, "peak_bytes": 2e6, "device": "cpu"}
    runs = [
        common | {"method": "exact", "seed": 0, "accuracy": 0.5},
        common | {"method": "exact", "seed": 1, "accuracy": 0.7},
        common | {"method": "learned", "seed": 1, "accuracy": 0.6},
    ]
    exact, learned = summarise(runs)
    assert exact.mean == pytest.approx(0.6) and exact.gain is None
    assert learned.gain == (pytest.approx(-0.1), 0.0) and learned.seeds == 1
    assert "-10.0 ± 0.0" in as_markdown(runs)


@pytest.mark.parametrize(
    "flag", [["--only", "moons"], ["--methods", "magic"], ["--seeds", "0"], ["--device", "abacus"]]
)
def test_malformed_flags(flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "ablation", "--out", str(tmp_path), *flag]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
