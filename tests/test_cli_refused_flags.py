"""Malformed flags, configs, predictions, run folders and checkpoints: exit code 2 and one line on stderr."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import save

from command_tables import iris_files
from fastbus import cli
from fastbus.commands.parser import in_flags
from fastbus.errors import InputError
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from test_cli_refused import refused

Capture = pytest.CaptureFixture[str]
TABLES = ["fit", "@/iris.csv", "--bags", "@/bags.csv"]
FIT = [*TABLES, "--supervision", "label_proportion"]
OUT = ["--out", "@/new"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Iris tables, predictions of them, and a finished run of one epoch."""
    folder = tmp_path_factory.mktemp("place")
    iris_files(folder)
    words = [word.replace("@", str(folder)) for word in FIT]
    assert cli.main([*words, "--epochs", "1", "--out", str(folder / "run")]) == 0
    predict = ["predict", str(folder / "run"), str(folder / "iris.csv"), "--out", str(folder / "p.csv")]
    assert cli.main(predict) == 0
    return folder


# -- flags -----------------------------------------------------------------------------------------

INFER = ["infer", "@/p.csv", "--bags", "@/bags.csv", "--supervision", "label_proportion", "--out", "@/q.csv"]
FLAGS: dict[str, tuple[list[str], str]] = {
    "unknown flag": ([*FIT, *OUT, "--colour", "red"], "--colour"),
    "unknown flag of predict": (["predict", "@/run", "@/iris.csv", "--supervision", "x"], "--supervision"),
    "two tables": ([*FIT, "@/other.csv", *OUT], "other.csv"),
    "no table": (["fit", "--supervision", "label_proportion", *OUT], "INSTANCES"),
    "no supervision": ([*TABLES, *OUT], "--supervision"),
    "unknown supervision": ([*TABLES, "--supervision", "label_proportions", *OUT], "did you mean 'label_proportion'?"),
    "half a combination": ([*TABLES, "--supervision", "label_proportion &", *OUT], "''"),
    "two distributions": ([*TABLES, "--supervision", "similar_dissimilar_unlabeled & multi_instance", *OUT], "prior"),
    "no out": (FIT, "--out"),
    "out is a file": ([*FIT, "--out", "@/iris.csv"], "iris.csv is a file"),
    "out holds a run": ([*FIT, "--out", "@/run"], "finished run"),
    "out holds other files": ([*FIT, "--out", "@"], "expected a new or empty folder"),
    "no bag table": ([*FIT[:2], "--bags", "@/no.csv", *FIT[4:], *OUT], "no.csv"),
    "epochs no number": ([*FIT, *OUT, "--epochs", "two"], "--epochs"),
    "epochs broken": ([*FIT, *OUT, "--epochs", "2.5"], "--epochs"),
    "epochs 0": ([*FIT, *OUT, "--epochs", "0"], "--epochs 0"),
    "epochs below 0": ([*FIT, *OUT, "--epochs=-1"], "--epochs -1"),
    "epochs without a value": ([*FIT, *OUT, "--epochs"], "--epochs"),
    "learning rate 0": ([*FIT, *OUT, "--learning-rate", "0"], "--learning-rate 0"),
    "learning rate nan": ([*FIT, *OUT, "--learning-rate", "nan"], "--learning-rate"),
    "learning rate word": ([*FIT, *OUT, "--learning-rate", "fast"], "--learning-rate"),
    "weight decay below 0": ([*FIT, *OUT, "--weight-decay=-1"], "--weight-decay -1"),
    "average of 1": ([*FIT, *OUT, "--ema", "1"], "--ema 1"),
    "held out all": ([*FIT, *OUT, "--held-out", "1"], "--held-out 1"),
    "held out nearly all": ([*FIT, *OUT, "--held-out", "0.99"], "--held-out 0.99"),
    "patience below 0": ([*FIT, *OUT, "--patience=-2"], "--patience -2"),
    "seed below 0": ([*FIT, *OUT, "--seed=-1"], "--seed -1"),
    "seed too large": ([*FIT, *OUT, "--seed", "99999999999"], "--seed 99999999999"),
    "seed word": ([*FIT, *OUT, "--seed", "lucky"], "--seed"),
    "consistency below 0": ([*FIT, *OUT, "--consistency=-1"], "--consistency -1"),
    "consistency no number": ([*FIT, *OUT, "--consistency", "much"], "--consistency"),
    "views a word": ([*FIT, *OUT, "--views", "some"], "--views 'some'"),
    "views a number": ([*FIT, *OUT, "--views", "2"], "--views '2'"),
    "views no yaml": ([*FIT, *OUT, "--views", "{flip"], "--views '{flip'"),
    "views of pictures": ([*FIT, *OUT, "--views", "{flip: true}"], "'flip'"),
    "views with a word for a number": ([*FIT, *OUT, "--views", "{jitter: much}"], "jitter='much'"),
    "views with a mean": ([*FIT, *OUT, "--views", "{mean: 0}"], "'mean'"),
    "recipe a word": ([*FIT, *OUT, "--recipe", "tasty"], "--recipe 'tasty'"),
    "recipe of a table": ([*FIT, *OUT, "--recipe", "{epochs: 5}"], "expected images"),
    "train option without a value": ([*FIT, *OUT, "--train-option", "clip"], "--train-option 'clip'"),
    "train option no yaml": ([*FIT, *OUT, "--train-option", "clip=[1,"], "--train-option"),
    "unknown train option": ([*FIT, *OUT, "--train-option", "optimiser=sgd"], "'optimiser'"),
    "train option with a flag": ([*FIT, *OUT, "--train-option", "epochs=3"], "Pass --epochs instead"),
    "unknown optimizer": ([*FIT, *OUT, "--train-option", "optimizer=magic"], "'magic'"),
    "unknown precision": ([*FIT, *OUT, "--train-option", "precision=8"], "'8'"),
    "clip a word": ([*FIT, *OUT, "--train-option", "clip=hard"], "clip='hard'"),
    "teacher without an average": ([*FIT, *OUT, "--train-option", "teacher=average"], "ema > 0"),
    "rank 0": ([*FIT, *OUT, "--rank", "0"], "--rank 0"),
    "unknown evolution": ([*FIT, *OUT, "--evolution", "magic"], "'magic'"),
    "class loop of a softmax head": ([*FIT, *OUT, "--class-loop", "labels"], "sigmoid"),
    "unknown class loop": ([*FIT, *OUT, "--class-loop", "tight", "--head", "sigmoid"], "'tight'"),
    "threads 0": ([*FIT, *OUT, "--threads", "0"], "--threads 0"),
    "head": ([*FIT, *OUT, "--head", "tail"], "'tail'"),
    "device": ([*FIT, *OUT, "--device", "abacus"], "'abacus'"),
    "backbone": ([*FIT, *OUT, "--backbone", "spine"], "'spine'"),
    "picture backbone": ([*FIT, *OUT, "--backbone", "resnet18"], "resnet18"),
    "coupling": ([*FIT, *OUT, "--coupling", "loose"], "'loose'"),
    "on impossible": ([*FIT, *OUT, "--on-impossible", "cry"], "'cry'"),
    "queue below 0": ([*FIT, *OUT, "--queue=-5"], "queue"),
    "batch 0": ([*FIT, *OUT, "--batch-bags", "0"], "--batch-bags 0; expected a whole number from 1"),
    "batch below 0": ([*FIT, *OUT, "--batch-bags=-3"], "--batch-bags -3; expected a whole number from 1"),
    "another number of classes": (
        [*FIT, *OUT, "--n-classes", "2"],
        "--n-classes 2; expected 3, since the tables or --classes name 'setosa', 'versicolor', 'virginica'.",
    ),
    "one class": ([*FIT, *OUT, "--n-classes", "1"], "--n-classes 1; expected a whole number from 2"),
    "check another number of classes": (["check", *FIT[1:], "--n-classes", "4"], "--n-classes 4; expected 3"),
    "pictures of no table": (
        [*FIT, *OUT, "--images", "@/nowhere"],
        "--images or --image-size without pictures to read; expected a column 'image' of",
    ),
    "size of no pictures": (["check", *FIT[1:], "--image-size", "8,8"], "expected a column 'image'"),
    "predict pictures of no table": (
        ["predict", "@/run", "@/iris.csv", "--out", "@/x.csv", "--images", "@"],
        "expected a column 'image'",
    ),
    "ignored column that is not there": (
        ["check", *FIT[1:], "--ignore", "sepal_length,Label"],
        "bags.csv; expected some of 'bag', 'sepal_length', 'sepal_width', 'petal_length', 'petal_width', 'label', "
        "'weak_setosa', 'weak_versicolor', 'weak_virginica' (did you mean 'label'?). Correct the name",
    ),
    "option without a value": ([*FIT, *OUT, "--option", "unit"], "'unit'"),
    "option without a name": ([*FIT, *OUT, "--option", "=3"], "'=3'"),
    "unknown option": ([*FIT, *OUT, "--option", "units=count"], "expected some of kind, unit, tolerance, noise, soft"),
    "option of another value": ([*FIT, *OUT, "--option", "unit=dozen"], "'dozen'"),
    "option no yaml": ([*FIT, *OUT, "--option", "noise=[1,"], "noise"),
    "noise of another form": ([*FIT, *OUT, "--option", "noise=0.3"], "noise=0.3"),
    "option of no part": ([*FIT[:-1], "label_proportion & semi_supervised", *OUT, "--option", "rate=1"], "'rate'"),
    "priors missing": ([*TABLES, "--supervision", "unlabeled_unlabeled", *OUT], "priors"),
    "prior of 2": ([*TABLES, "--supervision", "positive_unlabeled", "--option", "prior=2", *OUT], "prior"),
    "rate of 2": ([*TABLES, "--supervision", "noisy_label", "--option", "rate=2", *OUT], "rate"),
    "matrix of words": ([*TABLES, "--supervision", "noisy_label", "--option", "transition=[[a]]", *OUT], "transition"),
    "classes unlike columns": ([*FIT, *OUT, "--classes", "a,b,c"], "expected one of the classes"),
    "empty class": ([*FIT, *OUT, "--classes", "a,,b"], "--classes"),
    "classes no list": ([*FIT, *OUT, "--classes", "[1"], "--classes"),
    "image size": ([*FIT, *OUT, "--image-size", "32"], "--image-size"),
    "image size 0": ([*FIT, *OUT, "--image-size", "0,3"], "--image-size"),
    "resume without a run": (["resume"], "run"),
    "resume nothing": (["resume", "@/nowhere"], "nowhere is no folder"),
    "resume a finished run": (["resume", "@/run"], "is finished"),
    "resume a file": (["resume", "@/iris.csv"], "iris.csv is no folder"),
    "predict without a table": (["predict", "@/run", "--out", "@/x.csv"], "INSTANCES"),
    "predict without out": (["predict", "@/run", "@/iris.csv"], "--out"),
    "predict to another type": (["predict", "@/run", "@/iris.csv", "--out", "@/x.doc"], "x.doc"),
    "predict to a folder": (["predict", "@/run", "@/iris.csv", "--out", "@/run"], "expected a file that ends in"),
    "predict twice to one file": (
        ["predict", "@/run", "@/iris.csv", "--out", "@/x.csv", "--bags-out", "@/x.csv"],
        "two files",
    ),
    "predict other columns": (["predict", "@/run", "@/bags.csv", "--out", "@/x.csv"], "'sepal_length'"),
    "predict nothing": (["predict", "@/run", "@/no.csv", "--out", "@/x.csv"], "no.csv"),
    "predict without a run": (["predict", "@", "@/iris.csv", "--out", "@/x.csv"], "config.yaml"),
    "infer sums": ([*INFER, "--supervision", "similar_dissimilar_unlabeled", "--option", "prior=0.5"], "one grouping"),
    "infer inputs": ([*INFER, "--inputs", "odds"], "'odds'"),
    "infer inputs that are not there": ([*INFER, "--inputs", "logits"], "logit_<class>"),
    "infer columns without inputs": ([*INFER, "--columns", "p_setosa,p_versicolor"], "--inputs"),
    "infer columns that are not there": ([*INFER, "--columns", "a,b,c", "--inputs", "probs"], "'a'"),
    "infer classes": ([*INFER, "--classes", "a,b,c"], "'a'"),
    "infer fewer classes": ([*INFER, "--columns", "p_setosa", "--inputs", "probs", "--classes", "a,b"], "1 --columns"),
    "infer head": ([*INFER, "--head", "tail"], "'tail'"),
    "infer coupling": ([*INFER, "--coupling", "loose"], "'loose'"),
    "infer chunk 0": ([*INFER, "--chunk-bags", "0"], "--chunk-bags 0"),
    "infer other table": (["infer", "@/iris.csv", *INFER[2:]], "p_<class>"),
    "infer without bags": ([*INFER[:2], *INFER[4:]], "or give the bag table too"),
    "infer to another type": ([*INFER[:-1], "@/q.txt"], "q.txt"),
    "check head": (["check", *FIT[1:], "--head", "tail"], "'tail'"),
    "check out": (["check", *FIT[1:], "--out", "x"], "--out"),
}


@pytest.mark.parametrize(("words", "text"), FLAGS.values(), ids=FLAGS)
def test_flags(words: list[str], text: str, place: Path, capsys: Capture) -> None:
    refused(capsys, place, [word.replace("@", str(place)) for word in words], text)


# -- what is read is not written over ---------------------------------------------------------------

PREDICT = ["predict", "@/run", "@/iris.csv"]
OVER: dict[str, tuple[list[str], str, str]] = {
    "predict": ([*PREDICT, "--out", "@/iris.csv"], "--out", "iris.csv"),
    "predict by another path": ([*PREDICT, "--out", "@/run/../iris.csv"], "--out", "iris.csv"),
    "predict by a link": ([*PREDICT, "--out", "@/link.csv"], "--out", "iris.csv"),
    "predict bags": ([*PREDICT, "--out", "@/x.csv", "--bags-out", "@/iris.csv"], "--bags-out", "iris.csv"),
    "predict a folder": (["predict", "@/run", "@/all", "--out", "@/all/instances.csv"], "--out", "all/instances.csv"),
    "predict beside bags": (["predict", "@/run", "@/all", "--out", "@/all/bags.csv"], "--out", "all/bags.csv"),
    "infer": ([*INFER[:-1], "@/p.csv"], "--out", "p.csv"),
    "infer over bags": ([*INFER[:-1], "@/bags.csv"], "--out", "bags.csv"),
    "infer bags": ([*INFER, "--bags-out", "@/bags.csv"], "--bags-out", "bags.csv"),
    "infer bags over predictions": ([*INFER, "--bags-out", "@/p.csv"], "--bags-out", "p.csv"),
}


@pytest.mark.parametrize(("words", "flag", "file"), OVER.values(), ids=OVER)
def test_inputs_are_not_written_over(
    words: list[str], flag: str, file: str, place: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "place"
    shutil.copytree(place, folder)
    (folder / "all").mkdir()
    shutil.copy(folder / "iris.csv", folder / "all" / "instances.csv")
    shutil.copy(folder / "bags.csv", folder / "all" / "bags.csv")
    (folder / "link.csv").symlink_to(folder / "iris.csv")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    texts = (flag, f"is '{folder / file}', which this command reads; expected another file")
    refused(capsys, folder, [word.replace("@", str(folder)) for word in words], *texts)
    assert {path: path.read_bytes() for path in before} == before
    assert (folder / "link.csv").is_symlink()


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("bag,x,y\na,1,2\na,2,1\nb,1,1\nb,0,0\nb,1,2\n", "--bags-out with a bag of 3 instances; expected exactly 2"),
        ("x,y\n1,2\n2,1\n", "--bags-out where every row is its own bag, without a column 'bag'; expected exactly 2"),
    ],
)
def test_predictions_are_written_for_rows_and_bags_or_not_at_all(
    table: str, text: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "pairs.csv").write_text(
        "bag,x,y,weak\n" + "".join(f"{n // 2},{n},{n % 3},{n // 2 % 2}\n" for n in range(24))
    )
    words = ["fit", str(tmp_path / "pairs.csv"), "--supervision", "pair_similarity", "--epochs", "1"]
    assert cli.main([*words, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    (tmp_path / "tri.csv").write_text(table)
    (tmp_path / "old.csv").write_text("kept")
    words = ["predict", str(tmp_path / "run"), str(tmp_path / "tri.csv"), "--out", str(tmp_path / "old.csv")]
    place = "tri.csv, bag 'b'" if "bag" in table else "tri.csv. Add the column"
    refused(capsys, tmp_path, [*words, "--bags-out", str(tmp_path / "new.csv")], text, "for pair_similarity", place)
    assert (tmp_path / "old.csv").read_text() == "kept"


def test_neither_file_is_written_where_the_second_fails(
    place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise InputError("no; expected yes. Say so.")

    monkeypatch.setattr("fastbus.commands.predict._predict_bags", fails)
    words = [word.replace("@", str(place)) for word in (*PREDICT, "--out", "@/x.csv", "--bags-out", "@/y.csv")]
    refused(capsys, place, words, "expected yes")


# -- configs ---------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[bytes | str, str]] = {
    "no yaml": ("epochs: [1\n", "cannot be read"),
    "no mapping": ("- epochs\n", "holds a list"),
    "nothing": ("", "holds a NoneType"),
    "unknown key": ("epoch: 3\n", "did you mean 'epochs'?"),
    "key of another kind": ("3: 3\n", "'3'"),
    "not utf-8": (b"epochs: \xff\n", "cannot be read"),
    "python object": ("epochs: !!python/object/apply:os.system ['true']\n", "cannot be read"),
    "word": ("epochs: many\n", "--epochs"),
    "list": ("epochs: [1, 2]\n", "--epochs"),
    "mapping": ("epochs: {a: 1}\n", "--epochs"),
    "switch": ("calibrate: maybe\n", "calibrate='maybe'"),
    "options as a list": ("option: [unit=count]\n", "option="),
    "unknown option": ("option: {units: count}\n", "units"),
    "views a list": ("views: [flip]\n", "--views"),
    "train options as a list": ("train_option: [clip=1]\n", "train_option="),
    "unknown train option": ("train-option: {speed: 1}\n", "'speed'"),
    "table that is not there": ("answers: no.csv\n", "no.csv"),
    "date": ("head: 2020-01-01\n", "head"),
    "config in a config": ("config: other.yaml\n", "'config'"),
}


@pytest.mark.parametrize(("content", "text"), CONFIGS.values(), ids=CONFIGS)
def test_configs(content: bytes | str, text: str, place: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    words = [word.replace("@", str(place)) for word in (*FIT, *OUT)]
    refused(capsys, place, [*words, "--config", str(path)], text)


def test_configs_that_are_not_there(place: Path, capsys: Capture) -> None:
    for words in (["--config", str(place / "no.yaml")], ["--config"], [f"--config={place}"]):
        refused(capsys, place, ["fit", *words], "--config")


# -- predictions -----------------------------------------------------------------------------------

PREDICTIONS: dict[str, tuple[str, str, str]] = {
    "nan": ("bag,p_a,p_b\n1,0.5,0.5\n1,,0.5\n", "bag,weak_a,weak_b\n1,1,1\n", "column 'p_a', row 2"),
    "word": ("bag,p_a,p_b\n1,0.5,0.5\n1,x,0.5\n", "bag,weak_a,weak_b\n1,1,1\n", "column 'p_a', row 2"),
    "above 1": ("bag,p_a,p_b\n1,1.5,0.5\n1,0.5,0.5\n", "bag,weak_a,weak_b\n1,1,1\n", "p.csv"),
    "below 0": ("bag,p_a,p_b\n1,-0.5,1.5\n1,0.5,0.5\n", "bag,weak_a,weak_b\n1,1,1\n", "p.csv"),
    "sum of 2": ("bag,p_a,p_b\n1,1,1\n1,0.5,0.5\n", "bag,weak_a,weak_b\n1,1,1\n", "p.csv"),
    "two kinds": ("bag,p_a,logit_a\n1,0.5,0.5\n", "bag,weak_a\n1,1\n", "--inputs"),
    "other classes": ("bag,p_a,p_b\n1,0.5,0.5\n", "bag,weak_a,weak_c\n1,1,0\n", "'c'"),
    "bags apart": ("bag,p_a,p_b\n1,.5,.5\n2,.5,.5\n1,.5,.5\n", "bag,weak_a,weak_b\n1,1,1\n2,1,0\n", "bag 1 once more"),
    "bags in another order": ("bag,p_a,p_b\n1,.5,.5\n2,.5,.5\n", "bag,weak_a,weak_b\n2,1,0\n1,1,0\n", "bag 2"),
    "bag left over": ("bag,p_a,p_b\n1,.5,.5\n", "bag,weak_a,weak_b\n1,1,0\n2,1,0\n", "bag 2 without instances"),
    "bag missing": ("bag,p_a,p_b\n1,.5,.5\n2,.5,.5\n", "bag,weak_a,weak_b\n1,1,0\n", "bag 2"),
    "impossible": ("bag,p_a,p_b\n7,.5,.5\n", "bag,weak_a,weak_b\n7,3,0\n", "bag 7"),
    "ruled out": ("bag,p_a,p_b\n7,1,0\n", "bag,weak_a,weak_b\n7,0,1\n", "bag 7"),
    "no bags": ("p_a,p_b\n.5,.5\n", "bag,weak_a,weak_b\n7,0,1\n", "'bag'"),
    "no rows": ("bag,p_a,p_b\n", "bag,weak_a,weak_b\n7,0,1\n", "no rows"),
}


@pytest.mark.parametrize(("content", "bags", "text"), PREDICTIONS.values(), ids=PREDICTIONS)
def test_predictions(content: str, bags: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "p.csv").write_text(content)
    (tmp_path / "b.csv").write_text(bags)
    words = ["infer", "p.csv", "--bags", "b.csv", "--supervision", "label_proportion", "--out", "q.csv"]
    refused(capsys, tmp_path, [str(tmp_path / word) if word.endswith(".csv") else word for word in words], text)


# -- run folders -----------------------------------------------------------------------------------


def edited(name: str, change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """Change a file of a run that holds a mapping."""

    def damage(run: Path) -> None:
        text = (run / name).read_text()
        value = yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text)
        change(value)
        (run / name).write_text(yaml.safe_dump(value) if name.endswith(".yaml") else json.dumps(value))

    return damage


def written(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(content) and None


def removed(*names: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        for name in names:
            (run / name).unlink()

    return damage


def cut(name: str, share: float) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes((data := (run / name).read_bytes())[: int(len(data) * share)]) and None


def state(name: str, change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    """Change the state of a checkpoint, checksum and all."""

    def damage(run: Path) -> None:
        value = read_checkpoint(run / name)
        change(value)
        write_checkpoint(value, run / name)

    return damage


MODEL, KEPT, DONE = "model.safetensors", "checkpoint.safetensors", "summary.json"
ZEROS = save({"x": np.zeros(3)})
RUNS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no config": ("predict", lambda run: (run / "config.yaml").unlink(), "config.yaml"),
    "no data.json": ("predict", lambda run: (run / "data.json").unlink(), "data.json"),
    "no model": ("predict", lambda run: (run / MODEL).unlink(), MODEL),
    "unfinished": ("predict", removed(MODEL, DONE), "fastbus resume"),
    "no environment": ("resume", lambda run: (run / "environment.json").unlink(), "environment.json"),
    "data.json no JSON": ("predict", written("data.json", b"{"), "data.json"),
    "data.json a list": ("predict", written("data.json", b"[]"), "data.json"),
    "data.json deep": ("predict", written("data.json", b"[" * 100_000), "data.json"),
    "data.json not utf-8": ("predict", written("data.json", b"\xff"), "data.json"),
    "another format": ("predict", edited("data.json", lambda x: x.update(format="x")), "'x'"),
    "features a number": ("predict", edited("data.json", lambda x: x.update(features=3)), "features"),
    "features that are not there": ("predict", edited("data.json", lambda x: x.update(features=["z"])), "'z'"),
    "fewer features": ("predict", edited("data.json", lambda x: x.update(features=["sepal_length"])), "(4,)"),
    "classes of numbers": ("predict", edited("data.json", lambda x: x.update(classes=[1])), "classes"),
    "files a list": ("resume", edited("data.json", lambda x: x.update(files=[])), "files"),
    "other file": ("resume", edited("data.json", lambda x: x.update(files={"passwd": "x"})), "files"),
    "other fingerprint": ("resume", edited("data.json", lambda x: x["files"].update(bags="0")), "has changed"),  # type: ignore[attr-defined]
    "threads": ("resume", edited("environment.json", lambda x: x.update(threads=-1)), "threads"),
    "threads a word": ("resume", edited("environment.json", lambda x: x.update(threads="all")), "threads"),
    "config unknown key": ("resume", edited("config.yaml", lambda x: x.update(shell="rm")), "'shell'"),
    "config bad value": ("resume", edited("config.yaml", lambda x: x.update(epochs="x")), "--epochs"),
    "config other supervision": ("resume", edited("config.yaml", lambda x: x.update(supervision="x")), "'x'"),
    "config no table": ("resume", edited("config.yaml", lambda x: x.pop("instances")), "instances"),
    "config no yaml": ("resume", written("config.yaml", b"a: [\n"), "config.yaml"),
    "config object": ("resume", written("config.yaml", b"a: !!python/name:os.system\n"), "config.yaml"),
    "model empty": ("predict", written(MODEL, b""), MODEL),
    "model noise": ("predict", written(MODEL, np.random.default_rng(0).bytes(999)), MODEL),
    "model a pickle": ("predict", written(MODEL, pickle.dumps({"x": 1})), MODEL),
    "model of others": ("predict", written(MODEL, ZEROS), MODEL),
    "model cut": ("predict", cut(MODEL, 0.9), MODEL),
    "model cut in its header": ("predict", cut(MODEL, 0.1), MODEL),
    "model huge header": ("predict", written(MODEL, b"\xff" * 8 + b"{}"), MODEL),
    "model a checkpoint": ("predict", lambda run: shutil.copy(run / KEPT, run / MODEL) and None, MODEL),
    "model without weights": ("predict", state(MODEL, lambda x: x.pop("network")), MODEL),
    "model without classes": ("predict", state(MODEL, lambda x: x.pop("classes")), MODEL),
    "model with another head": ("predict", state(MODEL, lambda x: x["options"].update(head="x")), MODEL),  # type: ignore[attr-defined]
    "model with an unknown option": ("predict", state(MODEL, lambda x: x["options"].update(a=1)), MODEL),  # type: ignore[attr-defined]
    "model at no temperature": ("predict", state(MODEL, lambda x: x.update(temperature=0.0)), MODEL),
    "checkpoint empty": ("resume", written(KEPT, b""), KEPT),
    "checkpoint cut": ("resume", cut(KEPT, 0.8), KEPT),
    "checkpoint a pickle": ("resume", written(KEPT, pickle.dumps({"x": 1})), KEPT),
    "checkpoint of others": ("resume", written(KEPT, ZEROS), KEPT),
    "checkpoint a model": ("resume", lambda run: shutil.copy(run / MODEL, run / KEPT) and None, KEPT),
    "checkpoint of another run": ("resume", edited("config.yaml", lambda x: x.update(ema=0.5)), "ema"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "damage", "text"), RUNS.values(), ids=RUNS)
def test_run_folders(
    command: str, damage: Callable[[Path], None], text: str, place: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "all"
    shutil.copytree(place, folder)
    run = folder / "run"
    damage(run)
    words = ["predict", str(run), str(folder / "iris.csv"), "--out", str(folder / "x.csv")]
    if command == "resume":
        (run / DONE).unlink()
        words = ["resume", str(run)]
    refused(capsys, folder, words, text)


@pytest.mark.parametrize(
    ("said", "known", "told"),
    [
        ("Leave class_loop=None.", {"class_loop"}, "Leave --class-loop out."),
        ('Leave coupling="auto".', {"coupling"}, "Leave --coupling auto."),
        ('Pass device="cpu", or another.', {"device"}, "Pass --device cpu, or another."),
        ("rank=9; expected less. Pass rank=3 or more.", {"rank"}, "--rank 9; expected less. Pass --rank 3 or more."),
        ("Pass classes=[...] or n_classes=.", {"classes", "n_classes"}, "Pass --classes a,b,c or --n-classes."),
        ("Or leave the column out with ignore=.", {"ignore"}, "Or leave the column out with --ignore."),
        ("Fill it in, or leave the column out with ignore=.", {"out"}, "Fill it in."),
        ('Pass on_impossible="ignore".', {"out"}, 'Pass on_impossible="ignore".'),
        ("nnpu needs it; expected prior=. Pass it, e.g. prior=0.4.", {"method_option"},
         "nnpu needs it; expected --method-option prior=. Pass it, e.g. --method-option prior=0.4."),
    ],
)  # fmt: skip
def test_cures_are_in_flags_that_the_command_has(said: str, known: set[str], told: str) -> None:
    assert in_flags(said, known) == told
