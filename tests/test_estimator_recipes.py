"""WeakClassifier trains images by the recipe of their weak labels, keeps its run, and says where it cannot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from fastbus import NoisyLabel, WeakClassifier
from fastbus.errors import InputError
from fastbus.learner_images import image_recipe
from fastbus.models.build import build_backbone
from fastbus.training.bag_set import BagSet
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint

DATA = load_digits()
IMAGES = np.rint(DATA.images * (255 / 16)).astype(np.uint8)[:, None]
LABELS = DATA.target
IDS = np.repeat(np.arange(300), 4)
COUNTS = np.stack([np.bincount(LABELS[:1200][bag == IDS], minlength=10) for bag in range(300)])
ENTRIES: dict[str, Any] = {"rows": 64, "warmup": 5, "learning_rate": 0.1}


def bags(**options: Any) -> WeakClassifier:
    entries = ENTRIES | options.pop("entries", {})
    return WeakClassifier("label_proportion", recipe=entries, random_state=0, **options)


@pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # so few epochs
def test_images_are_learned_by_a_recipe_and_saved(tmp_path: Path) -> None:
    clf = bags(epochs=20).fit(IMAGES[:1200], COUNTS, bags=IDS)
    assert clf.recipe_ is not None and clf.recipe_["epochs"] == 20 and clf.recipe_["backbone"] == "small_cnn"
    assert clf.n_iter_ == 20 and len(clf.history_) == 20
    assert clf.score(IMAGES[1200:], LABELS[1200:]) > 0.7
    clf.save(tmp_path / "run")
    again = WeakClassifier.load(tmp_path / "run")
    assert np.array_equal(again.predict_proba(IMAGES[:20]), clf.predict_proba(IMAGES[:20]))
    # floats are the same images
    as_floats = bags(epochs=2).fit(IMAGES[:1200] / np.float32(255), COUNTS, bags=IDS)
    as_bytes = bags(epochs=2).fit(IMAGES[:1200], COUNTS, bags=IDS)
    a, b = as_floats.predict_proba(IMAGES[:50] / np.float32(255)), as_bytes.predict_proba(IMAGES[:50])
    assert np.allclose(a, b, atol=1e-3)


def test_a_run_in_a_folder_goes_on_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastbus.training.image_fit.SAVED_EVERY", 0.0)
    whole = bags(epochs=4).fit(IMAGES[:1200], COUNTS, bags=IDS)

    from fastbus.training.image_run import ImageRun

    run_epoch, done = ImageRun.run_epoch, []

    def interrupted(self: ImageRun) -> dict[str, float]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(self.epoch)
        return run_epoch(self)

    monkeypatch.setattr(ImageRun, "run_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bags(epochs=4, folder=str(tmp_path)).fit(IMAGES[:1200], COUNTS, bags=IDS)
    monkeypatch.setattr(ImageRun, "run_epoch", run_epoch)
    later = bags(epochs=4, folder=str(tmp_path), resume=True).fit(IMAGES[:1200], COUNTS, bags=IDS)
    assert np.array_equal(later.predict_proba(IMAGES[:50]), whole.predict_proba(IMAGES[:50]))
    assert len(later.history_) == 4
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4
    with pytest.raises(InputError, match="rows"):
        bags(epochs=4, folder=str(tmp_path), resume=True, entries={"rows": 32}).fit(IMAGES[:1200], COUNTS, bags=IDS)


def test_noise_is_estimated_by_a_recipe_too() -> None:
    rng = np.random.default_rng(0)
    wrong = rng.random(1200) < 0.3
    noisy = np.where(wrong, (LABELS[:1200] + rng.integers(1, 10, 1200)) % 10, LABELS[:1200])
    clf = WeakClassifier("noisy_label", recipe=ENTRIES, epochs=12, random_state=0).fit(IMAGES[:1200], noisy)
    assert abs(1 - float(clf.supervision_.transition.diagonal().mean()) - 0.3) < 0.12
    assert clf.score(IMAGES[1200:], LABELS[1200:]) > 0.75


@pytest.mark.parametrize("recipe", [ENTRIES, False], ids=["recipe", "no recipe"])
def test_a_resumed_fit_goes_on_with_its_estimate(recipe: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(600) < 0.3, rng.integers(0, 10, 600), LABELS[:600])
    options: dict[str, Any] = {"recipe": recipe, "epochs": 3, "random_state": 0, "folder": str(tmp_path)}
    first = WeakClassifier("noisy_label", **options).fit(IMAGES[:600], noisy)
    kept = read_checkpoint(tmp_path / "estimate.safetensors")
    assert torch.equal(kept["supervision"]["options"]["transition"], first.supervision_.transition)
    again = WeakClassifier("noisy_label", resume=True, **options).fit(IMAGES[:600], noisy)
    assert torch.equal(again.supervision_.transition, first.supervision_.transition)
    assert np.array_equal(again.predict_proba(IMAGES[600:650]), first.predict_proba(IMAGES[600:650]))
    # it is read, not made again: another matrix is another rule, under which the run does not go on
    kept["supervision"]["options"]["transition"] = torch.full((10, 10), 0.1, dtype=torch.float64)
    write_checkpoint(kept, tmp_path / "estimate.safetensors")
    with pytest.raises(InputError, match=r"other than|another"):
        WeakClassifier("noisy_label", resume=True, **options).fit(IMAGES[:600], noisy)
    odd = {"supervision": {"registry": "noisy_label", "options": {"odd": 1}}}
    write_checkpoint(odd, tmp_path / "estimate.safetensors")
    with pytest.raises(InputError, match="no estimate of a run"):
        WeakClassifier("noisy_label", resume=True, **options).fit(IMAGES[:600], noisy)
    # what is known needs no file
    told = WeakClassifier(NoisyLabel(rate=0.3), **options).fit(IMAGES[:600], noisy)
    assert told.supervision_.rate == 0.3


def test_a_network_that_is_not_pretrained_has_the_recipe_for_that() -> None:
    images = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
    data = BagSet(NoisyLabel(rate=0.3), images, torch.ones(40, dtype=torch.long), torch.arange(40) % 4)
    base = WeakClassifier("noisy_label", recipe=True).get_params(deep=False)

    def entries(**changes: Any) -> tuple[int, bool, float]:
        recipe = image_recipe(base | changes, data, 4)
        assert recipe is not None
        return recipe.pretrain, recipe.decided, recipe.settle

    aided, unaided = (90, 0.4, 0.0), (0, False, 1.0)
    assert entries() == entries(backbone="resnet18") == entries(backbone=build_backbone("resnet18", (3, 32, 32), 4))
    assert entries() == aided
    assert entries(backbone=nn.Flatten()) == entries(backbone="small-cnn") == unaided
    assert entries(recipe={"pretrain": 0}) == unaided
    assert entries(recipe={"pretrain": 0, "decided": True}) == (0, True, 1.0)


def test_no_recipe_on_a_cpu_unless_asked_for() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is present, where recipes are the default")
    clf = WeakClassifier("label_proportion", epochs=1, random_state=0).fit(IMAGES[:40], COUNTS[:10], bags=IDS[:40])
    assert clf.recipe_ is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"recipe": 3}, "expected True, False or a mapping"),
        ({"recipe": {"lr": 0.1}}, "an entry of the recipe"),
        ({"recipe": True, "patience": 2}, "patience=2"),
        ({"recipe": True, "head": "sigmoid"}, "sigmoid"),
        ({"recipe": True, "views": False}, "views=False"),
        ({"recipe": True, "evolution": "mlp"}, "evolution"),
        ({"recipe": True, "train_options": {"clip": 1.0}}, "train_options"),
    ],
)
def test_what_a_recipe_cannot_serve_is_said(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        WeakClassifier("label_proportion", **options).fit(IMAGES[:40], COUNTS[:10], bags=IDS[:40])
    rows = DATA.data[:40]
    with pytest.raises(InputError, match="shape"):
        WeakClassifier("label_proportion", recipe=True).fit(rows, COUNTS[:10], bags=IDS[:40])
