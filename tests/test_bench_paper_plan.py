"""Plans of the paper's experiments: many choices of runs in one call, in their order and each once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastbus.cli import main

ROOT = Path(__file__).resolve().parent.parent
PLAN = """
# the first ones first
--settings partial_label --set epochs=1
--settings pair_comparison --seeds 2 --set epochs=1  # twice
--settings partial_label pair_comparison --set epochs=1
"""


def plan(folder: Path, text: str) -> Path:
    path = folder / "plan.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_is_run_in_its_order_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["bench", "paper", "--tiny", "--out", str(tmp_path), "--checkpoints", str(tmp_path / "unfinished")]
    flags += ["--plan", str(plan(tmp_path, PLAN)), "--json"]
    expected = [("partial_label", 0), ("pair_comparison", 0), ("pair_comparison", 1)]
    for _ in range(2):  # the second time all is there already
        assert main(flags) == 0
        records = json.loads(capsys.readouterr().out)
        assert [(record["setting"], record["seed"]) for record in records] == expected
        assert all(record["config"]["epochs"] == 1 for record in records)
    assert len((tmp_path / "paper-tiny.jsonl").read_text(encoding="utf-8").splitlines()) == 3
    assert main([*flags, "--list"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(entry["setting"], entry["seed"]) for entry in listed] == expected
    for entry, record in zip(listed, records, strict=True):
        assert entry["done"] and entry["fingerprint"] == record["fingerprint"]
        assert entry["recipe"].items() <= record["config"].items()
        assert 0.5 < entry["views"] / record["views"] < 1.5  # bags do not fill every batch


def test_the_list_says_what_is_changed_and_how_much_there_is_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "--settings semi_supervised --set epochs=3 pretrain=2\n--settings partial_label --set epochs=2\n"
    assert main(["bench", "paper", "--list", "--plan", str(plan(tmp_path, lines)), "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "[epochs=3, pretrain=2]" in shown and "cifar100" not in shown
    # two runs of 100,000 views a pass, an eighth and more of labelled ones in every step; what they share before; and
    # two of 40,000 views a pass
    views = 2 * 3 * 0.1 * 128 / 112 + 2 * 0.1 + 2 * 2 * 0.04
    assert f"4 of 4 runs are still to be done, {views:.0f} million views in all" in shown


def test_a_reader_that_has_seen_enough_is_no_mistake(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fastbus.cli", "bench", "paper", "--list", "--json", "--out", str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "[\n"
        process.stdout.close()  # as head does
        assert process.stderr.read() == "" and process.wait(timeout=60) == 0


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "plans").glob("*.txt")), ids=lambda path: path.name)
def test_the_plans_of_the_reported_runs_are_well_formed(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["bench", "paper", "--plan", str(path), "--json", "--out", str(tmp_path)]
    assert main([*flags, "--list"]) == 0
    said = capsys.readouterr()
    tuned = path.name.endswith("methods.txt")
    assert ("wait for trials" in said.err) is tuned  # there are none in this folder
    if tuned:
        assert main(flags) == 2 and "trials at 0 learning rates" in capsys.readouterr().err
    listed = json.loads(said.out)
    expected = {"cifar10", "cifar10n"} if path.name.startswith("cifar10") else {"mnist", "fashion_mnist"}
    settings = 4 if path.name == "small-networks.txt" else 10  # those that small networks' recipes differ on
    assert {entry["data"] for entry in listed} <= expected and len({entry["setting"] for entry in listed}) == settings


@pytest.mark.parametrize(
    ("text", "more", "told"),
    [
        ("--settings magic", [], "magic"),
        ("\n--sets partial_label", [], "line 2: unrecognized arguments"),
        ("--seeds 0", [], "line 1"),
        ("--settings 'partial_label", [], "line 1"),
        ("--workers 3", [], "line 1"),
        ("# nothing", [], "no line with flags"),
        (
            "--settings partial_label\n--settings partial_label --set colour=1",
            [],
            "line 2: an entry of the recipe='colour'",
        ),
        ("--settings partial_label", ["--methods", "all"], "--plan with --methods"),
        ("--settings partial_label", ["--held-out", "0.1"], "--plan with --held-out"),
    ],
)
def test_malformed_plans(
    text: str, more: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plan(tmp_path, text)
    assert main(["bench", "paper", "--plan", str(path), "--out", str(tmp_path), *more]) == 2
    complaint = capsys.readouterr().err.strip()
    assert len(complaint.splitlines()) == 1 and told in complaint
    assert list(tmp_path.iterdir()) == [path]
