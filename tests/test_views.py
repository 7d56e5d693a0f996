"""Views change each image by itself, as stated, reproducibly, on real images, without a stop."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fastbus.errors import InputError
from fastbus.training import augment
from fastbus.training.normalise import image_statistics
from fastbus.training.views import Strength, Views, build_views

COLOUR = (3, 32, 32)
STILL = Strength(*[0.0] * 9)
UNSCALED = {"mean": (0, 0, 0), "std": (1, 1, 1)}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def numbers(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def photos():
    """(N, 3, 32, 32) bytes: CIFAR-10 where FASTBUS_DATA has it, else tiles of a photograph."""
    file = Path(os.environ.get("FASTBUS_DATA", "")) / "cifar-10-batches-bin" / "data_batch_1.bin"
    if os.environ.get("FASTBUS_DATA") and file.is_file():
        records = np.fromfile(file, dtype=np.uint8, count=3073 * 260).reshape(260, 3073)
        return torch.tensor(records[:, 1:]).reshape(260, 3, 32, 32)
    from sklearn.datasets import load_sample_image

    photo = torch.tensor(load_sample_image("china.jpg")).permute(2, 0, 1)  # (3, 427, 640)
    tiles = photo.unfold(1, 32, 32).unfold(2, 32, 32)  # (3, 13, 20, 32, 32)
    return tiles.permute(1, 2, 0, 3, 4).reshape(-1, *COLOUR).contiguous()


@pytest.fixture(scope="module")
def digits():
    """(N, 1, 28, 28) bytes: scikit-learn's digits, enlarged."""
    from sklearn.datasets import load_digits

    small = torch.tensor(load_digits().images[:200], dtype=torch.float32)[:, None] * (255 / 16)
    return F.interpolate(small, size=(28, 28), mode="bilinear").round().to(torch.uint8)


def coordinates(count, height, width):
    """Images whose two channels tell the row and the column of each pixel."""
    row = torch.arange(height, dtype=torch.float32)[:, None].expand(height, width)
    column = torch.arange(width, dtype=torch.float32).expand(height, width)
    return torch.stack((row, column)).expand(count, 2, height, width)


def slow_crop(image, down, right, flip, pad, mode):
    """One image (C, H, W): torch's own padding, a slice, a mirror."""
    height, width = image.shape[1:]
    padded = F.pad(image[None].float(), (pad,) * 4, mode=mode)[0]
    top, left = pad + down, pad + right
    cut = padded[:, top : top + height, left : left + width]
    return cut.flip(-1) if flip else cut


# Shapes, types, ranges


@pytest.mark.parametrize("view", Views._fields)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.float16])
def test_shape_type_and_range(view, dtype, photos):
    batch = photos if dtype == torch.uint8 else (photos / 255).to(dtype)
    kept = batch.clone()
    views = build_views("image", COLOUR, **UNSCALED, cutout=0)
    out = getattr(views, view)(batch, numbers())
    assert out.shape == batch.shape
    assert out.dtype == torch.float32
    assert out.min() >= -1e-6
    assert out.max() <= 1 + 1e-6
    assert torch.equal(batch, kept)
    assert out.data_ptr() != batch.data_ptr()


@pytest.mark.parametrize("view", Views._fields)
def test_bytes_and_floats_agree(view, photos):
    function = getattr(build_views("image", COLOUR), view)
    got, expected = function(photos, numbers()), function(photos / 255, numbers())
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("view", Views._fields)
def test_an_empty_batch_stays_empty(view):
    for shape in (COLOUR, (1, 28, 28), (2, 9, 12)):
        batch = torch.zeros((0, *shape), dtype=torch.uint8)
        assert getattr(build_views("image", shape), view)(batch, numbers()).shape == (0, *shape)
    assert getattr(build_views("table", (5,)), view)(torch.zeros(0, 5), numbers()).shape == (0, 5)


def test_grey_images_and_digits(digits):
    views = build_views("image", (1, 28, 28), flip=False)
    assert views.weak(digits, numbers()).shape == digits.shape
    assert views.strong(digits, numbers()).shape == digits.shape
    # Without colour no brightness is changed, so a constant image stays what it is outside the hole.
    flat = torch.full((50, 1, 28, 28), 0.8)
    values = build_views("image", (1, 28, 28), mean=(0,), std=(1,)).strong(flat, numbers()).unique()
    assert all(min(abs(value), abs(value - 0.8)) < 1e-5 for value in values.tolist())


# Randomness


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_the_generator_alone_decides(view, photos):
    function = getattr(build_views("image", COLOUR), view)
    before = torch.get_rng_state()
    generator = numbers(3)
    first, second = function(photos, generator), function(photos, generator)
    assert torch.equal(first, function(photos, numbers(3)))
    assert not torch.equal(first, second)
    state = generator.get_state()
    third = function(photos, generator)
    assert torch.equal(third, function(photos, generator.set_state(state)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_copies_of_one_image_differ(view, photos):
    busy = photos[photos.float().flatten(1).std(dim=1).argmax()]
    out = getattr(build_views("image", COLOUR), view)(busy.expand(60, *COLOUR), numbers())
    different = len(torch.unique(out.flatten(1), dim=0))
    # 9 · 9 · 2 weak views exist, so a few of 60 coincide; strong ones are continuous.
    assert different == 60 if view == "strong" else different > 40


def test_flips_are_even_and_offsets_uniform():
    count = 16_200
    views = build_views("image", (2, 24, 32), mean=(0, 0), std=(1, 1), pad=4, edge="border")
    out = views.weak(coordinates(count, 24, 32), numbers())
    flipped = out[:, 1, 12, 12] > out[:, 1, 12, 13]
    assert abs(flipped.float().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(count)
    down = (out[:, 0, 12, 0] - 12).long()
    right = torch.where(flipped, out[:, 1, 0, 31 - 12], out[:, 1, 0, 12]).long() - 12
    cells = torch.bincount((down + 4) * 9 + right + 4, minlength=81)
    assert cells.shape == (81,)
    expected = count / 81
    chi_square = ((cells - expected) ** 2 / expected).sum().item()
    assert chi_square < 80 + 4 * math.sqrt(160)  # 80 degrees of freedom, four standard deviations
    together = torch.corrcoef(torch.stack((down, right, flipped)).float())
    assert (together - torch.eye(3)).abs().max() < 4 / math.sqrt(count)


def test_flip_can_be_left_out(photos):
    views = build_views("image", COLOUR, flip=False, pad=0)
    assert torch.equal(views.weak(photos, numbers()), views.plain(photos))


# Geometry


@pytest.mark.parametrize(("edge", "mode"), [("reflect", "reflect"), ("border", "replicate")])
@pytest.mark.parametrize("flips", [True, False])
def test_crop_equals_a_slow_one(edge, mode, flips, photos):
    images = photos[:81, :, :24, :]
    offsets = torch.tensor([(down, right) for down in range(-4, 5) for right in range(-4, 5)])
    flip = torch.arange(81) % 2 == 0 if flips else None
    out = augment.crop_flip(images, offsets, flip, edge)
    assert out.dtype == torch.uint8
    for index, (down, right) in enumerate(offsets.tolist()):
        mirrored = flips and index % 2 == 0
        expected = slow_crop(images[index], down, right, mirrored, 4, mode)
        assert torch.equal(out[index].float(), expected)


@pytest.mark.parametrize("edge", ["reflect", "border"])
def test_strong_without_strength_is_weak(edge, photos):
    shift = torch.randint(-4, 5, (len(photos), 2), generator=numbers())
    flip = torch.arange(len(photos)) % 2 == 0
    identity = torch.eye(2).expand(len(photos), 2, 2)
    warped = augment.warp(photos.float(), identity, shift, flip, edge)
    torch.testing.assert_close(warped, augment.crop_flip(photos, shift, flip, edge).float(), rtol=0, atol=5e-3)
    still = build_views("image", COLOUR, strength=STILL, cutout=0, pad=0, flip=False, edge=edge)
    torch.testing.assert_close(still.strong(photos, numbers()), still.plain(photos), rtol=0, atol=1e-4)


def test_warp_equals_a_slow_one():
    """Each target pixel of a smooth image against the image's own formula at the mapped place."""
    count, height, width = 40, 20, 30
    draw = 2 * torch.rand(5, count, generator=numbers()) - 1
    angle, shear, scale = draw[0] * 0.5, draw[1] * 0.2, 1.2 ** draw[2]
    shift = draw[3:].T * 2
    flip = torch.arange(count) % 3 == 0
    matrix = augment.affine_matrix(angle, shear, scale)
    out = augment.warp(coordinates(count, height, width), matrix, shift, flip, "reflect")
    for image in range(count):
        cos, sin = math.cos(angle[image]), math.sin(angle[image])
        turn = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, float(shear[image])], [0, 1]])
        for row, column in ((10, 15), (8, 12), (12, 19), (10, 10)):
            x, y = turn @ np.array([column - 14.5, row - 9.5]) / float(scale[image])
            x = (-x if flip[image] else x) + 14.5 + float(shift[image, 1])
            y = y + 9.5 + float(shift[image, 0])
            assert out[image, 0, row, column].item() == pytest.approx(y, abs=1e-3)
            assert out[image, 1, row, column].item() == pytest.approx(x, abs=1e-3)


def test_a_quarter_turn_and_an_enlargement(photos):
    ones = torch.ones(len(photos))
    zeros = torch.zeros(len(photos))
    images, still = photos.float(), torch.zeros(len(photos), 2)
    quarter = augment.affine_matrix(ones * math.pi / 2, zeros, ones)
    turned = augment.warp(images, quarter, still, None, "reflect")
    torch.testing.assert_close(turned, images.rot90(1, dims=(2, 3)), rtol=0, atol=0.05)
    # Twice as large: the centre of the result shows the middle half, so two steps make one pixel.
    place = augment.warp(
        coordinates(1, 33, 33),
        augment.affine_matrix(zeros[:1], zeros[:1], 2 * ones[:1]),
        still[:1],
        None,
        "border",
    )
    torch.testing.assert_close(place[0, 1, 0], 8 + torch.arange(33) / 2, rtol=0, atol=1e-4)


def test_autocast_does_not_blur_the_coordinates(photos):
    for view in build_views("image", COLOUR):
        expected = view(photos, numbers())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(view(photos, numbers()), expected)


# Colour and cutout


def test_colour_against_formulas(photos):
    images = photos[:50] / 255
    draw = 0.6 + 0.8 * torch.rand(3, 50, generator=numbers())
    got = augment.colour_(images.clone(), *draw)
    for image in range(50):
        brightness, contrast, saturation = (value.item() for value in draw[:, image])
        x = images[image].double().numpy()
        grey = 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]
        x = grey + saturation * (x - grey)
        x = brightness * (grey.mean() + contrast * (x - grey.mean()))
        np.testing.assert_allclose(got[image].numpy(), x.clip(0, 1), atol=1e-6)
    ones = torch.ones(50)
    torch.testing.assert_close(augment.colour_(images.clone(), ones, ones, ones), images, rtol=0, atol=1e-6)
    pale = augment.colour_(images.clone(), ones, ones, 0 * ones)
    torch.testing.assert_close(pale[:, 0], pale[:, 2])


def test_posterize_and_solarize_against_bit_operations(photos):
    images = photos[:40] / 255
    bits = 4 + torch.arange(40) % 4
    chosen = torch.arange(40) % 3 > 0
    # A hair above each level, so that the value read back from floats is the byte itself.
    coarse = augment.posterize_(images + 1e-4, bits.float(), chosen)
    expected = photos[:40].int() & ~((1 << (8 - bits)) - 1)[:, None, None, None]
    torch.testing.assert_close(coarse[chosen] * 255, expected[chosen].float(), rtol=0, atol=1e-2)
    assert torch.equal(coarse[~chosen], images[~chosen] + 1e-4)
    threshold = torch.full((40,), 128 / 255)
    inverted = augment.solarize_(images.clone(), threshold, chosen)
    byte = photos[:40].int()
    expected = torch.where((byte >= 128) & chosen[:, None, None, None], 255 - byte, byte)
    torch.testing.assert_close(inverted * 255, expected.float(), rtol=0, atol=1e-3)


def test_posterize_and_solarize_happen_to_their_share(photos):
    batch = photos[:1].expand(2_000, *COLOUR)
    only = {**vars(STILL), "solarize": 0.3}
    views = build_views("image", COLOUR, strength=Strength(**only), cutout=0, pad=0, flip=False)
    changed = (views.strong(batch, numbers()) - views.plain(batch)).abs().flatten(1).max(dim=1).values > 0.05
    assert abs(changed.float().mean().item() - 0.3) < 0.05
    full = Strength(posterize=1.0, solarize=1.0)
    out = build_views("image", COLOUR, strength=full, **UNSCALED).strong(photos, numbers())
    assert out.min() >= -1e-6
    assert out.max() <= 1 + 1e-6


@pytest.mark.parametrize("size", [16, 7, 1])
def test_cutout_area(size):
    count = 5_000
    views = build_views("image", COLOUR, mean=(0.5,) * 3, std=(0.25,) * 3, strength=STILL, cutout=size)
    hole = views.strong(torch.ones(count, *COLOUR), numbers()) == 0
    assert torch.equal(hole[:, 0], hole[:, 1])
    rows, columns = hole[:, 0].any(dim=2).sum(dim=1), hole[:, 0].any(dim=1).sum(dim=1)
    area = hole[:, 0].flatten(1).sum(dim=1)
    assert torch.equal(area, rows * columns)  # a rectangle, clipped at the edges
    assert rows.max() == size == columns.max()
    assert rows.min() == max(1, size // 2) if size % 2 == 0 else rows.min() >= size // 2
    # The centre is uniform over pixels, so the side it keeps has this mean, and both are independent.
    first = torch.arange(32) - size // 2
    side = (first + size).clamp(max=32) - first.clamp(min=0)
    assert area.float().mean().item() == pytest.approx(side.float().mean().item() ** 2, rel=0.03)


def test_default_sizes_follow_the_image():
    assert (build_views("image", COLOUR).strong.pad, build_views("image", COLOUR).strong.cutout) == (4, 16)
    assert build_views("image", (3, 96, 96)).strong.pad == 12
    assert build_views("image", (1, 28, 28)).weak.pad == 4


# Normalisation


@pytest.mark.parametrize("chunk", [7, 4096])
def test_statistics_normalise_the_training_images(chunk, photos):
    mean, std = image_statistics(photos, chunk=chunk)
    reference = photos.double().numpy().transpose(1, 0, 2, 3).reshape(3, -1) / 255
    np.testing.assert_allclose(mean, reference.mean(axis=1), rtol=1e-10)
    np.testing.assert_allclose(std, reference.std(axis=1), rtol=1e-8)
    plain = build_views("image", COLOUR, mean=mean, std=std).plain(photos)
    assert plain.mean(dim=(0, 2, 3)).abs().max() < 1e-4
    assert (plain.std(dim=(0, 2, 3)) - 1).abs().max() < 1e-4
    np.testing.assert_allclose(image_statistics(photos / 255)[1], std, rtol=1e-5)


def test_a_constant_channel_has_unit_spread():
    images = torch.full((5, 2, 4, 4), 51, dtype=torch.uint8)
    assert image_statistics(images) == (pytest.approx((0.2, 0.2)), (1.0, 1.0))


# Tables


def test_rows_are_untouched_by_default_and_jittered_on_request():
    from sklearn.datasets import load_wine

    table = torch.tensor(load_wine().data)  # (178, 13) float64
    mean, std = table.mean(dim=0).tolist(), table.std(dim=0).tolist()
    kept = table.clone()
    views = build_views("table", (13,), mean=mean, std=std, strong_jitter=0.2, dropout=0.25)
    plain = views.plain(table)
    assert plain.dtype == torch.float32
    assert plain.mean(dim=0).abs().max() < 1e-6
    assert torch.equal(views.weak(table), plain)
    strong = views.strong(table.repeat(20, 1), numbers())
    dropped = strong == 0
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.01)
    noise = (strong - plain.repeat(20, 1))[~dropped]
    assert noise.std().item() == pytest.approx(0.2, rel=0.02)
    assert abs(noise.mean().item()) < 0.005
    assert torch.equal(strong, views.strong(table.repeat(20, 1), numbers()))
    weak = build_views("table", (13,), mean=mean, std=std, jitter=0.05).weak(table, numbers())
    assert (weak - plain).std().item() == pytest.approx(0.05, rel=0.05)
    assert torch.equal(table, kept)


def test_columns_far_from_zero_keep_their_digits():
    seconds = 1.7e9 + torch.arange(5, dtype=torch.float64)[:, None]
    views = build_views("table", (1,), mean=(1.7e9,), std=(2.0,))
    assert views.plain(seconds).flatten().tolist() == [0, 0.5, 1, 1.5, 2]


def test_whole_numbers_are_read_as_floats():
    rows = torch.arange(6).reshape(2, 3)
    assert torch.equal(build_views("table", (3,)).plain(rows), rows.float())


# No stop, no gradient


@pytest.mark.parametrize("view", Views._fields)
def test_nothing_is_read_back_from_the_device(view):
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    # Fake tensors have no values: any read-back raises, as the first lines show.
    with FakeTensorMode():
        with pytest.raises(DataDependentOutputException):
            torch.zeros(2).sum().item()
        images = torch.zeros((8, *COLOUR), dtype=torch.uint8)
        views = build_views("image", COLOUR, strength=Strength(posterize=0.5, solarize=0.5))
        assert getattr(views, view)(images, numbers()).shape == (8, *COLOUR)
        rows = build_views("table", (5,), jitter=0.1)
        assert getattr(rows, view)(torch.zeros(8, 5), numbers()).shape == (8, 5)


def test_views_carry_no_gradient():
    rows = torch.zeros(4, 5, requires_grad=True)
    assert not build_views("table", (5,), jitter=0.1).weak(rows, numbers()).requires_grad
    images = torch.zeros(4, *COLOUR, requires_grad=True)
    assert not build_views("image", COLOUR).strong(images, numbers()).requires_grad


# Errors


@pytest.mark.parametrize(
    ("kind", "shape", "options", "message"),
    [
        ("sound", COLOUR, {}, "kind='sound'; expected one of 'image', 'table'"),
        ("image", (13,), {}, r"input_shape=\(13,\); expected \(channels, height, width\)"),
        ("table", COLOUR, {}, r"expected \(features,\)\. Flatten"),
        ("image", COLOUR, {"jitter": 0.1}, "option 'jitter'; expected one of flip, mean"),
        ("table", (3,), {"flip": True}, "option 'flip'; expected one of mean, std, jitter"),
        ("image", (1, 8, 8), {"pad": 8}, "pad=8; expected a whole number from 0 to 7"),
        ("image", COLOUR, {"edge": "wrap"}, "edge='wrap'; expected one of 'reflect', 'border'"),
        ("image", COLOUR, {"cutout": -1}, "cutout=-1; expected a side in pixels"),
        ("image", COLOUR, {"mean": (0.5,)}, "mean of 1 values; expected 3"),
        ("image", COLOUR, {"std": (1, 0, 1)}, "expected finite means and positive standard deviations"),
        ("table", (2,), {"mean": (0, math.nan)}, "expected finite means"),
        ("table", (2,), {"dropout": 20}, r"dropout=20; expected a share in \[0, 1\)"),
        ("table", (2,), {"jitter": -1.0}, "jitter=-1.0; expected a standard deviation"),
    ],
)
def test_wrong_requests_say_how_to_cure_them(kind, shape, options, message):
    with pytest.raises(InputError, match=message) as caught:
        build_views(kind, shape, **options)
    assert "\n" not in str(caught.value)


def test_wrong_strengths_and_statistics_say_how_to_cure_them():
    with pytest.raises(InputError, match=r"brightness=40; expected a number in \[0, 1\]"):
        Strength(brightness=40)
    with pytest.raises(InputError, match=r"expected \(N, C, H, W\) with N of 1 or more"):
        image_statistics(torch.zeros(0, 3, 4, 4))


@pytest.mark.parametrize("view", Views._fields)
def test_wrong_batches_say_how_to_cure_them(view):
    function = getattr(build_views("image", COLOUR), view)
    with pytest.raises(InputError, match=r"a batch of shape \(3, 32, 32\); expected \(N, 3, 32, 32\)"):
        function(torch.zeros(COLOUR), numbers())
    with pytest.raises(InputError, match=r"images of type torch.int64; expected bytes"):
        function(torch.zeros((2, *COLOUR), dtype=torch.int64), numbers())


@pytest.mark.parametrize("view", ["weak", "strong"])
def test_a_generator_must_be_there_and_near(view):
    function = getattr(build_views("image", COLOUR), view)
    with pytest.raises(InputError, match=r"no generator; expected one on cpu.*torch.Generator\('cpu'\)"):
        function(torch.zeros(2, *COLOUR))
    with pytest.raises(InputError, match="a generator on cpu; expected one on meta"):
        function(torch.zeros(2, *COLOUR, device="meta"), numbers())
