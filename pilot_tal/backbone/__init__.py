"""The frozen ViT that all learners share."""

from pilot_tal.backbone.vit import BlockExtras, FrozenViT
from pilot_tal.backbone.weights import DEFAULT_BACKBONE, build_backbone, build_from_state

__all__ = ["DEFAULT_BACKBONE", "BlockExtras", "FrozenViT", "build_backbone", "build_from_state"]
