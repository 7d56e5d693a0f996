"""fit, predict, infer and check on real tables: what they write, and that it is right."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import fastbus
from command_tables import digest, digit_arrays, digit_pictures, iris_files
from fastbus import cli
from fastbus.learner import WeakClassifier

Capture = pytest.CaptureFixture[str]
PROPORTION = ["--supervision", "label_proportion"]
FILES = {"config.yaml", "data.json", "environment.json", "metrics.jsonl", "summary.json", "model.json"}
FILES |= {"checkpoint.safetensors", "model.safetensors"}


def answer(capture: Capture, *words: object) -> dict[str, Any]:
    """The JSON object that a command prints, which must be all it prints."""
    code = cli.main([*map(str, words), "--json"])
    out, err = capture.readouterr()
    assert code == 0, err
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with iris tables and a finished run of 40 epochs."""
    folder = tmp_path_factory.mktemp("trained")
    instances, bags = iris_files(folder)
    words = ["fit", instances, "--bags", bags, *PROPORTION, "--epochs", "40", "--out", folder / "run"]
    assert cli.main([*map(str, words)]) == 0
    return folder


def test_fit_writes_a_run_folder(trained: Path) -> None:
    run = trained / "run"
    assert {path.name for path in run.iterdir()} >= FILES
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["instances"] == "../iris.csv" and config["bags"] == "../bags.csv" and config["epochs"] == 40
    texts = [(run / name).read_text() for name in FILES if not name.endswith(".safetensors")]
    assert not any(str(trained) in text for text in texts), "no absolute paths"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 40
    assert json.loads((run / "environment.json").read_text())["packages"]["torch"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["accuracy_on_these_instances"] > 0.85 > summary["most_frequent_class"]


def test_fit_prints_a_path_that_can_be_opened(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["fit", trained / "iris.csv", "--bags", trained / "bags.csv", *PROPORTION, "--epochs", 1]
    assert cli.main([*map(str, words), "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(line.split(maxsplit=1)[1] for line in lines if line.startswith("report "))
    assert Path(place) == tmp_path / "run" / "report.html" and Path(place).is_file()


def test_the_run_is_a_saved_classifier(trained: Path) -> None:
    classifier = WeakClassifier.load(trained / "run")
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_predict_equals_the_classifier(trained: Path, suffix: str, tmp_path: Path, capsys: Capture) -> None:
    instances, _ = iris_files(tmp_path, suffix)
    out = tmp_path / f"out{'.parquet' if suffix == '.parquet' else '.csv'}"
    summary = answer(capsys, "predict", trained / "run", instances, "--out", out, "--bags-out", tmp_path / "b.csv")
    assert summary["instances"] == 150 and summary["bags"] == 30
    frame = pd.read_parquet(out) if suffix == ".parquet" else pd.read_csv(out)
    source = pd.read_csv(trained / "iris.csv")
    classifier = WeakClassifier.load(trained / "run")
    probs = classifier.predict_proba(source.iloc[:, 1:5].to_numpy())
    assert list(frame.columns) == ["bag", "p_setosa", "p_versicolor", "p_virginica", "predicted"]
    np.testing.assert_allclose(frame.iloc[:, 1:4].to_numpy(), probs, rtol=1e-6)
    assert frame["predicted"].tolist() == classifier.predict(source.iloc[:, 1:5].to_numpy()).tolist()
    assert frame["bag"].tolist() == source["bag"].tolist()
    counts = pd.read_csv(tmp_path / "b.csv")
    assert counts["bag"].tolist() == source["bag"].unique().tolist()
    assert (counts.iloc[:, 1:].sum(axis=1) == 5).all(), "five flowers a bag"


def test_predict_takes_rows_of_a_bag_that_stand_apart(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    mixed = pd.read_csv(trained / "iris.csv").sample(frac=1, random_state=0)
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    answer(capsys, "predict", trained / "run", tmp_path / "mixed.csv", "--out", tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv")["bag"].tolist() == mixed["bag"].tolist()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_infer_equals_the_library(trained: Path, suffix: str, tmp_path: Path, capsys: Capture) -> None:
    _, bags = iris_files(tmp_path, suffix)
    predicted, out = tmp_path / f"predictions{suffix}", tmp_path / f"posteriors{suffix}"
    answer(capsys, "predict", trained / "run", trained / "iris.csv", "--out", predicted)
    words = ["infer", predicted, "--bags", bags, *PROPORTION, "--chunk-bags", 7, "--out", out]
    summary = answer(capsys, *words, "--bags-out", tmp_path / "likelihood.csv")
    assert summary["bags"] == summary["exact_bags"] == 30 and summary["peak_memory_mib"] > 50
    read = pd.read_csv if suffix == ".csv" else pd.read_parquet
    probs, counts, found = read(predicted), read(bags), read(out)
    post = fastbus.infer(
        "label_proportion",
        np.asarray(probs[["p_setosa", "p_versicolor", "p_virginica"]]),
        counts.iloc[:, 1:].to_numpy(),
        bag_sizes=[5] * 30,
        inputs="probs",
    )
    np.testing.assert_allclose(found.iloc[:, 1:4].to_numpy(), post.labels.numpy(), atol=1e-9)
    likelihood = pd.read_csv(tmp_path / "likelihood.csv")
    np.testing.assert_allclose(likelihood["log_likelihood"], post.log_likelihood.numpy(), rtol=1e-9)
    assert found["predicted"].iloc[0] in ("setosa", "versicolor", "virginica")


def test_infer_reads_logits_of_named_columns(tmp_path: Path, capsys: Capture) -> None:
    frame = pd.DataFrame({"cat": [0.0, 2.0], "dog": [1.0, 0.0], "weak_cat": [1, 0], "weak_dog": [1, 1]})
    frame.to_csv(tmp_path / "scores.csv", index=False)
    words = ["infer", tmp_path / "scores.csv", "--supervision", "partial_label", "--out", tmp_path / "q.csv"]
    summary = answer(capsys, *words, "--columns", "cat,dog", "--inputs", "logits")
    assert summary["bags"] == 2
    found = pd.read_csv(tmp_path / "q.csv")
    assert found["predicted"].tolist() == ["dog", "dog"]
    assert found["posterior_dog"].iloc[0] == pytest.approx(1 / (1 + np.exp(-1)))


def test_infer_takes_sets_and_binary_sigmoid_heads(tmp_path: Path, capsys: Capture) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"p_yes": rng.random(1500), "weak": np.where(np.arange(1500) % 9 == 0, 1.0, np.nan)})
    frame.to_csv(tmp_path / "scores.csv", index=False)
    words = ["infer", tmp_path / "scores.csv", "--supervision", "positive_unlabeled", "--option", "prior=0.4"]
    summary = answer(capsys, *words, "--head", "sigmoid", "--out", tmp_path / "q.csv")
    assert summary["bags"] == 2 and summary["instances"] == 1500, "draws of at most 1,024 rows"
    found = pd.read_csv(tmp_path / "q.csv")
    assert (found["posterior_yes"][frame["weak"] == 1] == 1).all()


def test_a_config_merges_with_flags(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    settings: dict[str, Any] = {"instances": os.path.relpath(trained / "iris.csv", tmp_path), "epochs": 9}
    settings |= {"bags": os.path.relpath(trained / "bags.csv", tmp_path), "supervision": "label_proportion"}
    settings |= {"learning-rate": 0.01, "calibrate": True, "option": {"unit": "count"}}
    settings |= {"views": {"jitter": 0.1}, "train-option": {"optimizer": "sgd", "precision": 32, "clip": 2}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    summary = answer(capsys, "fit", "--epochs", 2, "--config", tmp_path / "run.yaml", "--out", tmp_path / "run")
    assert summary["epochs"] == 2, "the flag wins, wherever it stands"
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert kept["learning_rate"] == 0.01 and kept["calibrate"] is True and kept["option"] == {"unit": "count"}
    saved = WeakClassifier.load(tmp_path / "run")
    assert saved.views == {"jitter": 0.1}
    assert saved.train_options == {"optimizer": "sgd", "precision": "32", "clip": 2}
    again = answer(capsys, "fit", "--config", tmp_path / "run" / "config.yaml", "--out", tmp_path / "again")
    assert again["loss"] == summary["loss"], "the config of a run repeats it"
    assert digest(tmp_path / "run") == digest(tmp_path / "again")
    for name in ("metrics.jsonl", "summary.json", "model.json", "data.json"):  # no clock is in any of them
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
    first, second = (json.loads((tmp_path / run / "report.json").read_text()) for run in ("run", "again"))
    assert first["run"].pop("seconds") > 0 and second["run"].pop("seconds") > 0
    assert first | {"title": ""} == second | {"title": ""}


def test_flags_of_training_reach_the_classifier(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["fit", trained / "iris.csv", "--bags", trained / "bags.csv", *PROPORTION, "--epochs", 1]
    words += ["--views", "on", "--train-option", "schedule=constant", "--train-option", "clip=1e-3"]
    answer(capsys, *words, "--ema", 0.9, "--train-option", "teacher=average", "--out", tmp_path / "run")
    saved = WeakClassifier.load(tmp_path / "run")
    assert saved.views is True and saved.ema == 0.9
    assert saved.train_options == {"schedule": "constant", "clip": 0.001, "teacher": "average"}


def test_what_a_fit_ignored_need_not_be_there_to_predict(tmp_path: Path, capsys: Capture) -> None:
    instances, bags = iris_files(tmp_path)
    flags = ["--bags", bags, *PROPORTION, "--epochs", 1, "--ignore", "petal_length", "--out", tmp_path / "run"]
    answer(capsys, "fit", instances, *flags)
    frame = pd.read_csv(instances).drop(columns=["petal_length", "label"])
    frame.to_csv(tmp_path / "new.csv", index=False)
    words = ["predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv"]
    assert answer(capsys, *words, "--bags-out", tmp_path / "b.csv")["bags"] == 30


def test_fit_resume_and_predict_a_folder_of_pictures(tmp_path: Path, capsys: Capture) -> None:
    folder = digit_pictures(tmp_path / "photos")
    words = ["fit", folder, "--supervision", "label_proportion", "--epochs", 12, "--views", "{pad: 1, cutout: 0}"]
    summary = answer(capsys, *words, "--backbone", "small_cnn", "--out", tmp_path / "run")
    assert summary["instances"] == 360 and summary["bags"] == 90
    assert summary["accuracy_on_these_instances"] > 0.8 > summary["most_frequent_class"]
    answer(capsys, "predict", tmp_path / "run", folder, "--out", tmp_path / "p.csv", "--bags-out", tmp_path / "b.csv")
    predicted = pd.read_csv(tmp_path / "p.csv")["predicted"]
    right = (predicted == pd.read_csv(folder / "instances.csv")["label"]).mean()
    assert right == pytest.approx(summary["accuracy_on_these_instances"])
    larger = ["--image-size", "32,32", "--backbone", "lenet5"]
    words = ["fit", folder, "--supervision", "label_proportion", "--epochs", 1, *larger, "--out", tmp_path / "lenet"]
    answer(capsys, *words)
    (tmp_path / "lenet" / "summary.json").unlink()
    before = digest(tmp_path / "lenet")
    answer(capsys, "resume", tmp_path / "lenet")
    assert digest(tmp_path / "lenet") == before
    summary = answer(capsys, "predict", tmp_path / "lenet", folder, "--out", tmp_path / "p2.csv")
    assert summary["instances"] == 360, "scaled as fitted"


def test_pictures_are_trained_by_a_recipe_if_asked_for(tmp_path: Path, capsys: Capture) -> None:
    folder = digit_pictures(tmp_path / "photos")
    words = ["fit", folder, "--supervision", "label_proportion", "--recipe", "{epochs: 20, warmup: 5, rows: 32}"]
    summary = answer(capsys, *words, "--out", tmp_path / "run")
    assert summary["epochs"] == 20 and summary["accuracy_on_these_instances"] > 0.8
    saved = WeakClassifier.load(tmp_path / "run")
    assert saved.recipe == {"epochs": 20, "warmup": 5, "rows": 32} and saved.recipe_["rows"] == 32
    (tmp_path / "run" / "summary.json").unlink()
    before = digest(tmp_path / "run")
    answer(capsys, "resume", tmp_path / "run")
    assert digest(tmp_path / "run") == before


def test_fit_replaces_a_finished_run_only_when_forced(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    words = ["fit", trained / "iris.csv", "--bags", trained / "bags.csv", *PROPORTION, "--out", tmp_path / "run"]
    assert cli.main([*map(str, words)]) == 2
    assert "finished run" in capsys.readouterr().err
    answer(capsys, *words, "--epochs", 1, "--force")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1


def test_fit_digits_from_arrays_and_a_combination(tmp_path: Path, capsys: Capture) -> None:
    source = digit_arrays(tmp_path)
    words = ["--supervision", "semi_supervised", "--epochs", 15, "--seed", 1]
    summary = answer(capsys, "fit", source, *words, "--out", tmp_path / "run")
    assert summary["accuracy_on_these_instances"] > 0.7
    answer(capsys, "predict", tmp_path / "run", source, "--out", tmp_path / "p.csv", "--bags-out", tmp_path / "b.csv")
    frame = pd.read_csv(tmp_path / "p.csv")
    assert len(frame) == 400 and "bag" not in frame.columns
    instances, bags = iris_files(tmp_path)
    table = pd.read_csv(instances)
    table["semi_supervised.weak"] = table["label"].where(np.arange(150) % 10 == 0)
    table.to_csv(instances, index=False)
    counts = pd.read_csv(bags)
    counts.rename(columns=lambda name: f"label_proportion.{name}" if name != "bag" else name).to_csv(bags, index=False)
    both = ["--bags", bags, "--supervision", "label_proportion & semi_supervised"]
    both += ["--option", "label_proportion.unit=count"]
    summary = answer(capsys, "fit", instances, *both, "--epochs", 2, "--out", tmp_path / "both")
    assert summary["classes"] == ["setosa", "versicolor", "virginica"]
    assert answer(capsys, "check", instances, *both)["missing_weak_labels"]["semi_supervised"] == 0.9


def test_flags_are_options_of_the_classifier() -> None:
    from fastbus.commands.fit import LEARNER

    assert set(LEARNER) <= set(WeakClassifier().get_params())


def test_check_summarises(trained: Path, capsys: Capture) -> None:
    words = ["check", trained / "iris.csv", "--bags", trained / "bags.csv", *PROPORTION]
    summary = answer(capsys, *words)
    assert summary["bags"] == 30 and summary["features"] == 4 and summary["impossible_bags"] == []
    assert summary["feature_names"] == ["sepal_length", "sepal_width", "petal_length", "petal_width"]
    fewer = answer(capsys, *words, "--ignore", "petal_length,petal_width")
    assert fewer["feature_names"] == ["sepal_length", "sepal_width"]
    assert summary["bag_sizes"] == {"least": 5, "median": 5.0, "most": 5}
    assert summary["balance_of_true_labels"]["setosa"] == pytest.approx(1 / 3)
    assert cli.main([*map(str, words)]) == 0
    assert "impossible bags" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["noisy_label", "crowd_label", "noisy_label & noisy_label"])
def test_check_takes_noise_that_fit_would_estimate(kind: str, tmp_path: Path, capsys: Capture) -> None:
    first, second = ["a", "b", "b", "c"], ["a", "a", "b", ""]
    columns = {"weak_ann": first, "weak_bob": second} if kind == "crowd_label" else {"weak": first}
    if "&" in kind:
        columns = {"noisy_label.weak": first, "noisy_label_2.weak": second}
    pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], **columns}).to_csv(tmp_path / "rows.csv", index=False)
    summary = answer(capsys, "check", tmp_path / "rows.csv", "--supervision", kind)
    assert summary["classes"] == ["a", "b", "c"] and summary["impossible_bags"] == []


def test_check_names_impossible_bags_and_fails(tmp_path: Path, capsys: Capture) -> None:
    instances, bags = iris_files(tmp_path)
    counts = pd.read_csv(bags)
    counts.loc[[3, 17], "weak_setosa"] = 6
    counts.to_csv(bags, index=False)
    assert cli.main(["check", str(instances), "--bags", str(bags), *PROPORTION]) == 2
    out, err = capsys.readouterr()
    assert "2, namely b3, b17" in out
    assert err.count("\n") == 1 and "2 of 30 bags" in err and "bag 'b3', 'b17'" in err and str(bags) in err
    fit = ["fit", str(instances), "--bags", str(bags), *PROPORTION, "--out", str(tmp_path / "run"), "--epochs", "1"]
    assert cli.main(fit) == 2
    err = capsys.readouterr().err
    assert "bag 'b3'" in err
    infer = ["infer", "--supervision", "label_proportion", "--bags", str(bags), "--out", str(tmp_path / "q.csv")]
    frame = pd.read_csv(instances).assign(**{f"p_{name}": 1 / 3 for name in ("setosa", "versicolor", "virginica")})
    frame.to_csv(tmp_path / "p.csv", index=False)
    assert cli.main([*infer, str(tmp_path / "p.csv")]) == 2
    assert "bag 'b3'" in capsys.readouterr().err and not (tmp_path / "q.csv").exists()
    summary = answer(capsys, *infer, tmp_path / "p.csv", "--on-impossible", "ignore")
    assert summary["ignored_bags"] == 2
