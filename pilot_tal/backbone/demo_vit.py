"""The demo's backbone: a small ViT that ships with the project, and where its weights are.

`scripts/pretrain_demo_vit.py` made the weights; `assets/demo_vit.log.json` beside them says how and how well.
"""

from pathlib import Path

# Arguments of timm's VisionTransformer, the others as in timm. Inputs are RGB in [0, 1], not normalised.
DEMO_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 5, "num_heads": 2}


def demo_vit_path() -> Path:
    """The safetensors file of the pretrained weights: timm's names, float32, no classifier."""
    return Path(__file__).parent / "assets" / "demo_vit.safetensors"
