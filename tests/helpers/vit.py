"""A random ViT of width 16 for images of 8 pixels, and its tensors."""

import torch

import pilot_tal._torchvision  # noqa: F401
from pilot_tal.backbone import FrozenViT


def empty_vit(**options):
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 6, "num_heads": 2, "num_classes": 0}
    return VisionTransformer(**{**shape, **options})


def tiny_vit(seed: int = 0, **options) -> FrozenViT:
    """Weights large enough for the tokens to differ."""
    vit = empty_vit(**options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(centre + 0.2 * torch.randn(parameter.shape, generator=generator))
    return FrozenViT(vit, "tiny")


def state_of(backbone: FrozenViT) -> dict[str, torch.Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in backbone.vit.state_dict().items()}
