"""Small tensors for tests: reproducible draws, leaves of a graph, tight comparison."""

import torch


def leaf(x):
    """A copy that collects a gradient."""
    return x.detach().clone().requires_grad_()


def draws(*shape, seed=0):
    """Normal numbers, float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shares(*shape, seed=0):
    """Uniform numbers in [0, 1), float64."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got, expected, tolerance=1e-12):
    """Equal up to rounding; nested sequences and mappings too."""
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
