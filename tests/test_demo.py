"""The demonstration is honest: a clean split, fixed seeds, only counts as supervision."""

import numpy as np
import pytest
import torch

from fastbus.bench.demo import bagged_digits, run_demo
from fastbus.errors import InputError


def test_counts_are_those_of_the_hidden_labels() -> None:
    digits = bagged_digits(bags=20, bag_size=6, seed=1)
    assert digits.images.shape == (20, 6, 64)
    for labels, counts in zip(digits.labels.tolist(), digits.counts.tolist(), strict=True):
        assert counts == [labels.count(digit) for digit in range(10)]


def test_training_and_test_images_are_disjoint() -> None:
    digits = bagged_digits(bags=134, bag_size=10, seed=0)
    trained = {row.numpy().tobytes() for row in digits.images.flatten(0, 1)}
    # All scans differ, so equal bytes would mean the same image on both sides of the split.
    assert len(trained) == 1340
    assert not trained & {row.numpy().tobytes() for row in digits.test_images}


def test_inputs_are_standardised_by_the_training_images() -> None:
    pixels = bagged_digits(bags=120, bag_size=10, seed=0).images.flatten(0, 1).double()
    spread = pixels.std(dim=0, correction=0)
    assert pixels.mean(dim=0).abs().max() < 1e-6
    assert (((spread - 1).abs() < 1e-5) | (spread == 0)).all()


def test_the_test_set_has_every_class_in_its_share() -> None:
    shares = bagged_digits(bags=1, bag_size=1, seed=3).test_labels.bincount() / 450
    assert shares.shape == (10,)
    assert (shares - 0.1).abs().max() < 0.01


def test_learns_from_counts_nearly_as_well_as_from_labels() -> None:
    result = run_demo(epochs=15)
    assert result.majority.accuracy < 0.15
    assert result.supervised.accuracy > 0.95
    # 3 points are 13 of the 450 test images, about four standard errors of either figure.
    assert result.weak.accuracy > result.supervised.accuracy - 0.03


def test_same_seed_same_outcome_and_global_generators_untouched() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (run_demo(bags=12, bag_size=5, epochs=3, seed=7) for _ in range(2))
    assert [row.accuracy for row in first.scores] == [row.accuracy for row in second.scores]
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_progress_is_told_of_every_epoch() -> None:
    told: list[tuple[str, int, int]] = []
    run_demo(bags=4, bag_size=3, epochs=2, progress=lambda *step: told.append(step))
    names = ("FastBUS", "fully supervised")
    assert told == [(name, done, 2) for name in names for done in (1, 2)]


@pytest.mark.parametrize("settings", [{"bags": 0}, {"bag_size": 0}, {"epochs": 0}, {"bags": 135}])
def test_bad_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected at"):
        run_demo(**settings)
