"""Corners of training by a recipe: odd batches, frozen weights, few labels, entries that make no sense."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import fastbus
from fastbus import WeakClassifier
from fastbus.errors import FastbusError, InputError
from fastbus.learner_images import WEIGHT_DECAY
from fastbus.training.image_noise import with_known_confusions
from fastbus.training.image_run import ImageRun
from fastbus.training.packing import pack_bags
from fastbus.training.recipes import LITTLE, Recipe, recipe_for
from fastbus.training.step_objective import StepInputs, StepObjective, mixed

DATA = load_digits()
BYTES = np.rint(DATA.images * (255 / 16)).astype(np.uint8)[:, None]
IMAGES, LABELS = torch.from_numpy(BYTES), torch.from_numpy(DATA.target)
QUICK = Recipe(backbone="small_cnn", epochs=2, rows=16, labelled_rows=4, learning_rate=0.05, warmup=2, align=0.9)
IDS = np.repeat(np.arange(10), 4)
COUNTS = np.stack([np.bincount(DATA.target[:40][bag == IDS], minlength=10) for bag in range(10)])


def run_of(rule: Any, weak: Any, *, number: int, size: int = 1, classes: int = 10, **options: Any) -> ImageRun:
    sizes = torch.full((number // size,), size)
    settings: dict[str, Any] = {"recipe": QUICK, "flip": False} | options
    return ImageRun(rule, IMAGES[:number], sizes, torch.as_tensor(weak), num_classes=classes, **settings)


def finished(run: ImageRun) -> ImageRun:
    while not run.done:
        assert math.isfinite(run.run_epoch()["loss"])
    return run


# -- a step ------------------------------------------------------------------------------------


class Watching(StepObjective):
    """Counts steps in which cuDNN is off, or set otherwise than it was."""

    def __init__(self, run: ImageRun) -> None:
        super().__init__()
        self.gold, self.changed = run.weak, 0

    def __call__(self, inputs: StepInputs) -> Tensor:
        cudnn = torch.backends.cudnn
        self.changed += not cudnn.enabled or not cudnn.deterministic
        return nn.functional.cross_entropy(inputs.network(inputs.weak), self.gold[inputs.step.rows])


def test_a_step_leaves_the_settings_of_the_libraries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    run = finished(run_of(fastbus.SemiSupervised(), LABELS[:40], number=40, objective=Watching))
    assert isinstance(run.objective, Watching) and run.objective.changed == 0


class HalfFrozen(nn.Module):
    """A frozen layer, a layer that learns, and one that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.learns, self.unused = nn.Linear(64, 32), nn.Linear(32, 10), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.learns(self.frozen(x.flatten(1)).relu())
        return out


def test_networks_with_frozen_and_unused_parts_are_trained() -> None:
    torch.manual_seed(0)
    network = HalfFrozen()
    before = {name: x.clone() for name, x in network.state_dict().items()}
    run = finished(run_of(fastbus.SemiSupervised(), LABELS[:40], number=40, network=network))
    after = run.training.average.state_dict()
    for name in ("frozen.weight", "frozen.bias"):
        assert torch.equal(after[name], before[name])
    assert not torch.equal(after["learns.weight"], before["learns.weight"])


def test_there_is_room_for_every_order_of_bags() -> None:
    """A captured step cannot be given more room: the first epoch may be the shortest of all."""
    sizes = np.array([9] * 20 + [1] * 20)
    weak = np.zeros((40, 10), dtype=np.int64)
    weak[:, 0] = sizes
    recipe = QUICK.replace(rows=10)
    run = ImageRun(
        fastbus.LabelProportion(), IMAGES[:200], torch.from_numpy(sizes), torch.from_numpy(weak), num_classes=10,
        recipe=recipe, flip=False,
    )  # fmt: skip
    epochs = [pack_bags(sizes, 10, 10, np.random.default_rng(seed)) for seed in range(200)]
    shortest = min(epochs, key=lambda epoch: len(epoch.rows))
    run.training.load(shortest)
    assert run.training.tables is not None
    assert len(run.training.tables[0]) >= max(len(epoch.rows) for epoch in epochs)


def test_a_state_of_another_device_is_refused_in_a_sentence() -> None:
    run = run_of(fastbus.SemiSupervised(), LABELS[:40], number=40)
    state = run.state_dict()
    state["tensors"]["generator"] = state["tensors"]["generator"][:16]  # as long as that of a GPU
    with pytest.raises(InputError, match="device"):
        run.load_state_dict(state)


def test_views_are_counted_as_they_are_computed() -> None:
    rule = fastbus.LabelProportion()
    large = finished(run_of(rule, np.eye(10, dtype=np.int64)[[3, 5]] * 20, number=40, size=20))  # of 20 in 16 rows
    assert large.views_seen == 2 * 2 * 2 * 20
    few = finished(run_of(fastbus.SemiSupervised(), LABELS[:6], number=6))  # fewer images than rows
    assert few.views_seen == 2 * 2 * 6


@pytest.mark.parametrize("rows", [1, 7])
def test_pairs_in_an_odd_number_of_rows(rows: int) -> None:
    weak = (LABELS[:40:2] == LABELS[1:40:2]).long()
    finished(run_of(fastbus.PairSimilarity(), weak, number=40, size=2, classes=2, recipe=QUICK.replace(rows=rows)))


def test_confidences_that_are_missing_teach_nothing() -> None:
    weak = torch.tensor([0.9, math.nan] * 10)
    for rule in (fastbus.SimilarityConfidence(), fastbus.ConfidenceDifference()):
        finished(run_of(rule, weak, number=40, size=2, classes=2))


# -- few labels --------------------------------------------------------------------------------


def some_labels(kind: torch.dtype = torch.long) -> Tensor:
    missing = math.nan if kind.is_floating_point else -1
    return torch.where(torch.arange(60) < 12, LABELS[:60].to(kind), missing)


def test_what_goes_by_the_length_of_a_run_is_suited_to_the_epochs_that_are_wanted() -> None:
    size: dict[str, Any] = {"num_images": 10_000, "num_bags": 1_000}
    clothes, colours = (1, 28, 28), (3, 32, 32)
    bags, pairs, confidences = fastbus.MultiInstance(), fastbus.PairSimilarity(), fastbus.SimilarityConfidence()
    assert recipe_for(bags, **size, image_shape=clothes, epochs=25).own is True  # 1,950 steps
    assert recipe_for(bags, **size, image_shape=clothes).own is True  # 15,600
    assert recipe_for(bags, **size, image_shape=colours, epochs=25).own is False
    strong = [recipe_for(bags, **size, image_shape=shape).strong for shape in (clothes, colours)]
    assert strong == [LITTLE, 1.0] and recipe_for(pairs, **size, image_shape=clothes).strong == 1.0
    assert recipe_for(confidences, **size, image_shape=clothes, epochs=25).own is False
    rates = [recipe_for(bags, **size, image_shape=shape, epochs=25).learning_rate for shape in (clothes, colours)]
    assert rates == [0.06, 0.1] and recipe_for(bags, **size, image_shape=clothes).learning_rate == 0.06
    rates = [recipe_for(pairs, **size, image_shape=clothes, epochs=epochs).learning_rate for epochs in (25, 60)]
    assert rates == [0.06, 0.03]
    few = recipe_for(fastbus.SemiSupervised(), **size, image_shape=clothes, epochs=25)  # die at larger ones
    assert few.learning_rate == 0.03 and not few.own
    sharp = [recipe_for(pairs, **size, image_shape=clothes, epochs=epochs).sharpen for epochs in (25, 60)]
    assert sharp == [4.0, 2.0]
    noisy: dict[str, Any] = {"num_images": 50_000, "num_bags": 50_000, "image_shape": colours}
    fades = [recipe_for(fastbus.NoisyLabel(), **noisy, epochs=epochs).fade for epochs in (None, 100, 20)]
    assert fades == [0.75, 0.75, 0.0]
    assert recipe_for(bags, **size, epochs=7).epochs == 7
    large = size | {"num_bags": 500}
    crowded = recipe_for(bags, **large, image_shape=clothes, epochs=25)  # as large bags have it anyway
    assert (crowded.own, crowded.learning_rate, crowded.strong) == (0.5, 0.03, LITTLE)
    positives = [recipe_for(fastbus.PositiveUnlabeled(0.4), **size, image_shape=shape) for shape in (clothes, colours)]
    assert [recipe.labelled_rows for recipe in positives] == [48, 16]


@pytest.mark.parametrize("changes", [{"labelled_rows": 16}, {"labelled_rows": 15}, {"rows": 3}, {"align": 0.0}])
def test_labelled_rows_that_fill_a_step_leave_one_for_the_others(changes: dict[str, Any]) -> None:
    recipe = QUICK.replace(**changes)
    run = run_of(fastbus.SemiSupervised(), some_labels(), number=60, recipe=recipe)
    packed = run._pack(0)
    assert run.labelled is not None and recipe.rows_with_labels < recipe.rows
    assert run.labelled[packed.rows[:, : recipe.rows_with_labels]].all(), "a row without a label is taught class 0"
    finished(run)


@pytest.mark.parametrize("kind", [torch.float32, torch.int32])
def test_labels_of_other_types_are_the_same_labels(kind: torch.dtype) -> None:
    runs = [finished(run_of(fastbus.SemiSupervised(), some_labels(t), number=60)) for t in (torch.long, kind)]
    assert torch.equal(runs[0].logits(IMAGES[:20]), runs[1].logits(IMAGES[:20]))


def test_without_a_labelled_row_there_is_nothing_to_learn() -> None:
    with pytest.raises(InputError, match="no image with a label"):
        run_of(fastbus.SemiSupervised(), torch.full((60,), -1), number=60)
    for changes in ({"labelled_rows": 0}, {"rows": 1}):
        with pytest.raises(InputError, match="labelled_rows"):
            run_of(fastbus.SemiSupervised(), some_labels(), number=60, recipe=QUICK.replace(**changes))


def test_classes_that_are_not_there_are_complained_about() -> None:
    with pytest.raises(FastbusError, match="semi_supervised"):
        run_of(fastbus.SemiSupervised(), some_labels() * 2, number=60, classes=9)


def test_no_alignment_is_none() -> None:
    """With align=0 the class shares of the labelled rows must not reach the others."""
    run = run_of(fastbus.SemiSupervised(), some_labels(), number=60, recipe=QUICK.replace(align=0.0, epochs=1))
    before = run.objective.state()["mean"].clone()
    finished(run)
    assert torch.equal(run.objective.state()["mean"], before)


def test_confusions_of_a_handful_of_images_are_not_guessed() -> None:
    one = {"num_classes": 10, "recipe": QUICK, "seed": 0, "device": "cpu", "flip": False}
    for labels in (LABELS[:4], torch.full((40,), -1)):
        with pytest.raises(InputError, match="noisy_label"):
            with_known_confusions(fastbus.NoisyLabel(), IMAGES[: len(labels)], labels, **one)  # type: ignore[arg-type]


# -- entries of recipes, and the estimator -------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        {"learning_rate": "0.1"},
        {"learning_rate": True},
        {"teacher": "no"},
        {"teacher": 1.5},
        {"own": 1.5},
        {"own": "first"},
        {"own": math.nan},
        {"backbone": 5},
        {"mixup": None},
        {"weak": 0.0, "strong": 0.0},
        {"learning_rate": math.nan},
    ],
)
def test_entries_of_another_type_are_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="recipe: "):
        Recipe(**entry)


def classifier(**options: Any) -> WeakClassifier:
    return WeakClassifier("label_proportion", recipe={"rows": 16}, epochs=1, random_state=0, **options)


def test_what_the_classifier_is_told_reaches_the_recipe() -> None:
    plain = classifier().fit(BYTES[:40], COUNTS, bags=IDS).recipe_
    told = classifier(coupling="independent", weight_decay=0.5).fit(BYTES[:40], COUNTS, bags=IDS).recipe_
    assert plain is not None and told is not None
    assert told == plain | {"coupling": "independent", "weight_decay": 0.5}
    assert WeakClassifier().weight_decay == WEIGHT_DECAY


def test_a_run_is_not_resumed_on_other_weak_labels(tmp_path: Path) -> None:
    classifier(folder=str(tmp_path)).fit(BYTES[:40], COUNTS, bags=IDS)
    later = classifier(folder=str(tmp_path), resume=True)
    later.fit(BYTES[:40], COUNTS, bags=IDS)
    with pytest.raises(InputError, match="resume with weak labels"):
        later.fit(BYTES[:40], np.roll(COUNTS, 1, axis=1), bags=IDS)


def test_weights_that_a_kind_of_label_asks_for_are_not_dropped() -> None:
    rule = fastbus.PositiveConfidence(weighting="pconf")
    with pytest.raises(InputError, match="weighs"):
        WeakClassifier(rule, recipe=True).fit(BYTES[:40], np.full(40, 0.9))


@pytest.mark.parametrize("shape", [(6, 3, 4, 4), (6, 5)])
def test_images_and_rows_of_tables_are_mixed(shape: tuple[int, ...]) -> None:
    inputs = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    together, partner, own = mixed(inputs, 1.0, torch.Generator().manual_seed(1))
    assert partner is not None and together.shape == shape
    for row in range(6):
        by_hand = own[row] * inputs[row] + (1 - own[row]) * inputs[int(partner[row])]
        assert torch.allclose(together[row], by_hand)
