"""Saved and exported classifiers say what the fitted one says; files that `save` did not write are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from torch import nn

from fastbus import CrowdLabel, LabelProportion, NoisyLabel, PartialLabel, Supervision, WeakClassifier, weaken
from fastbus.errors import FastbusError, InputError
from fastbus.training.checkpoint import CheckpointError, read_checkpoint, write_checkpoint

torch.set_num_threads(1)
X, Y = load_iris(return_X_y=True)
IDS = np.arange(150) // 3
COUNTS = weaken("label_proportion", Y, IDS)
SETS = weaken("partial_label", Y, rng=0, ratio=0.4)
FIT: dict[str, Any] = {"epochs": 2, "random_state": 0}


@pytest.mark.parametrize(
    ("kind", "weak", "bags"),
    [
        ("semi_supervised", np.array(["a", "b", "c"])[Y], None),
        ("noisy_label", Y, None),
        (NoisyLabel(rate=0.1), Y, None),
        (CrowdLabel(rate=0.2), np.stack([Y, Y, Y], 1), None),
        (LabelProportion(noise={-1: 0.1, 0: 0.8, 1: 0.1}), COUNTS, IDS),
        (LabelProportion() & PartialLabel(), (COUNTS, SETS), IDS),
    ],
    ids=["semi", "estimated", "rate", "crowd", "count noise", "combination"],
)
def test_a_loaded_classifier_is_the_same(kind: Any, weak: Any, bags: Any, tmp_path: Path) -> None:
    clf = WeakClassifier(kind, calibrate=bags is None, **FIT).fit(X, weak, bags=bags)
    clf.save(tmp_path)
    again = WeakClassifier.load(tmp_path)
    assert np.array_equal(again.predict_proba(X), clf.predict_proba(X))
    assert np.array_equal(again.posterior(X, weak, bags), clf.posterior(X, weak, bags))
    assert np.array_equal(again.predict(X), clf.predict(X))
    assert repr(again.supervision_) == repr(clf.supervision_) and again.n_iter_ == clf.n_iter_
    assert (tmp_path / "model.json").is_file()


@pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # so few epochs
def test_own_rules_and_networks_are_passed_in_again(tmp_path: Path) -> None:
    rule = Supervision.from_function(lambda labels: int(sum(labels) > 1), bag_size=3)
    weak = (np.add.reduceat(Y > 0, np.arange(0, 150, 3)) > 1).astype(int)
    clf = WeakClassifier(rule, backbone=nn.Linear(4, 2), **FIT).fit(X, weak, bags=IDS)
    clf.save(tmp_path)
    with pytest.raises(InputError, match="supervision="):
        WeakClassifier.load(tmp_path)
    with pytest.raises(InputError, match="backbone="):
        WeakClassifier.load(tmp_path, supervision=rule)
    again = WeakClassifier.load(tmp_path, supervision=rule, backbone=nn.Linear(4, 2))
    assert np.array_equal(again.predict_weak(X, IDS), clf.predict_weak(X, IDS))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    WeakClassifier(**FIT).fit(X, Y).save(folder)
    return folder


HOSTILE: list[tuple[str, Any]] = [
    ("format", "other"),
    ("options", {"epochs": 3}),
    ("classes", [["a"]]),
    ("classes", [0, 1]),
    ("mean", torch.full((4,), torch.nan)),
    ("mean", torch.zeros(7)),
    ("scale", torch.zeros(4)),
    ("temperature", -1.0),
    ("temperature", "hot"),
    ("network", {}),
    ("network", [1]),
    ("network_config", {"name": "mlp", "input_shape": (4,), "num_outputs": 3, "hidden": [10**9]}),
    ("network_config", {"name": "os.system", "input_shape": (4,), "num_outputs": 3}),
    ("network_config", {"name": "linear", "input_shape": (10**9,), "num_outputs": 3}),
    ("supervision", {"registry": "no_such_kind"}),
    ("fitted_supervision", {"registry": "noisy_label", "options": {"rate": 7}}),
    ("fitted_supervision", {"registry": "noisy_label", "options": {"shell": "rm"}}),
    ("fitted_supervision", {"registry": "semi_supervised", "by_name": True}),
    ("weak_columns", "yes"),
    ("history", None),
    ("feature_names", [1, 2]),
]


@pytest.mark.parametrize(("key", "value"), HOSTILE, ids=[f"{key}-{i}" for i, (key, _) in enumerate(HOSTILE)])
def test_hostile_states_are_refused(key: str, value: Any, saved: Path, tmp_path: Path) -> None:
    state = read_checkpoint(saved / "model.safetensors") | {key: value}
    write_checkpoint(state, tmp_path / "model.safetensors")  # with a valid checksum
    with pytest.raises(FastbusError) as caught:
        WeakClassifier.load(tmp_path)
    assert "\n" not in str(caught.value) and "model.safetensors" in str(caught.value)


def test_broken_files_are_refused(saved: Path, tmp_path: Path) -> None:
    whole = (saved / "model.safetensors").read_bytes()
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    for data in (b"", whole[:50], whole[:-9], bytes(flipped), b"\x80\x04\x95pickle"):
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(CheckpointError):
            WeakClassifier.load(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        WeakClassifier.load(tmp_path / "nowhere")


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_exported_models_say_the_same(head: Any, tmp_path: Path) -> None:
    clf = WeakClassifier(head=head, calibrate=True, **FIT).fit(X, (Y > 0).astype(int))
    rows = torch.tensor(X, dtype=torch.float32)
    expected = clf.predict_proba(rows)
    clf.export_torch(tmp_path / "model.pt2")
    module = torch.export.load(str(tmp_path / "model.pt2")).module()
    assert np.allclose(module(rows).detach().numpy(), expected, atol=1e-6)
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    clf.export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for part in (rows, rows[:1]):
        (probs,) = session.run(["probabilities"], {"rows": part.numpy()})
        assert np.allclose(probs, expected[: len(part)], atol=1e-6)
