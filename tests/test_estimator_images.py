"""Images (N, C, H, W) in the estimator: networks by shape, views, scaling by channel, and every answer and file."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from fastbus import WeakClassifier, weaken
from fastbus.errors import InputError
from fastbus.learner_defaults import backbone_options
from fastbus.learner_inputs import Scale, as_rows, learn_scale, training_inputs
from fastbus.training.checkpoint import CheckpointError, read_checkpoint, write_checkpoint

torch.set_num_threads(1)
_DIGITS = load_digits()
IMAGES = _DIGITS.images[:, None]  # (1797, 1, 8, 8) from 0 to 16
BYTES = (IMAGES * 15).astype(np.uint8)
LABELS = _DIGITS.target
FIT: dict[str, Any] = {"epochs": 8, "random_state": 0}
TRAIN, TEST = slice(0, 800), slice(1200, 1797)


@pytest.fixture(scope="module")
def proportions() -> tuple[WeakClassifier, Any, Any]:
    ids = np.arange(800) // 4
    counts = weaken("label_proportion", LABELS[TRAIN], ids)
    return (
        WeakClassifier("label_proportion", epochs=30, random_state=0).fit(BYTES[TRAIN], counts, bags=ids),
        counts,
        ids,
    )


def test_a_convolutional_network_learns_from_proportions(proportions: Any) -> None:
    clf, counts, ids = proportions
    assert clf.network_.config["name"] == "small_cnn" and clf.input_shape_ == (1, 8, 8)
    majority = np.bincount(LABELS[TEST]).max() / len(LABELS[TEST])
    assert clf.score(BYTES[TEST], LABELS[TEST]) > 0.8 > majority
    probs = clf.predict_proba(BYTES[TEST])
    assert probs.shape == (597, 10) and np.allclose(probs.sum(1), 1)
    post = clf.posterior(BYTES[TRAIN], counts, bags=ids)
    sums = np.stack([post[bag == ids].sum(0) for bag in range(len(counts))])
    assert np.allclose(sums, counts, atol=1e-5)
    assert clf.predict_weak(BYTES[TRAIN], bags=ids).shape == counts.shape


def test_scaling_is_by_channel(proportions: Any) -> None:
    clf = proportions[0]
    assert clf.mean_.shape == clf.scale_.shape == (1, 1, 1)
    assert float(clf.mean_) == pytest.approx(BYTES[TRAIN].mean()) and float(clf.scale_) == pytest.approx(
        BYTES[TRAIN].std()
    )
    colour = np.concatenate([IMAGES[:50], 2 * IMAGES[:50] + 5], 1)
    weights = torch.linspace(0.5, 2, 50, dtype=torch.float64)
    scale = learn_scale(as_rows(colour), weights, True)
    mean = np.average(colour.mean((2, 3)), axis=0, weights=weights.numpy())
    assert scale.mean.flatten().tolist() == pytest.approx(mean.tolist())
    spread = np.average(((colour - mean[None, :, None, None]) ** 2).mean((2, 3)), axis=0, weights=weights.numpy())
    assert scale.scale.flatten().tolist() == pytest.approx(np.sqrt(spread).tolist())
    flat = learn_scale(as_rows(np.full((3, 1, 8, 8), 7.0)), None, True)
    assert float(flat.scale) == 1


@pytest.mark.parametrize("images", [BYTES[:40], IMAGES[:40] / 16, IMAGES[:40], IMAGES[:40] - 8], ids=str)
def test_the_plain_view_is_what_predictions_see(images: Any) -> None:
    rows = as_rows(images)
    scale = learn_scale(rows, None, True)
    inputs, views = training_inputs(rows, scale, None, True)
    assert views is not None and inputs.dtype in (torch.uint8, torch.float32)
    top = 255 if inputs.dtype == torch.uint8 else 1
    assert float(inputs.min()) >= 0 and float(inputs.max()) <= top
    assert torch.allclose(views.plain(inputs), scale(rows), atol=1e-5)
    assert abs(float(scale(rows).mean())) < 1e-5 and abs(float(scale(rows).std(correction=0)) - 1) < 1e-4
    generator = torch.Generator().manual_seed(0)
    assert not torch.allclose(views.strong(inputs, generator), views.weak(inputs, generator), atol=0.1)


def test_digits_are_not_mirrored_and_scenes_are() -> None:
    mirrored = {}
    for channels in (1, 3):
        image = np.zeros((64, channels, 8, 8), np.float32)
        image[..., :2] = 1  # the left is bright
        rows = as_rows(image)
        inputs, views = training_inputs(
            rows, Scale(torch.zeros(channels, 1, 1), torch.ones(channels, 1, 1)), None, True
        )
        assert views is not None
        seen = views.weak(inputs, torch.Generator().manual_seed(0))
        mirrored[channels] = bool((seen[..., 4:].mean((1, 2, 3)) > seen[..., :4].mean((1, 2, 3))).any())
    assert mirrored == {1: False, 3: True}


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 28, 28), "lenet5"),
        ((1, 32, 32), "lenet5"),
        ((3, 32, 32), "wrn_28_2"),
        ((3, 96, 64), "wrn_28_2"),
        ((1, 8, 8), "small_cnn"),
        ((2, 5, 30), "small_cnn"),
        ((3, 2, 2), "mlp"),
        ((64,), "mlp"),
    ],
)
def test_networks_by_shape(shape: tuple[int, ...], name: str) -> None:
    assert backbone_options("auto", shape, 500, False, None)[0] == name


@pytest.mark.parametrize("name", ["lenet5", "wrn-28-2", "resnet18"])
def test_networks_by_name(name: str) -> None:
    large = np.kron(BYTES[:24], np.ones((1, 1, 4, 4), np.uint8))  # 32x32
    clf = WeakClassifier(backbone=name, epochs=1, random_state=0).fit(large, LABELS[:24])
    assert clf.network_.config["name"] == name.replace("-", "_")
    assert clf.predict_proba(large[:3]).shape == (3, 10)


def test_refits_are_bit_identical_and_views_matter() -> None:
    def fitted(**options: Any) -> Any:
        clf = WeakClassifier(**{"epochs": 2, "random_state": 0} | options)
        return clf.fit(IMAGES[:100], LABELS[:100]).predict_proba(IMAGES[:20])

    assert np.array_equal(fitted(), fitted()) and np.array_equal(fitted(), fitted(views=True))
    assert not np.array_equal(fitted(), fitted(views=False))
    assert not np.array_equal(fitted(), fitted(views={"pad": 0, "cutout": 0, "strength": {"rotation": 0.0}}))


def test_files_keep_images(proportions: Any, tmp_path: Path) -> None:
    clf = proportions[0]
    wanted = clf.predict_proba(BYTES[TEST])
    clf.save(tmp_path)
    again = WeakClassifier.load(tmp_path)
    assert np.array_equal(again.predict_proba(BYTES[TEST]), wanted)
    assert again.input_shape_ == (1, 8, 8) and clf.seconds_ > 0
    assert not hasattr(again, "seconds_")  # the same fit gives the same file, however long it took
    clf.export_torch(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert np.allclose(program(torch.from_numpy(BYTES[TEST]).float()).detach().numpy(), wanted, atol=1e-5)
    state = read_checkpoint(tmp_path / "model.safetensors")
    write_checkpoint(state | {"input_shape": [1, 9, 9]}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="network for other inputs"):
        WeakClassifier.load(tmp_path)


def test_onnx_keeps_images(proportions: Any, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    clf = proportions[0]
    clf.export_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    (found,) = session.run(None, {"rows": BYTES[TEST].astype(np.float32)})
    assert np.allclose(found, clf.predict_proba(BYTES[TEST]), atol=1e-4)


def test_networks_of_ones_own_take_images() -> None:
    own = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    clf = WeakClassifier(backbone=own, **FIT).fit(IMAGES[:200], LABELS[:200])
    assert clf.score(IMAGES[TEST], LABELS[TEST]) > 0.6


def test_bags_of_images_of_any_size() -> None:
    bags = [BYTES[0:3], BYTES[3:5], BYTES[5:10]]
    counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in (slice(0, 3), slice(3, 5), slice(5, 10))])
    clf = WeakClassifier("label_proportion", epochs=1, random_state=0).fit(bags, counts)
    assert clf.predict(BYTES[:4]).shape == (4,) and clf.predict_weak(bags).shape == (3, 10)


def test_wrong_images_and_views_are_refused(proportions: Any) -> None:
    with pytest.raises(InputError, match="shape"):
        proportions[0].predict(BYTES[:, :, :7])
    for views, match in (
        ("strong", "views='strong'"),
        ({"mean": [0.5]}, "learn it"),
        ({"strength": {"spin": 3}}, "spin"),
        ({"strength": 3}, "mapping"),
        ({"blur": 1}, "blur"),
    ):
        with pytest.raises(InputError, match=match):
            WeakClassifier(views=views, epochs=1).fit(IMAGES[:20], LABELS[:20])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="lenet5"):
        WeakClassifier(backbone="lenet5", epochs=1).fit(IMAGES[:20], LABELS[:20])


@pytest.mark.slow
def test_lenet_learns_mnist_from_proportions(tmp_path: Path) -> None:
    fetch = Path(__file__).resolve().parents[2] / "shared" / "get-data"
    if not fetch.exists():
        pytest.skip("the program shared/get-data that fetches MNIST is absent")
    done = subprocess.run([sys.executable, fetch, tmp_path, "mnist"], capture_output=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"MNIST cannot be fetched here: {done.stderr[-200:]!r}")
    raw = tmp_path / "MNIST" / "raw"
    images = np.fromfile(raw / "train-images-idx3-ubyte", np.uint8)[16:].reshape(-1, 1, 28, 28)[:3000]
    labels = np.fromfile(raw / "train-labels-idx1-ubyte", np.uint8)[8:][:3000].astype(int)
    ids = np.arange(1000) // 4
    counts = weaken("label_proportion", labels[:1000], ids)
    clf = WeakClassifier("label_proportion", epochs=20, random_state=0).fit(images[:1000], counts, bags=ids)
    assert clf.network_.config["name"] == "lenet5"
    assert clf.score(images[1000:], labels[1000:]) > 0.9
