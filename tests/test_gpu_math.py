"""Functions of numbers on a GPU, against those of torch in float64.

On a machine without a GPU: TRITON_INTERPRET=1 python -m pytest tests/test_gpu_math.py
"""

import importlib.util
import math
import os

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
if not ((GPU or os.environ.get("TRITON_INTERPRET") == "1") and importlib.util.find_spec("triton")):
    pytest.skip("needs Triton and a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from fastbus.inference.kernels import gpu_math  # noqa: E402
from fastbus.inference.kernels.gpu_launch import APPROXIMATE  # noqa: E402

DEVICE = "cuda" if GPU else "cpu"
SIZE = 1024


@triton.jit
def _decays(x, y, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(y + at, gpu_math.decay(tl.load(x + at)))


@triton.jit
def _logs(x, y, size: tl.constexpr, approx: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(y + at, gpu_math.log(tl.load(x + at), approx))


@triton.jit
def _inverses(x, y, size: tl.constexpr, approx: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(y + at, gpu_math.reciprocal(tl.load(x + at), approx))


@triton.jit
def _circles(x, cos, sin, size: tl.constexpr):
    at = tl.arange(0, size)
    real, imaginary = gpu_math.circle_at(tl.load(x + at))
    tl.store(cos + at, real)
    tl.store(sin + at, imaginary)


def spread(low: float, high: float) -> Tensor:
    return torch.linspace(low, high, SIZE, dtype=torch.float64)


def test_decays() -> None:
    x = torch.cat([spread(0, 1)[:256], spread(1, 50)[:256], spread(50, 700)[:508], torch.tensor([709.0, 745, 1e300])])
    x = torch.cat([x, torch.tensor([math.inf], dtype=torch.float64)])
    y = torch.empty(SIZE, dtype=torch.float64, device=DEVICE)
    _decays[(1,)](x.to(DEVICE), y, size=SIZE)
    torch.testing.assert_close(y.cpu()[:-4], torch.exp(-x)[:-4], rtol=4e-16, atol=0)
    assert (y.cpu()[-4:] <= 2e-308).all() and (y.cpu()[-4:] >= 0).all()


def test_decay_of_no_number_is_none() -> None:
    x = torch.full((SIZE,), math.nan, dtype=torch.float64, device=DEVICE)
    y = torch.zeros_like(x)
    _decays[(1,)](x, y, size=SIZE)
    assert y.isnan().all()


@pytest.mark.parametrize(("low", "high"), [(1e-300, 1e-3), (0.5, 2.0), (0.999999, 1.000001), (2.0, 1e300)])
def test_logarithms(low: float, high: float) -> None:
    x = spread(low, high)
    y = torch.empty(SIZE, dtype=torch.float64, device=DEVICE)
    _logs[(1,)](x.to(DEVICE), y, size=SIZE, approx=APPROXIMATE)
    torch.testing.assert_close(y.cpu(), torch.log(x), rtol=4e-16, atol=2e-16)


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (1e-3, 1.0), (1.0, 1e6)])
def test_reciprocals(low: float, high: float) -> None:
    x = spread(low, high)
    y = torch.empty(SIZE, dtype=torch.float64, device=DEVICE)
    _inverses[(1,)](x.to(DEVICE), y, size=SIZE, approx=APPROXIMATE)
    torch.testing.assert_close(y.cpu(), 1 / x, rtol=5e-16, atol=0)


def test_circles() -> None:
    x = spread(0, 1)
    cos, sin = (torch.empty(SIZE, dtype=torch.float64, device=DEVICE) for _ in range(2))
    _circles[(1,)](x.to(DEVICE), cos, sin, size=SIZE)
    torch.testing.assert_close(cos.cpu(), torch.cos(2 * math.pi * x), rtol=0, atol=1e-15)
    torch.testing.assert_close(sin.cpu(), torch.sin(2 * math.pi * x), rtol=0, atol=1e-15)
