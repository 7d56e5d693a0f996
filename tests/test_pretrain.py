"""Learning images without labels: the loss by hand, features that know classes, and where it begins again."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fastbus.models.build import build_backbone
from fastbus.training.image_run import ImageRun, views_of
from fastbus.training.pretrain import Projected, contrast, pretrained, pretraining
from fastbus.training.recipes import Recipe
from fastbus.training.views import Strength, Views, contrasting, image_views, table_views
from test_image_run import digits

RECIPE = Recipe(backbone="small_cnn", pretrain=6)


def test_the_loss_by_hand() -> None:
    """Two images, two views each: every view has one partner and two others."""
    rows = np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0], [-2.0, 1.0]])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    s = unit @ unit.T / 0.5
    partner, others = (2, 3, 0, 1), ((1, 3), (0, 2), (1, 3), (0, 2))
    expected = np.mean([np.log(np.exp(s[i, list(o)]).sum()) - s[i, partner[i]] for i, o in enumerate(others)])
    assert float(contrast(torch.from_numpy(rows), 0.5)) == pytest.approx(expected)


def test_views_of_one_image_come_together() -> None:
    x = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    before = contrast(x, 0.2)
    (slope,) = torch.autograd.grad(before, x)
    with torch.no_grad():
        assert bool(slope.isfinite().all()) and contrast(x - 0.1 * slope, 0.2) < before


def run_of(passes: int) -> ImageRun:
    images = digits()[0][:1400]
    network = build_backbone("small_cnn", (1, 8, 8), 10, seed=0)
    return pretraining(network, images, RECIPE.replace(pretrain=passes), views_of(images, flip=False), 0, "cpu")


def test_features_know_classes_that_no_label_told() -> None:
    images, labels = digits()
    network = build_backbone("small_cnn", (1, 8, 8), 10, seed=0)
    run = run_of(20)
    while not run.done:
        assert np.isfinite(run.run_epoch()["loss"])
    views = views_of(images[:1400], flip=False)

    def told_by_few() -> float:
        with torch.no_grad():
            features = network.eval().features(views.plain(images)).numpy()
        few = LogisticRegression(max_iter=1000).fit(features[:50], labels[:50])
        return float(few.score(features[1400:], labels[1400:]))

    before = told_by_few()
    network.load_state_dict(pretrained(run))
    assert told_by_few() > before + 0.03, (before, told_by_few())


def test_it_goes_on_as_if_it_had_never_stopped() -> None:
    whole, part, later = run_of(2), run_of(2), run_of(2)
    whole.run_epoch()
    whole.run_epoch()
    part.run_epoch()
    later.load_state_dict(part.state_dict())
    later.run_epoch()
    ours, theirs = pretrained(whole), pretrained(later)
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def test_the_network_that_was_given_stays_as_it_is() -> None:
    network = build_backbone("small_cnn", (1, 8, 8), 10, seed=0)
    before = {name: x.clone() for name, x in network.state_dict().items()}
    images = digits()[0][:100]
    run = pretraining(network, images, RECIPE.replace(pretrain=1), views_of(images, flip=False), 0, "cpu")
    run.run_epoch()
    assert all(torch.equal(x, before[name]) for name, x in network.state_dict().items())
    assert isinstance(run.training.network, Projected)


def test_contrasting_views_are_closer_and_some_are_grey() -> None:
    views = image_views((3, 32, 32), flip=False)
    view = contrasting(views)
    x = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    out = view(x, torch.Generator().manual_seed(0))
    spread = out.std(dim=1).amax(dim=(1, 2))
    assert 3 <= int((spread < 1e-4).sum()) <= 30  # a fifth of 64, three deviations either way
    square = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    square[:, :, 12:20, 12:20] = 255
    only = dict.fromkeys(("rotation", "translation", "shear", "scale", "brightness", "contrast", "saturation"), 0)
    zoomed = image_views((3, 32, 32), flip=False, pad=0, cutout=0, strength=Strength(zoom=1.0, **only)).strong
    sides = (zoomed(square, torch.Generator().manual_seed(0))[:, 0] > 0).sum((1, 2)).double().sqrt()
    assert float(sides.min()) >= 8 and float(sides.min()) < 9 and 14 < float(sides.max()) <= 16.5
    rows = table_views((4,))
    assert contrasting(rows) is rows.strong
    own = Views(rows.weak, rows.weak, rows.plain)
    assert contrasting(own) is rows.weak
