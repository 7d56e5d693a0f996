"""WeakClassifier gets to know images without labels first where its recipe says so, once, and resumes there too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from command_tables import iris_files
from fastbus import WeakClassifier, cli
from fastbus.errors import InputError, WeakLabelError
from fastbus.learner_inputs import learn_scale, training_inputs
from fastbus.models.backbone import Backbone
from fastbus.models.build import build_backbone
from fastbus.supervision import NoisyLabel
from fastbus.training.checkpoint import CheckpointError, write_checkpoint
from fastbus.training.image_noise import with_known_confusions
from fastbus.training.image_run import ImageRun
from fastbus.training.pretrain import load_features, pretrained, pretraining
from fastbus.training.recipes import Recipe, recipe_for
from fastbus.training.views import Views
from test_estimator_recipes import COUNTS, IDS, IMAGES, LABELS

pytestmark = pytest.mark.filterwarnings("ignore::fastbus.errors.NothingLearntWarning")  # two passes
X, WEAK, BAGS = IMAGES[:400], COUNTS[:100], IDS[:400]
ENTRIES: dict[str, Any] = {"rows": 64, "warmup": 2, "learning_rate": 0.03, "pretrain": 3, "epochs": 2}
SEED = int(np.random.RandomState(0).randint(2**31 - 1))  # what random_state=0 gives
RUN_EPOCH = ImageRun.run_epoch


def classifier(supervision: str = "label_proportion", **options: Any) -> WeakClassifier:
    entries = ENTRIES | options.pop("entries", {})
    return WeakClassifier(supervision, **{"recipe": entries, "random_state": 0} | options)


def fitted(**options: Any) -> WeakClassifier:
    return classifier(**options).fit(X, WEAK, bags=BAGS)


def noisy_labels() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random(400) < 0.3, rng.integers(0, 10, 400), LABELS[:400])


def same(a: nn.Module, b: nn.Module) -> bool:
    theirs = b.state_dict()
    return all(torch.equal(x, theirs[name]) for name, x in a.state_dict().items())


def by_hand(recipe: dict[str, Any], images: np.ndarray = X) -> tuple[Backbone, Tensor, Views]:
    """The network that a fit on all of these images should begin with, the images, and their views."""
    rows = torch.from_numpy(images)
    inputs, views = training_inputs(rows, learn_scale(rows, None, True), None, True)
    assert views is not None
    network = build_backbone("small_cnn", (1, 8, 8), 10, seed=SEED)
    run = pretraining(network, inputs, Recipe(**recipe), views, SEED, "cpu")
    while not run.done:
        run.run_epoch()
    load_features(network, pretrained(run))
    return network, inputs, views


class Passes:
    """Counts all passes of training and stops before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.end, self.problem = 0, -1, BaseException()

        def counted(run: ImageRun) -> dict[str, float]:
            if self.count == self.end:
                raise self.problem
            self.count += 1
            return RUN_EPOCH(run)

        monkeypatch.setattr(ImageRun, "run_epoch", counted)

    def stop_after(self, passes: int, problem: BaseException | None = None) -> None:
        self.count, self.end, self.problem = 0, passes, problem or KeyboardInterrupt()

    def go_on(self) -> None:
        self.count, self.end = 0, -1


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Passes]:
    """Files are written after every pass."""
    monkeypatch.setattr("fastbus.training.image_fit.SAVED_EVERY", 0.0)
    monkeypatch.setattr("fastbus.training.pretrain_fit.SAVED_EVERY", 0.0)
    yield Passes(monkeypatch)


def test_a_fit_begins_with_what_images_taught_and_its_own_last_layer() -> None:
    """At a rate of 0 the network stays what it was at first."""
    still = fitted(entries={"learning_rate": 0.0})
    assert still.recipe_ is not None and still.recipe_["pretrain"] == 3 and len(still.history_) == 2
    expected = by_hand(still.recipe_)[0].state_dict()
    fresh = build_backbone("small_cnn", (1, 8, 8), 10, seed=SEED).state_dict()
    for name, x in still.network_.state_dict().items():
        assert torch.allclose(x, expected[name], rtol=1e-5, atol=1e-7), name
        assert torch.allclose(x, fresh[name], rtol=1e-5, atol=1e-7) == (name.startswith("classifier.")), name


def test_pretraining_changes_what_is_learned_and_repeats_itself() -> None:
    first, again, without = fitted(), fitted(), fitted(entries={"pretrain": 0})
    assert same(first.network_, again.network_) and not same(first.network_, without.network_)
    assert np.isfinite(first.predict_proba(IMAGES[400:])).all()


def test_held_out_bags_are_not_looked_at() -> None:
    """Other images in them change nothing but the scale, which is left out here."""
    floats = X / np.float32(255)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(SEED))
    apart = np.isin(BAGS, order[:25].numpy())[:, None, None, None]
    clf, again, other = (
        classifier(held_out=0.25, standardize=False).fit(images, WEAK, bags=BAGS)
        for images in (floats, np.where(apart, 1 - floats, floats), np.where(apart, floats, 1 - floats))
    )
    assert same(clf.network_, again.network_) and not same(clf.network_, other.network_)


def test_confusions_are_estimated_from_the_same_start(passes: Passes) -> None:
    noisy = noisy_labels()
    clf = classifier("noisy_label").fit(X, noisy)
    assert passes.count == 3 + 2 + 2, "pretraining, estimate and training, each once"
    assert clf.recipe_ is not None
    network, inputs, views = by_hand(clf.recipe_)
    options: dict[str, Any] = {"recipe": Recipe(**clf.recipe_), "seed": SEED, "device": "cpu", "views": views}
    weak = torch.from_numpy(noisy)
    expected, fresh = (
        with_known_confusions(NoisyLabel(), inputs, weak, num_classes=10, network=start, **options)
        for start in (network, None)
    )
    assert isinstance(expected, NoisyLabel) and isinstance(fresh, NoisyLabel)
    assert expected.transition is not None and fresh.transition is not None
    assert torch.equal(clf.supervision_.transition, expected.transition)
    assert not torch.equal(expected.transition, fresh.transition)


@pytest.mark.parametrize("done", [0, 1, 2, 3, 4], ids=lambda done: f"after {done} of 5 passes")
def test_a_fit_goes_on_bit_by_bit(done: int, tmp_path: Path, passes: Passes) -> None:
    whole = fitted()
    passes.stop_after(done)
    with pytest.raises(KeyboardInterrupt):
        fitted(folder=str(tmp_path))
    assert (tmp_path / "pretrained.safetensors").is_file() == (done > 0)
    assert (tmp_path / "checkpoint.safetensors").is_file() == (done > 3)
    passes.go_on()
    later = fitted(folder=str(tmp_path), resume=True)
    assert passes.count == 5 - done, "what was done was not done again"
    assert same(later.network_, whole.network_)
    # a checkpoint of what came afterwards holds all weights
    (tmp_path / "pretrained.safetensors").unlink()
    passes.go_on()
    assert same(fitted(folder=str(tmp_path), resume=True).network_, whole.network_) and passes.count == 0


@pytest.mark.parametrize(("done", "left"), [(2, 5), (4, 4), (6, 1)])
def test_a_fit_with_an_estimate_goes_on_bit_by_bit(done: int, left: int, tmp_path: Path, passes: Passes) -> None:
    noisy = noisy_labels()
    whole = classifier("noisy_label").fit(X, noisy)
    passes.stop_after(done)
    with pytest.raises(KeyboardInterrupt):
        classifier("noisy_label", folder=str(tmp_path)).fit(X, noisy)
    passes.go_on()
    later = classifier("noisy_label", folder=str(tmp_path), resume=True).fit(X, noisy)
    assert passes.count == left, "of an estimate that was not finished all passes are made again"
    assert torch.equal(later.supervision_.transition, whole.supervision_.transition)
    assert same(later.network_, whole.network_)


@pytest.mark.parametrize("done", [1, 3], ids=["unfinished", "finished"])
def test_what_another_fit_has_left_is_refused(done: int, tmp_path: Path, passes: Passes) -> None:
    passes.stop_after(done)
    with pytest.raises(KeyboardInterrupt):
        fitted(folder=str(tmp_path))
    passes.go_on()
    resumed: dict[str, Any] = {"folder": str(tmp_path), "resume": True}
    complaint = r"resume with {} other than before; expected those of the run in .*pretrained\.safetensors"
    with pytest.raises(InputError, match=complaint.format("pretrain")) as caught:
        fitted(**resumed, entries={"pretrain": 4})
    assert str(caught.value).endswith("Pass the same, or start a new run.")
    with pytest.raises(InputError, match=complaint.format("seed")):
        fitted(**resumed, random_state=1)
    with pytest.raises(InputError, match=complaint.format("rows")):
        classifier(**resumed).fit(X[::-1].copy(), WEAK, bags=BAGS)
    with pytest.raises(InputError, match=complaint.format("network")):
        fitted(**resumed, backbone=build_backbone("mlp", (1, 8, 8), 10, seed=0))
    assert passes.count == 0
    # a new fit puts its own in the place
    other = fitted(folder=str(tmp_path), entries={"pretrain": 4})
    assert passes.count == 4 + 2 and same(other.network_, fitted(entries={"pretrain": 4}).network_)


def test_a_file_of_something_else_is_refused(tmp_path: Path, passes: Passes) -> None:
    write_checkpoint({"weights": 1}, tmp_path / "pretrained.safetensors")
    with pytest.raises(InputError, match=r"pretrained\.safetensors: no pretraining of a run; expected"):
        fitted(folder=str(tmp_path), resume=True)
    (tmp_path / "pretrained.safetensors").write_bytes(b"half of it")
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        fitted(folder=str(tmp_path), resume=True)


def test_a_new_fit_in_an_old_folder_can_be_resumed(tmp_path: Path, passes: Passes) -> None:
    """The checkpoint of the old one does not stand in its way."""
    fitted(folder=str(tmp_path), entries={"pretrain": 0})
    passes.stop_after(2)
    with pytest.raises(KeyboardInterrupt):
        fitted(folder=str(tmp_path))
    passes.go_on()
    later = fitted(folder=str(tmp_path), resume=True)
    assert passes.count == 3 and same(later.network_, fitted().network_)


def test_a_network_of_the_callers_is_left_alone(tmp_path: Path, passes: Passes) -> None:
    torch.manual_seed(0)
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    before = {name: x.clone() for name, x in own.state_dict().items()}
    first = fitted(backbone=own, folder=str(tmp_path))
    assert passes.count == 2 and not (tmp_path / "pretrained.safetensors").exists()
    assert same(first.network_, fitted(backbone=own, entries={"pretrain": 0}).network_)
    passes.go_on()
    classifier("noisy_label", backbone=own).fit(X, noisy_labels())
    assert passes.count == 2 + 2
    assert all(torch.equal(x, before[name]) for name, x in own.state_dict().items())


def test_a_built_in_network_of_the_callers_is_copied_and_pretrained(passes: Passes) -> None:
    own = build_backbone("small_cnn", (1, 8, 8), 10, seed=3)
    first = fitted(backbone=own)
    assert passes.count == 3 + 2
    assert same(own, build_backbone("small_cnn", (1, 8, 8), 10, seed=3))
    assert not same(first.network_, fitted(backbone=own, entries={"pretrain": 0}).network_)


def test_weak_labels_are_complained_of_first(passes: Passes) -> None:
    wrong = WEAK.copy()
    wrong[7, 0] += 1
    with pytest.raises(WeakLabelError, match="bag 7"):
        classifier().fit(X, wrong, bags=BAGS)
    assert passes.count == 0


def test_a_single_image_has_no_other_to_be_told_from(passes: Passes) -> None:
    clf = classifier("partial_label", n_classes=3).fit(X[:1], np.array([[1, 0, 1]]))
    assert passes.count == 2 and np.isfinite(clf.predict_proba(X[:2])).all()


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), CheckpointError("no room")], ids=["interrupt", "no room"])
@pytest.mark.parametrize("done", [1, 2], ids=["within", "after"])
def test_fastbus_resume_goes_on_with_pretraining(
    done: int,
    problem: BaseException,
    tmp_path: Path,
    passes: Passes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There is no flag for it, so that the recipe is changed; competing methods are trained by one on a CPU too."""

    def with_pretraining(*arguments: Any, **options: Any) -> Recipe:
        return recipe_for(*arguments, **options).replace(pretrain=2)

    monkeypatch.setattr("fastbus.learner_images.recipe_for", with_pretraining)
    iris_files(tmp_path)
    words = ["fit", str(tmp_path / "iris.csv"), "--bags", str(tmp_path / "bags.csv"), "--supervision"]
    words += ["label_proportion", "--method", "gbm", "--epochs", "3", "--dropout", "0", "--seed", "5", "--out"]
    alone, run = tmp_path / "alone", tmp_path / "stopped"
    assert cli.main([*words, str(alone)]) == 0, capsys.readouterr().err
    assert passes.count == 2 + 3
    passes.stop_after(done, problem)
    assert cli.main([*words, str(run)]) == (130 if isinstance(problem, KeyboardInterrupt) else 2)
    assert not (run / "checkpoint.safetensors").exists() and (run / "pretrained.safetensors").is_file()
    passes.go_on()
    assert cli.main(["resume", str(run)]) == 0, capsys.readouterr().err
    assert passes.count == 5 - done
    assert same(WeakClassifier.load(run).network_, WeakClassifier.load(alone).network_)
    # and a new run in its place begins with nothing of it
    passes.go_on()
    assert cli.main([*words, str(run), "--force"]) == 0 and passes.count == 5
