"""Every kind of weak label goes through check, fit, predict and infer from files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fastbus import cli
from fastbus.learner_files import describe_supervision
from weak_tables import CASES, as_csv

Capture = pytest.CaptureFixture[str]


def supervision_words(supervision: Any) -> list[str]:
    tree = describe_supervision(supervision)
    words = ["--supervision", tree["registry"]]
    for key, value in tree.get("options", {}).items():
        plain = value.tolist() if hasattr(value, "tolist") else value
        words += [] if plain is None else ["--option", f"{key}={json.dumps(plain)}"]
    return words


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_kind(case: Any, tmp_path: Path, capsys: Capture) -> None:
    supervision, instances, bags, _, head, classes = case
    table = dict(instances)
    words = [str(as_csv(table, tmp_path / "instances.csv")), *supervision_words(supervision), "--head", head]
    words += ["--bags", str(as_csv(bags, tmp_path / "bags.csv"))] if bags is not None else []
    number = ["--n-classes", str(classes)]
    assert cli.main(["check", *words, *number, "--json"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)["impossible_bags"] == []
    run = str(tmp_path / "run")
    assert cli.main(["fit", *words, *number, "--epochs", "1", "--out", run, "--json"]) == 0, capsys.readouterr().err
    names = json.loads(capsys.readouterr().out)["classes"]
    assert len(names) == classes
    predicted, by_bag = tmp_path / "predicted.csv", tmp_path / "by_bag.csv"
    predict = ["predict", run, words[0], "--out", str(predicted), "--bags-out", str(by_bag), "--json"]
    assert cli.main(predict) == 0, capsys.readouterr().err
    frame = pd.read_csv(predicted)
    assert {f"p_{name}" for name in names} <= set(frame.columns) and len(frame) == len(table["x"])
    # infer streams: the bag table in the order of the bags, the weak columns of rows beside the predictions
    capsys.readouterr()
    joined = frame.assign(**{name: column for name, column in table.items() if name.startswith("weak")})
    joined.to_csv(predicted, index=False)
    words[0] = str(predicted)
    if bags is not None:
        order = list(dict.fromkeys(table["bag"]))
        pd.DataFrame(bags).set_index("bag").loc[order].reset_index().to_csv(tmp_path / "bags.csv", index=False)
    infer = ["infer", *words, "--out", str(tmp_path / "q.csv"), "--json"]
    assert cli.main(infer) == 0, capsys.readouterr().err
    summary = json.loads(capsys.readouterr().out)
    assert summary["instances"] == len(frame) and summary["ignored_bags"] == 0
    posterior = pd.read_csv(tmp_path / "q.csv")
    sums = posterior[[f"posterior_{name}" for name in names]].sum(axis=1)
    assert head == "sigmoid" or np.allclose(sums, 1)


def test_a_folder_of_pictures_and_a_crowd(tmp_path: Path, capsys: Capture) -> None:
    images, digits = load_digits(return_X_y=True)
    folder = tmp_path / "photos"
    folder.mkdir()
    answers = ["task,worker,label"]
    for row in range(40):
        pixels = (images[row].reshape(8, 8) * 15).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{row}.png")
        answers += [f"t{row},{worker},d{digits[row]}" for worker in ("ann", "bob") if (row + len(worker)) % 3]
    table = {"task": [f"t{row}" for row in range(40)], "image": [f"{row}.png" for row in range(40)]}
    as_csv(table, folder / "instances.csv")
    (folder / "answers.csv").write_text("\n".join(answers) + "\n")
    words = [str(folder), "--supervision", "crowd_label", "--option", "rate=0.2", "--image-size", "28,28"]
    assert cli.main(["check", *words]) == 0
    run = str(tmp_path / "run")
    fit = ["fit", *words, "--backbone", "lenet5", "--epochs", "1", "--out", run]
    assert cli.main(fit) == 0, capsys.readouterr().err
    out = str(tmp_path / "p.parquet")
    assert cli.main(["predict", run, str(folder), "--out", out]) == 0, capsys.readouterr().err
    assert len(pd.read_parquet(out)) == 40
    capsys.readouterr()
    assert cli.main(["predict", run, str(folder), "--out", out, "--image-size", "8,8"]) == 2
    assert "--image-size" in capsys.readouterr().err
