"""One run of the ablation: a setting, a variant and a seed, to accuracy, seconds a step and memory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastbus.bench.ablation.settings import SETTINGS, Setting, draw
from fastbus.bench.ablation.variants import VARIANTS, build_loss, heard
from fastbus.models.build import build_backbone
from fastbus.training.config import TrainConfig
from fastbus.training.fit import train
from fastbus.training.views import Views, image_views

FLIPPED = ("cifar10",)  # a mirrored shoe or digit is no other sample


def run_cell(name: str, variant: str, seed: int, source: Path, epochs: int | None, device: str) -> dict[str, Any]:
    """Train and test; one flat record."""
    setting = SETTINGS[name]
    drawn = draw(setting, seed, source)
    drawn = drawn._replace(bags=replace(drawn.bags, weak=heard(VARIANTS[variant], drawn.bags.weak)))
    config = TrainConfig(**setting.config.as_dict() | {"seed": seed} | ({} if epochs is None else {"epochs": epochs}))
    network = build_backbone(
        setting.backbone,
        tuple(drawn.test.shape[1:]),
        drawn.num_classes,
        seed=seed,
        **dict(setting.backbone_options),
    )
    loss = build_loss(VARIANTS[variant], setting, network, drawn, seed)
    views = _views(setting, drawn.bags.instances)
    gpu = device == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    result = train(
        network,
        loss,
        drawn.bags,
        config,
        views=views,
        trainer_options={"accelerator": "gpu" if gpu else "cpu"},
    )
    seconds = time.perf_counter() - start
    steps = result.epochs * -(-len(drawn.bags) // config.max_bags)
    scores = predict(result.network, drawn.test, views, device)
    return {
        "cell": name,
        "method": variant,
        "seed": seed,
        "metric": "mean average precision" if setting.head == "sigmoid" else "accuracy",
        "accuracy": score(scores, drawn.test_labels, setting.head),
        "seconds": seconds,
        "seconds_per_step": seconds / steps,
        "peak_bytes": torch.cuda.max_memory_allocated() if gpu else _peak_rss(),
        "loss": result.history[-1]["loss"],
        "config": config.as_dict() | {"bags": setting.num_bags, "mean": setting.mean, "std": setting.std},
    }


def _views(setting: Setting, images: Tensor) -> Views | None:
    if images.dim() != 4:
        return None
    sample = images[:2000].double() / 255
    mean, std = sample.mean((0, 2, 3)).tolist(), sample.std((0, 2, 3)).tolist()
    return image_views(tuple(images.shape[1:]), flip=setting.data in FLIPPED, mean=mean, std=std)


@torch.no_grad()
def predict(network: nn.Module, rows: Tensor, views: Views | None, device: str) -> Tensor:
    """Logits of all rows, on the CPU."""
    network = network.to(device).eval()
    pieces = []
    for part in rows.split(1000):
        x = part.to(device)
        pieces.append(network(x if views is None else views.plain(x)).float().cpu())
    return torch.cat(pieces)


def score(logits: Tensor, truth: NDArray[Any], head: str) -> float:
    """Accuracy, or under a sigmoid head the mean over classes of the average precision."""
    if head == "softmax":
        return float((logits.argmax(1).numpy() == truth).mean())
    from sklearn.metrics import average_precision_score

    shown = (truth.any(0)) & (~truth.all(0).astype(bool))
    return float(np.mean([average_precision_score(truth[:, c], logits[:, c]) for c in np.flatnonzero(shown)]))


def _peak_rss() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
