"""The scorer: a calibrated network whose P(positive) makes the confidences of pairs.

It is trained with true labels on images that are in no pair, and one temperature is fitted on further images, so
that its probabilities mean what they say. No test image is looked at. Its file holds the scores of all other
training images, and its weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastbus.bench.paper.plan import MIRRORED, Scorer
from fastbus.bench.paper.sets import SETS, Images
from fastbus.data.draws import binary_labels
from fastbus.supervision.imperfect import PartialLabel
from fastbus.training.calibrate import fit_temperature
from fastbus.training.checkpoint import read_checkpoint, write_checkpoint
from fastbus.training.image_run import ImageRun

Array = NDArray[Any]


def scorer_path(folder: Path, scorer: Scorer) -> Path:
    return folder / f"scorer-{scorer.data}-{scorer.fingerprint}.safetensors"


def read_scores(folder: Path, scorer: Scorer) -> tuple[Array, dict[str, Any]]:
    """P(positive) of each training image, NaN for the scorer's own; and what is known of the scorer."""
    state = read_checkpoint(scorer_path(folder, scorer))
    return state["scores"].numpy(), state["facts"]


def scorer_rows(scorer: Scorer, labels: Array) -> tuple[Array, Array]:
    """Images to train on and to calibrate on."""
    order = np.random.default_rng(0).permutation(len(labels))
    return order[: scorer.images], order[scorer.images : scorer.images + scorer.calibration]


def scorer_run(scorer: Scorer, images: Images, device: str) -> ImageRun:
    """The training of the scorer."""
    labels = binary_labels(images.train_labels, SETS[scorer.data].positives)
    rows, _ = scorer_rows(scorer, labels)
    return ImageRun(
        PartialLabel(),
        torch.from_numpy(images.train[rows]),
        torch.ones(len(rows), dtype=torch.int64),
        torch.from_numpy(np.eye(2, dtype=np.int64)[labels[rows]]),
        num_classes=2,
        recipe=scorer.recipe,
        device=device,
        flip=scorer.data in MIRRORED,
    )


def write_scores(folder: Path, scorer: Scorer, run: ImageRun, images: Images) -> dict[str, Any]:
    """Calibrate the trained scorer, keep its scores, and say how good they are."""
    labels = torch.from_numpy(binary_labels(images.train_labels, SETS[scorer.data].positives))
    used, calibration = (torch.from_numpy(rows) for rows in scorer_rows(scorer, labels.numpy()))
    log_prob = run.predict(torch.from_numpy(images.train)).double().log()  # (N, 2)

    def right(logits: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits, 1).gather(1, labels[calibration, None])[:, 0]

    temperature = fit_temperature(right, log_prob[calibration])
    scores = torch.softmax(log_prob / temperature, 1)[:, 1]
    own = torch.zeros(len(labels), dtype=torch.bool)
    own[used] = own[calibration] = True
    correct = (scores > 0.5) == (labels == 1)
    facts = {
        "trained on": len(used),
        "calibrated on": len(calibration),
        "temperature": temperature,
        "accuracy on the other images": float(100 * correct[~own].double().mean()),
        "mean confidence on the other images": float(100 * torch.maximum(scores, 1 - scores)[~own].mean()),
        "network": scorer.recipe.backbone,
        "epochs": scorer.recipe.epochs,
        "fingerprint": scorer.fingerprint,
    }
    scores = scores.masked_fill(own, torch.nan).float()
    write_checkpoint({"scores": scores, "facts": facts, "run": run.state_dict()}, scorer_path(folder, scorer))
    return facts
