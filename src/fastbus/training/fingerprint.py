"""What a run must share with the one it resumes, told without weights: options, loss, shape of the network."""

from __future__ import annotations

import re
import zlib
from typing import Any

import torch
from torch import nn

from fastbus.objective import WeakLoss
from fastbus.training.config import TrainConfig


def describe_run(config: TrainConfig, network: nn.Module, loss: WeakLoss, averaged: tuple[str, ...]) -> dict[str, Any]:
    """By name, each of one line; averaged: the parts of the loss whose average is kept."""
    described = {f"config.{name}": value for name, value in config.as_dict().items()}
    text = f"{loss!r}, {loss.coupling}, {loss.smoothing:g}, {loss.likelihood:g}, {loss.budget}"
    text += "" if loss.rank is None else f", rank {loss.rank}"
    # weights and factors that are not learned: the checkpoint would put them back without a word
    text += "" if loss.class_weights is None else f", class weights {loss.class_weights.tolist()}"
    text += "" if loss.class_loop is None else f", fixed factors {_checksum_of_fixed(loss.class_loop)}"
    text += "" if loss.on_impossible == "error" else f", on_impossible {loss.on_impossible}"
    # on one line, and without the addresses of functions, which differ from process to process
    described["loss"] = " ".join(re.sub(r" at 0x[0-9a-f]+", "", text).split())
    described["network"] = network_shape(network)
    if averaged:
        described["average"] = ", ".join(("network", *averaged))
    return described


def network_shape(network: nn.Module) -> int:
    """A checksum of the names and shapes of all weights."""
    return zlib.crc32(repr([(name, tuple(x.shape)) for name, x in network.state_dict().items()]).encode())


def _checksum_of_fixed(module: nn.Module) -> int:
    """Of all that training leaves as it is."""
    found = 0
    for x in (*(p for p in module.parameters() if not p.requires_grad), *module.buffers()):
        found = zlib.crc32(x.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), found)
    return found
