"""Built-in networks: `features(x)` (N, E) and `forward(x)` (N, C) for tables and images."""

from fastbus.models.backbone import Backbone
from fastbus.models.build import BACKBONES, build_backbone, describe

__all__ = ["BACKBONES", "Backbone", "build_backbone", "describe"]
