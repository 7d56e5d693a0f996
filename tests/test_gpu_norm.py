"""Normalisation, rectifier and sums in one pass, against torch's own operations: values, slopes, running statistics.

On a machine without a GPU: TRITON_INTERPRET=1 python -m pytest tests/test_gpu_norm.py
"""

import copy
import importlib.util
import os

import pytest
import torch
from torch import Tensor

from fastbus.models.backbone import initialise
from fastbus.models.rectified_norm import RectifiedNorm, fuse
from fastbus.models.resnet import ResNet18
from fastbus.models.wide_resnet import WideResNet

GPU = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(
    not ((GPU or os.environ.get("TRITON_INTERPRET") == "1") and importlib.util.find_spec("triton")),
    reason="needs Triton and a GPU, or TRITON_INTERPRET=1",
)
DEVICE = "cuda" if GPU else "cpu"
SHAPES = [(3, 16, 5, 7), (2, 64, 8, 8), (9, 32, 16, 16), (2, 512, 2, 2), (160, 16, 8, 8)]


def layers(channels: int, slope: float) -> tuple[RectifiedNorm, RectifiedNorm]:
    """The same twice: in float64 by torch, in float32 by the kernels."""
    generator = torch.Generator().manual_seed(channels)
    plain = RectifiedNorm(channels, slope).train()
    with torch.no_grad():
        plain.weight.uniform_(0.5, 2, generator=generator)
        plain.bias.uniform_(-1, 1, generator=generator)
    fused = copy.deepcopy(plain).to(DEVICE)
    fuse(fused)
    return plain.double(), fused


def draw(shape: tuple[int, ...], seed: int, far: float = 20.0) -> Tensor:
    """Numbers as bfloat16 has them, channel means so far from 0."""
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(shape, generator=generator) + far * torch.randn(shape[1], 1, 1, generator=generator)
    return x.bfloat16().float()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("place", ["none", "before", "after"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_slopes_and_statistics(shape: tuple[int, ...], slope: float, place: str, dtype: torch.dtype) -> None:
    plain, fused = layers(shape[1], slope)
    x, other, dy, dtotal = (draw(shape, seed, far) for seed, far in enumerate((20.0, 1.0, 0.0, 0.0)))
    if place == "before":  # eighths below 32 have sums that bfloat16 need not round
        x, other = ((t * 8).round().clamp(-127, 127) / 8 for t in (x, other))
    with torch.no_grad():  # where the rectifier bends, rounding decides on the slope
        z = torch.nn.functional.batch_norm(x.double() + (other.double() if place == "before" else 0), None, None,
                                           plain.weight, plain.bias, True)  # fmt: skip
        z = z + other.double() if place == "after" else z
        dy[z.abs() < 0.02] = 0
    found = []
    for layer, kind in ((plain, torch.float64), (fused, dtype)):
        device = layer.weight.device
        a, b, da, db = (
            t.to(device, kind).contiguous(memory_format=torch.channels_last) for t in (x, other, dtotal, dy)
        )
        a, b = a.requires_grad_(), b.requires_grad_()
        if place == "before":
            outs, grads = layer.of_sum(a, b), (da, db)
        else:
            outs, grads = (layer(a, b if place == "after" else None),), (db,)
        wanted = [a, layer.weight, layer.bias] + ([] if place == "none" else [b])
        slopes = torch.autograd.grad(outs, wanted, grads)
        assert all(out.dtype == kind for out in outs)
        found.append([t.detach().double().cpu() for t in (*outs, *slopes, layer.running_mean, layer.running_var)])
    error = 3e-5 if dtype == torch.float32 else 1e-2
    for expected, got in zip(*found, strict=True):
        assert torch.allclose(got, expected, rtol=error, atol=error * float(expected.abs().max()))


def test_numbers_far_from_zero_keep_their_digits() -> None:
    """A variance of 1 around a mean of 4,096: squares of the values themselves have none of it left in float32."""
    plain, fused = layers(16, 1.0)
    x = 4096 + torch.randn(64, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = plain(x.double())
    got = fused(x.to(DEVICE).contiguous(memory_format=torch.channels_last))
    assert torch.allclose(got.double().cpu(), expected, atol=5e-3)


@pytest.mark.parametrize("kind", ["wide", "resnet"])
def test_networks_take_the_same_steps(kind: str) -> None:
    made = WideResNet((3, 8, 8), 4, depth=10, width=1, slope=0.1) if kind == "wide" else ResNet18((3, 8, 8), 4)
    initialise(made, torch.Generator().manual_seed(0))
    plain = made.to(DEVICE).train().to(memory_format=torch.channels_last)
    fused = copy.deepcopy(plain)
    fuse(fused)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 3, 8, 8, generator=generator).to(DEVICE).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(12, device=DEVICE) % 4
    losses = []
    for network in (plain, fused):
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(network(x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(torch.nn.functional.cross_entropy(network(x), labels))
    assert torch.allclose(*losses, rtol=1e-3)
    for mine, other in zip(plain.buffers(), fused.buffers(), strict=True):
        if mine.is_floating_point():
            assert torch.allclose(mine, other, rtol=1e-2, atol=1e-3)


def test_what_kernels_do_not_know_goes_the_plain_way() -> None:
    for channels, layout in ((24, torch.channels_last), (16, torch.contiguous_format)):
        plain, fused = RectifiedNorm(channels).train(), RectifiedNorm(channels).train()
        fuse(fused)
        x = draw((4, channels, 6, 6), 0).contiguous(memory_format=layout)
        assert torch.equal(fused(x), plain(x))
    fused = RectifiedNorm(16)
    fuse(fused)
    x = draw((4, 16, 6, 6), 0).contiguous(memory_format=torch.channels_last)
    assert torch.equal(fused.eval()(x), RectifiedNorm(16).eval()(x))
