"""A compiled run takes the steps of a plain one, to rounding: network and teacher both."""

import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fastbus
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import Recipe


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
# torch's own tracer uses deprecated parts of torch, and looks at .grad of tensors that are no leaves
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)
def test_compiled_steps_are_the_plain_ones() -> None:
    torch._dynamo.reset()
    data = load_digits()
    images = torch.from_numpy((data.images[:320, None] * 15.9).astype(np.uint8))
    weak = torch.from_numpy(data.target[:320]).long()
    weak[80:] = -1
    recipe = Recipe(epochs=1, rows=64, labelled_rows=16, teacher=True, align=0.9, warmup=5)
    logits = []
    for compiled in (False, True):
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 10)]
        run = ImageRun(
            fastbus.SemiSupervised(), images, torch.ones(320, dtype=torch.long), weak, num_classes=10, recipe=recipe,
            flip=False, network=nn.Sequential(*layers), compiled=compiled,
        )  # fmt: skip
        before = run.logits(images[:50])
        run.run_epoch()
        logits.append(run.logits(images[:50]))
        assert float((logits[-1] - before).abs().max()) > 0.1  # it has learnt something
    assert torch.allclose(*logits, atol=1e-4)
