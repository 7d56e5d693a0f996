"""Weights to begin with, learnt without any label: which two views are of one image?

A network that tells images apart whatever the view has features in which classes lie apart, and labels that say little
of each image only have to name them. The loss is decoupled contrast (Yeh et al. 2022), of cosine similarities s of 2M
views: minus that of a view and its partner, plus the log-sum-exp of those with the views of all other images.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fastbus.models.backbone import Backbone
from fastbus.supervision.incomplete import SemiSupervised
from fastbus.training.image_run import ImageRun
from fastbus.training.recipes import PRETRAIN_ROWS, Recipe
from fastbus.training.step_objective import StepInputs, StepObjective
from fastbus.training.views import Views, contrasting

# 12,500 small images of CIFAR-10, WRN-10-1, 20 passes: by 250 labels least squares on the features tells 39.1 % of the
# other training images at a temperature of .2, 40.6 % at .1 and at .07; by 50 neighbours 45.8, 47.7 and 47.8 %.
TEMPERATURE = 0.1
PROJECTED = 128  # numbers by which views are compared; what is dropped on the way to them stays in the features
RATE, WEIGHT_DECAY, WARMUP = 0.2, 2e-4, 400


class Projected(nn.Module):
    """A backbone's features and two layers that are thrown away afterwards."""

    def __init__(self, backbone: Backbone, generator: torch.Generator) -> None:
        super().__init__()
        self.backbone = backbone
        E = backbone.num_features
        self.hidden, self.projection = nn.Linear(E, E), nn.Linear(E, PROJECTED)
        with torch.no_grad():
            for layer in (self.hidden, self.projection):
                layer.weight.normal_(0, (2 / E) ** 0.5, generator=generator)
                layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.projection(self.hidden(self.backbone.features(x)).relu())
        return out


class Contrast(StepObjective):
    """Views of one image are alike, those of different images are not."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        return contrast(inputs.network(torch.cat([inputs.weak, inputs.strong])), TEMPERATURE)


def contrast(projected: Tensor, temperature: float) -> Tensor:
    """The loss of (2M, D), the second half the partners of the first."""
    M = len(projected) // 2
    unit = torch.nn.functional.normalize(projected, dim=1)
    similarity = unit @ unit.T / temperature
    partner = torch.cat([similarity.diagonal(M), similarity.diagonal(-M)])
    same = torch.eye(M, dtype=torch.bool, device=unit.device).repeat(2, 2)
    return (torch.logsumexp(similarity.masked_fill(same, -torch.inf), 1) - partner).mean()


def pretraining(network: Backbone, images: Tensor, recipe: Recipe, views: Views, seed: int, device: str,
                compiled: bool = False) -> ImageRun:  # fmt: skip
    """The run that trains a copy of `network` for the recipe's `pretrain` passes; `pretrained` takes its result."""
    rows = min(PRETRAIN_ROWS, len(images))
    plan = Recipe(
        backbone=recipe.backbone, epochs=recipe.pretrain, rows=rows, labelled_rows=0, learning_rate=RATE,
        weight_decay=WEIGHT_DECAY, warmup=WARMUP, slope=recipe.slope,
    )  # fmt: skip
    view = contrasting(views)
    return ImageRun(
        SemiSupervised(),
        images,
        torch.ones(len(images), dtype=torch.long),
        torch.full((len(images),), -1),
        num_classes=network.num_outputs,
        recipe=plan,
        seed=seed,
        device=device,
        views=Views(view, view, views.plain),
        network=Projected(copy.deepcopy(network), torch.Generator().manual_seed(seed)),
        objective=lambda run: Contrast(),
        compiled=compiled,
    )


def pretrained(run: ImageRun) -> dict[str, Tensor]:
    """The weights of the averaged backbone of a run, on the CPU."""
    final = run.training.final()
    assert isinstance(final, Projected)
    return {name: x.detach().cpu().clone() for name, x in final.backbone.state_dict().items()}


def load_features(network: Backbone, weights: dict[str, Tensor]) -> None:
    """Give a network all of these weights but those of its last layer, which keeps its own."""
    own = {name: x for name, x in network.state_dict().items() if name.startswith("classifier.")}
    network.load_state_dict(weights | own)
