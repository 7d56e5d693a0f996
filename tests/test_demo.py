"""The demonstration is honest: a clean split, fixed seeds, weak labels that are true of the hidden ones."""

import io
import json
import os

import numpy as np
import pytest
import torch
from rich.console import Console

from fastbus.bench.demo import as_json, as_table
from fastbus.bench.demo_kinds import KINDS, POSITIVES, SCORER_IMAGES
from fastbus.bench.demo_limits import labels_worth
from fastbus.bench.demo_run import DemoResult, Row, _matched, make_task, run_demo, split_digits
from fastbus.bench.demo_selection import hold_out
from fastbus.errors import InputError
from fastbus.supervision.base import REGISTRY

DIGITS = split_digits(0)
NEAR_THE_CEILING = (
    "label_proportion",
    "multi_instance",
    "partial_label",
    "noisy_label",
    "crowd_label",
    "semi_supervised",
    "positive_unlabeled",
    "unlabeled_unlabeled",
    "pair_comparison",
    "pair_similarity",
    "similarity_confidence",
    "confidence_difference",
    "label_proportion & semi_supervised",
)  # the rows whose information suffices


def test_every_kind_of_the_catalogue_has_a_row() -> None:
    assert set(REGISTRY) <= set(KINDS)
    assert set(KINDS) - set(REGISTRY) == {"label_proportion & semi_supervised"}
    for name in REGISTRY:
        assert make_task(name, DIGITS, 0).supervision.title == name


def test_training_and_test_images_are_disjoint_and_have_equal_shares() -> None:
    trained = {row.tobytes() for row in DIGITS.images}
    # All scans differ, so equal bytes would mean the same image on both sides of the split.
    assert len(trained) == 1347
    assert not trained & {row.tobytes() for row in DIGITS.test_images}
    for labels in (DIGITS.labels, DIGITS.test_labels):
        assert abs(np.bincount(labels) / len(labels) - 0.1).max() < 0.01


@pytest.mark.parametrize("name", KINDS)
def test_the_truth_belongs_to_the_images(name: str) -> None:
    task = make_task(name, DIGITS, 3)
    labels = DIGITS.labels[task.rows]
    assert np.array_equal(task.truth, np.isin(labels, POSITIVES) if task.binary else labels)
    assert task.bags is None or len(task.bags) == len(task.rows)


def test_counts_and_gold_labels_are_those_of_the_hidden_labels() -> None:
    task = make_task("label_proportion & semi_supervised", DIGITS, 1)
    counts, gold = task.weak
    assert task.bags is not None
    for bag, told in enumerate(counts):
        assert told.tolist() == np.bincount(task.truth[task.bags == bag], minlength=10).tolist()
    assert (gold >= 0).sum() == 50
    assert (gold[gold >= 0] == task.truth[gold >= 0]).all()


def test_the_noise_has_the_stated_rate() -> None:
    noisy = make_task("noisy_label", DIGITS, 0)
    assert abs((noisy.weak != noisy.truth).mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / len(noisy.weak))
    crowd = make_task("crowd_label", DIGITS, 0)
    assert ((crowd.weak >= 0).sum(1) == 3).all()
    wrong = (crowd.weak != crowd.truth[:, None])[crowd.weak >= 0]
    assert abs(wrong.mean() - 0.4) < 4 * np.sqrt(0.4 * 0.6 / len(wrong))


def test_sets_have_the_stated_shares_of_positives() -> None:
    task = make_task("positive_unlabeled", DIGITS, 0)
    assert task.truth[task.weak == 1].all()
    assert task.truth[task.weak == -1].mean() == pytest.approx(0.4, abs=1e-3)
    sets = make_task("unlabeled_unlabeled", DIGITS, 0)
    assert [sets.truth[sets.weak == index].mean() for index in (0, 1)] == pytest.approx([0.2, 0.8], abs=1e-3)


def test_confidences_come_from_a_scorer_that_saw_other_images() -> None:
    for name in ("similarity_confidence", "confidence_difference"):
        task = make_task(name, DIGITS, 0)
        assert len(np.unique(task.rows)) == len(task.rows) >= len(DIGITS.labels) - SCORER_IMAGES - 1
    task = make_task("positive_confidence", DIGITS, 0)
    assert task.truth.all()
    assert (task.weak > 0).all() and (task.weak < 1).all()


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_runs(name: str) -> None:
    (row,) = run_demo([name], epochs=1).rows
    assert row.supervision == name
    assert 0 <= row.accuracy <= 1 and 0 <= row.ceiling <= 1
    assert row.gap_points == pytest.approx(100 * (row.ceiling - row.accuracy))
    assert row.majority < (0.15 if row.classes == 10 else 0.55)


def test_learns_from_counts_nearly_as_well_as_from_labels() -> None:
    (row,) = run_demo(["label_proportion"], epochs=12).rows
    assert row.majority < 0.15
    assert row.ceiling > 0.95
    # 3 points are 13 of the 450 test images, about four standard errors of either figure.
    assert row.accuracy > row.ceiling - 0.03


def test_same_seed_same_outcome_and_global_generators_untouched() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    names = ["partial_label", "similar_dissimilar_unlabeled"]
    first, second = (run_demo(order, epochs=1, seed=7) for order in (names, names[::-1]))
    assert [row._replace(seconds=0) for row in first.rows] == [row._replace(seconds=0) for row in second.rows]
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_several_seeds_are_averaged() -> None:
    both = run_demo(["partial_label"], epochs=1, seed=3, seeds=2)
    single = [run_demo(["partial_label"], epochs=1, seed=seed).rows[0] for seed in (3, 4)]
    (row,) = both.rows
    assert row.accuracy == pytest.approx(np.mean([one.accuracy for one in single]))
    assert row.gap_std == pytest.approx(abs(single[0].gap_points - single[1].gap_points) / np.sqrt(2))
    assert both.seeds == 2


@pytest.mark.parametrize("name", KINDS)
def test_bags_held_out_for_the_choice_of_settings_share_no_image(name: str) -> None:
    task = make_task(name, DIGITS, 0)
    training, held = hold_out(task, np.random.default_rng(0))
    assert not set(training.rows) & set(held.rows)
    assert 0.15 < len(held.rows) / len(task.rows) < 0.25
    if task.bags is not None and name.startswith("label_proportion"):
        counts = held.weak[0] if isinstance(held.weak, tuple) else held.weak
        assert held.bags is not None
        for bag, told in enumerate(counts):
            assert told.tolist() == np.bincount(held.truth[held.bags == bag], minlength=10).tolist()


def test_a_wrong_class_is_worth_a_twentieth_of_a_label() -> None:
    assert labels_worth(1347, 10, 9) == 1347  # nine wrong classes leave the true one
    assert labels_worth(1347, 10, 1) == 62  # 1347 log(10/9) / log(10) = 61.6
    assert labels_worth(1000, 2, 1) == 1000


def test_progress_is_told_before_every_row() -> None:
    told: list[tuple[str, int, int]] = []
    run_demo(["noisy_label", "partial_label"], epochs=1, progress=lambda *step: told.append(step))
    assert told == [("partial_label", 0, 2), ("noisy_label", 1, 2), ("done", 2, 2)]


def test_classes_are_matched_by_the_best_naming() -> None:
    assert _matched(np.array([1, 1, 0, 0, 1]), np.array([0, 0, 1, 1, 1])) == pytest.approx(0.8)
    assert _matched(np.array([0, 0]), np.array([1, 1])) == 1


RESULT = DemoResult(
    (Row("a kind", "5 of them", 2, 5, 0.9, 0.5, 0.95, 5.0, 1.0, "a note"),),
    test_images=450,
    epochs=1,
    seed=0,
    seconds=2.0,
)


def test_the_table_has_every_figure_and_note() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(as_table(RESULT))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(part in printed for part in ("a kind [1]", "5 of them", "90.0%", "50.0%", "95.0%", "5.0", "[1] a note"))


def test_the_json_is_the_whole_result() -> None:
    read = json.loads(as_json(RESULT))
    assert read["rows"] == [RESULT.rows[0]._asdict()]
    assert read["seed"] == 0 and read["epochs"] == 1


@pytest.mark.parametrize("settings", [{"epochs": 0}, {"seeds": 0}, {"only": ["label_proportions"]}])
def test_bad_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InputError, match="expected"):
        run_demo(**settings)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif("FASTBUS_FULL_DEMO" not in os.environ, reason="takes minutes; set FASTBUS_FULL_DEMO=1 to run it")
def test_the_whole_demonstration() -> None:
    """By a command of its own: FASTBUS_FULL_DEMO=1 pytest tests/test_demo.py -m slow."""
    rows = {row.supervision: row for row in run_demo(seeds=3).rows}
    assert len(rows) == len(KINDS)
    for name in NEAR_THE_CEILING:
        assert rows[name].gap_points < 5, name
