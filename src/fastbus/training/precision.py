"""In what numbers networks compute: bfloat16 on a GPU, elsewhere float32 unless the recipe asks for less."""

from __future__ import annotations

import torch

from fastbus.training.recipes import Recipe


def is_coarse(device: torch.device, recipe: Recipe) -> bool:
    """Whether networks round to bfloat16, in which a change of one in a hundred is lost."""
    return device.type == "cuda" or recipe.bf16


def computing(device: torch.device, recipe: Recipe) -> torch.autocast:
    """The context to call networks in; parameters stay float32."""
    # casts are not kept: a captured step would replay those of the weights it was captured with
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_coarse(device, recipe), cache_enabled=False)
