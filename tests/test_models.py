"""Built-in networks are the published ones, start from a seed, train, export and explain wrong inputs."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fastbus.errors import InputError
from fastbus.models import BACKBONES, build_backbone, describe
from fastbus.models.tables import hidden_sizes

COLOUR, DIGIT = (3, 32, 32), (1, 28, 28)
# Small enough to run forward and backward in a test.
RUNNABLE = [
    ("linear", (13,), {}),
    ("mlp", (13,), {}),
    ("mlp", (13,), {"norm": "batch", "dropout": 0.1, "hidden": [16, 8]}),
    ("mlp", (13,), {"norm": "layer", "hidden": (16,)}),
    ("mlp", DIGIT, {}),
    ("lenet5", DIGIT, {}),
    ("lenet5", COLOUR, {}),
    ("small_cnn", (1, 8, 8), {}),
    ("small_cnn", (2, 5, 4), {}),
    ("resnet18", COLOUR, {}),
    ("preact_resnet18", COLOUR, {}),
    ("wrn_28_2", COLOUR, {"slope": 0.1, "dropout": 0.1}),
]
IMAGES = [case for case in RUNNABLE if len(case[1]) == 3]


def title(value):
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


every = pytest.mark.parametrize(("name", "shape", "options"), RUNNABLE, ids=title)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inputs(shape, count=4, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def wide_formula(depth, width, channels, outputs):
    """Counted from the paper's table: convolutions, two numbers a normalised channel, the classifier."""
    total, fan_in = 9 * channels * 16, 16
    for base in (16, 32, 64):
        out = base * width
        for _ in range((depth - 4) // 6):
            total += 2 * fan_in + 9 * fan_in * out + 2 * out + 9 * out * out
            total += fan_in * out if fan_in != out else 0
            fan_in = out
    return total + 2 * fan_in + (fan_in + 1) * outputs


def residual_formula(preact, channels, outputs):
    total, fan_in = 9 * channels * 64, 64
    total += 0 if preact else 2 * 64
    for out in (64, 128, 256, 512):
        for _ in range(2):
            total += 9 * fan_in * out + 9 * out * out
            total += 2 * (fan_in + out) if preact else 4 * out
            if fan_in != out:
                total += fan_in * out + (0 if preact else 2 * out)
            fan_in = out
    return total + (2 * 512 if preact else 0) + 513 * outputs


@pytest.mark.parametrize(
    ("name", "shape", "formula", "published"),
    [
        # The last column is what the papers print, in millions, or the exact number in common use.
        ("wrn_28_2", COLOUR, wide_formula(28, 2, 3, 10), 1_467_610),
        ("wrn_28_8", COLOUR, wide_formula(28, 8, 3, 10), 23.4),
        ("wrn_34_10", COLOUR, wide_formula(34, 10, 3, 10), 46.2),
        ("resnet18", COLOUR, residual_formula(False, 3, 10), 11_173_962),
        ("preact_resnet18", COLOUR, residual_formula(True, 3, 10), 11.17),
        ("lenet5", (1, 32, 32), 156 + 2_416 + 48_120 + 10_164 + 850, 61_706),
        ("lenet5", DIGIT, 61_706, 61_706),
        ("lenet5", COLOUR, 62_006, 62_006),
        ("small_cnn", (1, 8, 8), 10 * 32 + 289 * 32 + 289 * 64 + 257 * 128 + 129 * 10, 62_250),
        ("linear", (13,), 14 * 10, 140),
    ],
)
def test_parameter_counts_are_the_published_ones(name, shape, formula, published):
    count = num_parameters(build_backbone(name, shape, 10))
    assert count == formula
    assert count == published if isinstance(published, int) else abs(count / 1e6 - published) < 0.06


def test_the_formula_gives_the_wide_network_of_the_paper():
    assert round(wide_formula(28, 10, 3, 10) / 1e6, 1) == 36.5


@every
def test_features_logits_and_attributes(name, shape, options):
    model = build_backbone(name, shape, 5, **options).eval()
    x = inputs(shape)
    features = model.features(x)
    assert features.shape == (4, model.num_features)
    assert model.input_shape == shape
    torch.testing.assert_close(model(x), F.linear(features, model.classifier.weight, model.classifier.bias))
    assert model(x).shape == (4, 5)
    assert model(x[:0]).shape == (0, 5)


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18"])
def test_larger_images_get_a_stem_of_stride_two(name):
    large = build_backbone(name, (3, 96, 96), 10).eval()
    assert large.stem.stride == (2, 2)
    assert num_parameters(large) == num_parameters(build_backbone(name, COLOUR, 10))
    with torch.no_grad():
        assert large.blocks(large.stem(inputs((3, 96, 96), 1))).shape == (1, 512, 6, 6)
    assert build_backbone(name, (3, 96, 96), 10, stem_stride=1).stem.stride == (1, 1)


@every
def test_a_seed_gives_the_weights_and_the_global_numbers_rest(name, shape, options):
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = build_backbone(name, shape, 3, seed=7, **options).state_dict()
    again = build_backbone(name, shape, 3, generator=torch.Generator().manual_seed(7), **options).state_dict()
    other = build_backbone(name, shape, 3, seed=8, **options).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert all(not torch.equal(first[key], other[key]) for key in first if first[key].dim() > 1)
    assert all(value.isfinite().all() for value in first.values())


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_convolutions_start_with_he_weights(slope):
    model = build_backbone("wrn_28_2", COLOUR, 10, slope=slope)
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d) and module.weight.numel() > 5_000:
            fan_out = module.out_channels * math.prod(module.kernel_size)
            expected = math.sqrt(2 / (1 + slope**2) / fan_out)
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
            assert abs(module.weight.mean().item()) < 0.05 * expected


@every
def test_first_predictions_favour_no_class_strongly(name, shape, options):
    model = build_backbone(name, shape, 10, **options)
    assert model(inputs(shape, 16)).softmax(dim=1).mean(dim=0).max() < 0.4


@every
def test_the_config_builds_the_network_again(name, shape, options):
    model = build_backbone(name, shape, 4, seed=3, **options).eval()
    rebuilt = build_backbone(**json.loads(json.dumps(model.config)), seed=9).eval()
    rebuilt.load_state_dict(model.state_dict())
    x = inputs(shape, 2)
    assert torch.equal(rebuilt(x), model(x))
    assert describe(model).startswith(f"{name}: ")
    assert f"{num_parameters(model):,} parameters" in describe(model)


@every
def test_gradients_reach_every_parameter(name, shape, options):
    model = build_backbone(name, shape, 3, **options)
    F.cross_entropy(model(inputs(shape, 8)), torch.arange(8) % 3).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", ["resnet18", "preact_resnet18", "wrn_28_2"])
def test_running_statistics_move_in_training_only(name):
    model = build_backbone(name, COLOUR, 3)
    x = inputs(COLOUR, 4)
    fresh = {key: value.clone() for key, value in model.named_buffers()}
    model.eval()(x)
    assert all(torch.equal(value, fresh[key]) for key, value in model.named_buffers())
    assert all((value == ("var" in key)).all() for key, value in fresh.items())  # mean 0, variance 1, count 0
    model.train()(x)
    assert all(not torch.equal(value, fresh[key]) for key, value in model.named_buffers())


@pytest.mark.parametrize(("name", "shape", "options"), IMAGES, ids=title)
def test_channels_last_gives_the_same(name, shape, options):
    model = build_backbone(name, shape, 3, **options).eval()
    x = inputs(shape, 2)
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)


@every
def test_bf16_autocast_stays_near(name, shape, options):
    model = build_backbone(name, shape, 3, **options).eval()
    x = inputs(shape, 4)
    with torch.no_grad():
        expected = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = model(x)
    assert got.dtype == torch.bfloat16
    assert (got - expected).abs().max() < 0.1 * max(1, expected.abs().max().item())
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x).float(), torch.arange(4) % 3)
    loss.backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in model.parameters())


@every
def test_exported_programs_take_any_batch(name, shape, options):
    model = build_backbone(name, shape, 3, **options).eval()
    program = torch.export.export(model, (inputs(shape, 4),), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    x = inputs(shape, 3, seed=1)
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["preact_resnet18", "wrn_28_2"])
def test_blocks_add_to_what_they_carry(name):
    model = build_backbone(name, COLOUR, 3).eval()
    block = model.blocks[-1]
    torch.nn.init.zeros_(block.conv2.weight)

    def added(block, x):
        return block(x) if name == "preact_resnet18" else sum(block(x, None))  # the next one adds

    x = inputs((block.conv1.in_channels, 4, 4), 2)
    assert torch.equal(added(block, x), x)
    # A projection reads the activated input: shifted far below zero, nothing gets through.
    first = next(b for b in model.blocks if b.shortcut is not None)
    torch.nn.init.constant_(first.bn1.bias, -100.0)
    assert added(first, inputs((first.conv1.in_channels, 8, 8), 2)).abs().max() == 0


def test_dropout_acts_in_training_only():
    for name, shape in (("mlp", (13,)), ("wrn_28_2", COLOUR)):
        x = inputs(shape, 2)
        model, plain = build_backbone(name, shape, 3, dropout=0.5), build_backbone(name, shape, 3)
        assert torch.equal(model.eval()(x), plain.eval()(x))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            assert not torch.allclose(model.train()(x), plain.train()(x))


def test_widths_grow_with_the_data():
    assert hidden_sizes(30, 200) == (64,)
    assert hidden_sizes(64, 1_800) == (128, 128) == hidden_sizes(64)
    assert hidden_sizes(64, 100_000) == (256, 256)
    assert hidden_sizes(1_000, 1_000_000) == (512, 512)
    assert hidden_sizes(2, 100_000) == (32, 32)
    model = build_backbone("mlp", (30,), 2, num_samples=200)
    assert model.num_features == 64


@pytest.mark.parametrize("name", ["mlp", "lenet5", "small_cnn"])
def test_real_digits_are_learnt(name):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    if name == "lenet5":
        x = F.interpolate(x, size=(28, 28), mode="bilinear")
    x = (x - x.mean()) / x.std()
    generator = torch.Generator().manual_seed(0)
    model = build_backbone(name, x.shape[1:], 10, seed=0)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(200):
        batch = torch.randint(0, 1_300, (64,), generator=generator)
        optimiser.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()
    with torch.no_grad():
        accuracy = (model.eval()(x[1_300:]).argmax(dim=1) == y[1_300:]).float().mean().item()
    assert accuracy > 0.9


def test_networks_import_neither_data_nor_heavy_libraries():
    code = (
        "import sys, fastbus.models\n"
        "heavy = {'sklearn', 'pandas', 'pyarrow', 'matplotlib', 'PIL', 'pytorch_lightning', 'fastbus.data'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("resnet50", COLOUR, 10), {}, r"backbone='resnet50'; expected one of 'linear', .* Pass one"),
        (("mlp", 13, 10), {}, r"input_shape=13; expected .*\(features,\)"),
        (("mlp", "13", 10), {}, "input_shape='13'; expected"),
        (("mlp", (), 10), {}, r"input_shape=\(\); expected"),
        (("mlp", (0,), 10), {}, r"input_shape=\(0,\); expected the positive sizes"),
        (("mlp", (13.0,), 10), {}, r"input_shape=\(13.0,\); expected"),
        (("mlp", (13,), 0), {}, "num_outputs=0; expected a positive integer"),
        (("mlp", (13,), True), {}, "num_outputs=True; expected"),
        (("mlp", (13,), 2), {"width": 3}, "mlp: option 'width'; expected one of hidden, num_samples"),
        (("linear", (13,), 2), {"dropout": 0.1}, "linear: option 'dropout'; expected no options"),
        (("wrn_28_2", COLOUR, 2), {"depth": 40}, "option 'depth'; expected one of slope, dropout"),
        (("mlp", (13,), 2), {"dropout": 10}, r"dropout=10; expected a share in \[0, 1\)"),
        (("mlp", (13,), 2), {"norm": "group"}, "norm='group'; expected one of 'batch', 'layer'"),
        (("mlp", (13,), 2), {"hidden": ()}, r"hidden=\(\); expected positive widths"),
        (("mlp", (13,), 2), {"hidden": 128}, "hidden=128; expected positive widths"),
        (("wrn_28_2", COLOUR, 2), {"slope": 1.5}, r"slope=1.5; expected a number in \[0, 1\)"),
        (("resnet18", COLOUR, 2), {"stem_stride": 3}, "stem_stride=3; expected 1 or 2"),
        (("lenet5", (1, 64, 64), 2), {}, r"lenet5: input_shape=\(1, 64, 64\); expected .*Resize"),
        (("resnet18", (13,), 2), {}, r"resnet18: input_shape=\(13,\); expected \(channels, height, width\)"),
        (("wrn_28_2", (3, 4, 4), 2), {}, "wrn_28_2: .*at least 8×8"),
    ],
)
def test_wrong_requests_say_how_to_cure_them(arguments, options, message):
    with pytest.raises(InputError, match=message) as caught:
        build_backbone(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "shape", "options"), RUNNABLE[:1] + IMAGES, ids=title)
def test_wrong_inputs_say_how_to_cure_them(name, shape, options):
    model = build_backbone(name, shape, 3, **options)
    with pytest.raises(InputError, match=r"inputs of shape \(4, 7\); expected \(N, .*\. Reshape the inputs"):
        model(torch.zeros(4, 7))
    with pytest.raises(InputError, match=r"needs a batch axis, x\[None\]"):
        model(torch.zeros(shape))
    with pytest.raises(InputError, match=r"inputs of type torch.uint8; expected floating point"):
        model(torch.zeros((4, *shape), dtype=torch.uint8))
    if len(shape) == 3:
        with pytest.raises(InputError, match=r"channels come first, x.permute\(0, 3, 1, 2\)"):
            model.features(torch.zeros(4, *shape[1:], shape[0]))


def test_batch_norm_refuses_a_training_batch_of_one():
    model = build_backbone("mlp", (13,), 3, norm="batch")
    with pytest.raises(InputError, match="a training batch of 1 instance; expected 2 or more"):
        model(torch.zeros(1, 13))
    assert model.eval()(torch.zeros(1, 13)).shape == (1, 3)


def test_every_name_is_covered_here():
    assert {name for name, *_ in RUNNABLE} | {"wrn_28_8", "wrn_34_10"} == set(BACKBONES)
