"""Frozen networks that learners share: a ViT that takes prompts and adapters, or any network with features."""

from pilot_tal.backbone.vit import BlockExtras, FrozenBackbone, FrozenViT
from pilot_tal.backbone.weights import DEFAULT_BACKBONE, build_backbone, build_from_state

__all__ = ["DEFAULT_BACKBONE", "BlockExtras", "FrozenBackbone", "FrozenViT", "build_backbone", "build_from_state"]
