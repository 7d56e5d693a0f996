"""Statistics of normalisation for averaged weights: counted by hand, and independent of the network in training."""

import copy

import pytest
import torch
from torch import nn

import fastbus
from fastbus.training.batch_statistics import by_batch, count_statistics, normalising
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe


def test_counted_statistics_are_the_means_over_batches() -> None:
    layer = nn.BatchNorm1d(3, momentum=0.3).eval()
    layer.running_mean.fill_(9.0)
    network = nn.Sequential(layer, nn.Dropout(0.5)).eval()
    batches = torch.randn(4, 16, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1
    count_statistics(network, network, batches)
    assert torch.allclose(layer.running_mean, batches.mean((0, 1)), atol=1e-6)
    assert torch.allclose(layer.running_var, batches.var(1).mean(0), atol=1e-5)
    assert layer.momentum == 0.3 and not layer.training


def test_only_normalisation_goes_by_the_batch() -> None:
    frozen = nn.BatchNorm1d(3, track_running_stats=False)
    network = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), frozen).eval()
    assert normalising(network) == [network[0]]
    with by_batch(network):
        assert [layer.training for layer in network] == [True, False, False]
    assert not any(layer.training for layer in network)
    with pytest.raises(ValueError), by_batch(network):
        raise ValueError
    assert not network[0].training


@pytest.mark.parametrize("teacher", [False, True])
def test_the_averaged_network_is_normalised_by_its_own_statistics(teacher: bool) -> None:
    """Whatever the network in training has gathered, predictions go by its own statistics of both views."""
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 4
    recipe = Recipe(backbone="wrn_28_2", epochs=2, rows=20, teacher=teacher, warmup=1)
    run = ImageRun(
        fastbus.NoisyLabel(rate=0.3), images, torch.ones(40, dtype=torch.long), labels, num_classes=4, recipe=recipe
    )
    run.run_epoch()
    for buffer in run.training.network.buffers():
        if buffer.is_floating_point():
            buffer.mul_(3.0).add_(1.0)
    found = run.logits(images)
    (both,) = run.training.changed_batches()  # all images are one batch here
    by_hand = copy.deepcopy(run.training.average)
    for layer in normalising(by_hand):
        layer.momentum = 1.0  # nothing but the last batch counts
        layer.train()
    with torch.no_grad():
        by_hand(both)
        expected = by_hand.eval()(run.views.plain(images))
    assert torch.allclose(found, expected, atol=1e-4)
    run.run_epoch()
    assert not torch.allclose(run.logits(images), found), "statistics are counted anew after further steps"


@pytest.mark.parametrize("number", [10_000, 15_000, 20_000])
def test_statistics_are_counted_on_both_images_of_pairs(number: int) -> None:
    """In ordered pairs every other image is the more positive one: batches must not be of one sort."""
    images = torch.zeros(number, 1, 8, 8, dtype=torch.uint8)
    images[1::2] = 255
    recipe = Recipe(backbone="small_cnn", epochs=1)
    sizes = torch.full((number // 2,), 2)
    weak = torch.ones(number // 2, dtype=torch.long)
    run = ImageRun(fastbus.PairComparison(), images, sizes, weak, num_classes=2, recipe=recipe)
    # a quarter of a strong view is cut out and has the mean colour; corners are seldom within
    corners = [batch[:, :, 0, 0] > 0 for batch in run.training.changed_batches()]
    bright = torch.stack([corner.double().mean() for corner in corners])
    assert abs(float(bright.mean()) - 0.5) < 0.05
    assert float(bright.min()) > 0.3 and float(bright.max()) < 0.7


def test_statistics_are_of_both_views_and_leave_the_steps_their_numbers() -> None:
    images = torch.randint(0, 256, (300, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(backbone="small_cnn", epochs=1)
    labels = torch.arange(300) % 4
    run = ImageRun(fastbus.NoisyLabel(rate=0.3), images, torch.ones(300, dtype=torch.long), labels, num_classes=4,
                   recipe=recipe)  # fmt: skip
    before = run.training.generator.get_state()
    first, again = (list(run.training.changed_batches()) for _ in range(2))
    assert torch.equal(run.training.generator.get_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert [len(batch) for batch in first] == [250, 250]
    weak, strong = (torch.cat([part.chunk(2)[half] for part in first]) for half in (0, 1))
    # a square of side 8 is cut out of strong views alone, where it lies inside for the most part
    cut_weak, cut_strong = ((view == 0).all(1).double().mean() for view in (weak, strong))
    assert float(cut_weak) < 0.01 and 0.1 < float(cut_strong) < 0.25
