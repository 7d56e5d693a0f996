"""fastbus show: pictures of chains and of what they make of a bag, from files and from a trained run."""

import json
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import fastbus
from command_tables import digit_pictures, iris_files
from fastbus import cli
from fastbus.supervision import REGISTRY
from test_cli_kinds import supervision_words
from weak_tables import CASES, NAMES, as_csv

pytest.importorskip("matplotlib")

Capture = pytest.CaptureFixture[str]
PROPORTION = ["--supervision", "label_proportion"]
OPTIONS = {
    "noisy_label": ["--option", "rate=0.2"],
    "crowd_label": ["--option", "rate=0.2"],
    "positive_unlabeled": ["--option", "prior=0.4"],
    "unlabeled_unlabeled": ["--option", "priors=[0.3, 0.7]"],
    "similar_dissimilar_unlabeled": ["--option", "prior=0.4"],
}


def show(capture: Capture, *words: object) -> dict[str, Any]:
    """The JSON object that the command prints, which must be all it prints."""
    code = cli.main(["show", *map(str, words), "--json"])
    out, err = capture.readouterr()
    assert code == 0 and err == "", err
    found: dict[str, Any] = json.loads(out)
    return found


def texts(path: Path) -> list[str]:
    """The texts of an SVG file, which must be well-formed."""
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]


def size_of_png(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Iris in bags of five, and what a classifier of the sepals' widths predicts of each flower."""
    folder = tmp_path_factory.mktemp("tables")
    instances, _ = iris_files(folder)
    X, y = load_iris(return_X_y=True)
    frame = pd.read_csv(instances)
    probs = LogisticRegression().fit(X[:, 1:2], y).predict_proba(frame[["sepal_width"]].to_numpy())
    predictions = pd.DataFrame({f"p_{name}": probs[:, at] for at, name in enumerate(NAMES)})
    predictions.insert(0, "bag", frame["bag"])
    predictions.to_csv(folder / "predictions.csv", index=False)
    return folder


# -- chains ----------------------------------------------------------------------------------------


def test_a_chain_of_counts(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "new" / "chain.svg"
    summary = show(capsys, "label_proportion", "--bag-size", 4, "--out", out)
    assert summary == {
        "out": str(out), "supervision": "label_proportion", "bag_size": 4, "states": [1, 2, 3, 4, 5], "note": "",
    }  # fmt: skip
    found = texts(out)
    assert "label_proportion: a bag of 4" in found
    assert sorted(text for text in found if text.startswith("w = ")) == [f"w = {count}" for count in range(5)]
    assert found.count("1") == 10 + 4, "ten moves with label 1, four states of count 1"
    assert [path.name for path in out.parent.iterdir()] == ["chain.svg"], "nothing temporary stays"


@pytest.mark.parametrize("kind", sorted(REGISTRY))
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_every_kind_has_a_chain(kind: str, suffix: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / f"chain{suffix}"
    summary = show(capsys, kind, *OPTIONS.get(kind, []), "--n-classes", 3, "--out", out)
    wanted = {"positive_confidence": 1} | dict.fromkeys(
        ("pair_comparison", "pair_similarity", "similarity_confidence", "confidence_difference"), 2
    )
    wanted["similar_dissimilar_unlabeled"] = 2
    assert summary["supervision"] == kind and summary["bag_size"] == wanted.get(kind, 4)
    assert len(summary["states"]) == summary["bag_size"] + 1
    if suffix == ".svg":
        assert any(text.startswith(kind) for text in texts(out))
    else:
        width, height = size_of_png(out)
        assert width > 400 and height > 100


def test_weak_labels_mark_the_last_states(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "chain.svg"
    show(capsys, "multi_instance", "--bag-size", 6, "--weak", 1, "--out", out)
    found = texts(out)
    assert found.count("allowed") == found.count("ruled out") == 1 and found.count("yes") == 6
    show(capsys, "label_proportion", "--option", "kind=interval", "--weak", "[1, 2]", "--out", out)
    assert texts(out).count("allowed") == 2
    show(capsys, "similarity_confidence", "--weak", 0.3, "--classes", "a,b,c", "--out", out)
    assert "0.3" in texts(out) and "0.7" in texts(out)
    show(capsys, "label_proportion", "--option", "noise={0: 0.8, 1: 0.2}", "--weak", 2, "--out", out)
    assert texts(out).count("0.8") == 1 and texts(out).count("0.2") == 1


def test_large_chains_say_what_is_left_out(tmp_path: Path, capsys: Capture) -> None:
    summary = show(capsys, "label_proportion", "--bag-size", 300, "--weak", 150, "--out", tmp_path / "long.svg")
    assert "labels 5 to 296 of 300 are left out" in summary["note"]
    assert texts(tmp_path / "long.svg").count("allowed") == 1
    show(capsys, "pair_similarity", "--n-classes", 10, "--out", tmp_path / "ten.svg")
    assert "not 9" in texts(tmp_path / "ten.svg")


# -- beliefs ---------------------------------------------------------------------------------------


def test_beliefs_about_a_bag_of_predictions(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    words = [tables / "predictions.csv", "--bags", tables / "bags.csv", *PROPORTION, "--bag", "b7"]
    summary = show(capsys, *words, "--out", tmp_path / "bag.svg")
    frame = pd.read_csv(tables / "predictions.csv")
    counts = pd.read_csv(tables / "bags.csv").set_index("bag").loc["b7"].to_numpy()
    probs = frame[frame["bag"] == "b7"].iloc[:, 1:].to_numpy()
    posterior = fastbus.infer("label_proportion", probs[None], counts[None], inputs="probs")
    assert summary["bag"] == "b7" and summary["bag_size"] == 5
    assert summary["log_likelihood"] == pytest.approx(float(posterior.log_likelihood[0]), abs=1e-9)
    found = texts(tmp_path / "bag.svg")
    assert {"0 setosa", "1 versicolor", "2 virginica", "000", "".join(map(str, counts))} <= set(found)
    assert any(text.startswith("label_proportion, bag b7: log P") for text in found)
    show(capsys, *words, "--out", tmp_path / "bag.png")
    width, height = size_of_png(tmp_path / "bag.png")
    assert width > 700 and height > 400


def test_the_first_bag_is_drawn_where_none_is_named(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    words = [tables / "predictions.csv", "--bags", tables / "bags.csv", *PROPORTION]
    assert show(capsys, *words, "--out", tmp_path / "bag.svg")["bag"] == "b0"


def test_a_trained_run(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    data = [tables / "iris.csv", "--bags", tables / "bags.csv"]
    assert cli.main(["fit", *map(str, data), *PROPORTION, "--epochs", "3", "--out", str(run)]) == 0
    assert cli.main(["predict", str(run), str(data[0]), "--out", str(tmp_path / "p.csv")]) == 0
    capsys.readouterr()
    mine = show(capsys, "--run", run, *data, "--bag", "b11", "--out", tmp_path / "run.svg")
    rest = ["--bags", data[2], *PROPORTION, "--bag", "b11", "--out", tmp_path / "predictions.svg"]
    theirs = show(capsys, tmp_path / "p.csv", *rest)
    assert mine["log_likelihood"] == pytest.approx(theirs["log_likelihood"], abs=1e-5)
    assert texts(tmp_path / "run.svg") == texts(tmp_path / "predictions.svg")


@pytest.mark.parametrize("case", [name for name in CASES if "similar_dissimilar" not in name])
def test_beliefs_of_every_kind(case: str, tmp_path: Path, capsys: Capture) -> None:
    supervision, instances, bags, _, head, classes = CASES[case]
    table = {name: column for name, column in instances.items() if name != "x"}
    # classes are named by cells, by columns, or not at all; a and b are bags
    given = [name for name in table if name != "bag"] + list(bags or {})
    named = [name.removeprefix("weak_") for name in given if name.startswith("weak_")]
    shown = {name.removesuffix("_low").removesuffix("_high") for name in named}
    text = {value for name in given for value in (table | (bags or {}))[name] if isinstance(value, str) and value}
    pool = [sorted(text - {"a", "b"}), sorted(shown), [str(at) for at in range(classes)]]
    names = next(found for found in pool if len(found) == classes)
    generator = np.random.default_rng(0)
    rows = len(instances["x"])
    table |= {f"logit_{name}": generator.normal(size=rows) for name in names}
    words: list[object] = [as_csv(table, tmp_path / "p.csv"), *supervision_words(supervision), "--head", head]
    if bags is not None:
        order = list(dict.fromkeys(table["bag"]))
        pd.DataFrame(bags).set_index("bag").loc[order].reset_index().to_csv(tmp_path / "bags.csv", index=False)
        words += ["--bags", tmp_path / "bags.csv"]
    summary = show(capsys, *words, "--out", tmp_path / "bag.svg")
    assert np.isfinite(summary["log_likelihood"])
    assert any("with the weak label" in text for text in texts(tmp_path / "bag.svg"))


def test_classes_with_chains_of_their_own(tmp_path: Path, capsys: Capture) -> None:
    table = {"bag": [1, 1, 2], "logit_cat & dog": [0.5, -1, 2], "logit_<cow>": [1, 0, -1]}
    bags = {"bag": [1, 2], "weak_cat & dog": [1, 0], "weak_<cow>": [1, 1]}
    words: list[object] = [as_csv(table, tmp_path / "p.csv"), "--bags", as_csv(bags, tmp_path / "b.csv")]
    words += ["--supervision", "multi_instance", "--head", "sigmoid", "--of-class", "<cow>"]
    show(capsys, *words, "--out", tmp_path / "bag.svg")
    assert "P(<cow>) predicted" in texts(tmp_path / "bag.svg")


def test_sets_are_drawn_as_one_bag(tmp_path: Path, capsys: Capture) -> None:
    table = {"logit_no": np.zeros(40), "logit_yes": np.linspace(-2, 2, 40), "weak": [1.0] * 4 + [np.nan] * 36}
    path = as_csv(table, tmp_path / "p.csv")
    words = ["--supervision", "positive_unlabeled", "--option", "prior=0.4", "--out", tmp_path / "set.svg"]
    summary = show(capsys, path, *words)
    assert summary["bag"] is None and summary["bag_size"] == 40


def test_a_config_and_a_process_of_its_own(tables: Path, tmp_path: Path) -> None:
    (tmp_path / "show.yaml").write_text(
        f"predictions: {tables / 'predictions.csv'}\nbags: {tables / 'bags.csv'}\nsupervision: label_proportion\n"
        "option: {kind: exact}\nout: bag.svg\nbag: b1\n"
    )
    words = [sys.executable, "-m", "fastbus.cli", "show", "--config", str(tmp_path / "show.yaml"), "--bag", "b2"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "bag             b2" in done.stdout and done.stderr == ""
    assert any("bag b2" in text for text in texts(tmp_path / "bag.svg"))


# -- refused ---------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "nothing to draw"),
    "no out": (["label_proportion", "--out="], "ends in .svg or .png"),
    "pdf": (["label_proportion", "--out", "chain.pdf"], "ends in .svg or .png"),
    "folder": (["label_proportion", "--out", "{here}/folder.svg"], "is a folder"),
    "unknown kind": (["label_proportions"], "expected one of"),
    "combination alone": (["label_proportion & semi_supervised"], "Draw its parts one by one"),
    "option missing": (["unlabeled_unlabeled"], "priors"),
    "option wrong": (["label_proportion", "--option", "kind=fuzzy"], "kind"),
    "option malformed": (["label_proportion", "--option", "kind"], "key=value"),
    "bag of none": (["label_proportion", "--bag-size", "0"], "--bag-size 0"),
    "bag of a word": (["label_proportion", "--bag-size", "four"], "--bag-size"),
    "pair of three": (["pair_similarity", "--bag-size", "3"], "expected 2"),
    "bag too long": (["label_proportion", "--bag-size", "100000"], "Draw a smaller bag"),
    "one class": (["pair_similarity", "--n-classes", "1"], "at least 2"),
    "classes twice": (["pair_similarity", "--n-classes", "3", "--classes", "a,b"], "expected as many"),
    "weak beyond": (["label_proportion", "--bag-size", "3", "--weak", "4"], "count 4"),
    "weak word": (["label_proportion", "--weak", "many"], "--weak 'many'"),
    "weak yes": (["multi_instance", "--weak", "true"], "--weak 'true'"),
    "weak ragged": (["label_proportion", "--weak", "[[1], [2, 3]]"], "weak label"),
    "weak of instances": (["noisy_label", "--option", "rate=0.1", "--weak", "1"], "each instance has its own"),
    "bag of a chain": (["label_proportion", "--bag", "b1"], "--bag without a table"),
    "head of a chain": (["label_proportion", "--head", "sigmoid"], "--head without a table"),
    "unknown flag": (["label_proportion", "--colour", "red"], "--colour"),
    "no supervision": (["{tables}/predictions.csv"], "without --supervision"),
    "table gone": (["{tables}/gone.csv", *PROPORTION], "is not there"),
    "bag table gone": (["{tables}/predictions.csv", *PROPORTION, "--bags", "gone.csv"], "is not there"),
    "no such bag": (["{tables}/predictions.csv", *PROPORTION, "--bags", "{tables}/bags.csv", "--bag", "x"], "'x'"),
    "weak of a table": (["{tables}/predictions.csv", *PROPORTION, "--weak", "1"], "--weak with a table"),
    "no predictions": (["{tables}/iris.csv", *PROPORTION, "--bags", "{tables}/bags.csv"], "expected predictions"),
    "head": (["{tables}/predictions.csv", *PROPORTION, "--bags", "{tables}/bags.csv", "--head", "tanh"], "--head"),
    "class of all": (
        ["{tables}/predictions.csv", *PROPORTION, "--bags", "{tables}/bags.csv", "--of-class", "setosa"],
        "--of-class",
    ),
    "sum of terms": (
        ["{tables}/predictions.csv", "--supervision", "similar_dissimilar_unlabeled", "--option", "prior=0.4"],
        "differently grouped",
    ),
    "run and supervision": (["{tables}/iris.csv", *PROPORTION, "--run", "run"], "--run and --supervision"),
    "no run": (["{tables}/iris.csv", "--run", "{tables}"], "config.yaml"),
    "run without a table": (["--run", "run"], "--run without a table"),
    "config gone": (["--config", "gone.yaml"], "gone.yaml"),
}


@pytest.mark.parametrize(("words", "text"), REFUSED.values(), ids=REFUSED)
def test_misuse_is_told_in_one_line(words: list[str], text: str, tables: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "folder.svg").mkdir()
    given = [word.replace("{here}", str(tmp_path)).replace("{tables}", str(tables)) for word in words]
    if not any(word.startswith("--out") for word in given):
        given += ["--out", str(tmp_path / "new" / "chain.svg")]
    code = cli.main(["show", *given])
    out, err = capsys.readouterr()
    assert code == 2 and out == "", (code, out)
    assert err.startswith("fastbus: ") and err.count("\n") == 1 and len(err) < 900, err
    assert text in err, err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"], "nothing is left behind"


def test_an_impossible_bag_is_named(tables: Path, tmp_path: Path, capsys: Capture) -> None:
    counts = pd.read_csv(tables / "bags.csv")
    counts.loc[counts["bag"] == "b3", "weak_setosa"] = 9
    counts.to_csv(tmp_path / "bags.csv", index=False)
    words = [str(tables / "predictions.csv"), "--bags", str(tmp_path / "bags.csv"), *PROPORTION, "--bag", "b3"]
    assert cli.main(["show", *words, "--out", str(tmp_path / "bag.svg")]) == 2
    err = capsys.readouterr().err
    assert "predictions.csv" in err and "'b3'" in err and err.count("\n") == 1
    assert not (tmp_path / "bag.svg").exists()


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    hidden = tmp_path / "matplotlib"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ImportError('no matplotlib here')\n")
    script = "import sys; from fastbus.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", script, "show", "label_proportion", "--out", str(tmp_path / "chain.svg")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "fastbus[report]" in done.stderr
    assert not (tmp_path / "chain.svg").exists()


def test_an_old_picture_survives_a_failure(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "chain.svg"
    show(capsys, "label_proportion", "--out", out)
    before = out.read_bytes()
    assert cli.main(["show", "label_proportion", "--weak", "77", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert "--weak 77: label_proportion: count 77" in told and "on_impossible" not in told
    assert out.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == ["chain.svg"]


def test_a_picture_of_the_instances_is_not_drawn_over(tmp_path: Path, capsys: Capture) -> None:
    folder = digit_pictures(tmp_path / "photos", rows=40)
    words = ["fit", str(folder), *PROPORTION, "--epochs", "1", "--out", str(tmp_path / "run")]
    assert cli.main(words) == 0
    before = (folder / "3.png").read_bytes()
    for table in (folder, folder / "instances.csv"):
        flags = ["--bags", str(folder / "bags.csv"), "--run", str(tmp_path / "run"), "--out", str(folder / "3.png")]
        capsys.readouterr()
        assert cli.main(["show", str(table), *flags]) == 2
        assert "which this command reads; expected another file" in capsys.readouterr().err
        assert (folder / "3.png").read_bytes() == before
