"""Makes the method × backbone table of docs/backbones.md: every pair is run for a few steps with random weights."""

import tempfile
from pathlib import Path
from typing import Any

from torch import nn

import pilot_tal as pt
from pilot_tal.backbone.load import register_backbone
from pilot_tal.config.settings import method_config

PAGE = Path(__file__).parents[1] / "docs" / "backbones.md"
START, END = "<!-- table: scripts/backbones_table.py -->\n", "<!-- end of table -->\n"
MODULE = "an nn.Module"
# Family: a timm model of it, small, and the side of the images, small too.
BACKBONES = {
    "ViT, DeiT, DINO, MAE": ("deit_tiny_patch16_224", 32),
    "DeiT, distilled": ("deit_tiny_distilled_patch16_224", 32),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", 28),
    "DINOv3": ("vit_tiny_patch16_dinov3_qkvb", 32),
    "EVA-02": ("eva02_tiny_patch14_224", 28),
    "CLIP ViT": ("vit_xsmall_patch16_clip_224", 32),
    "SigLIP": ("vit_base_patch32_siglip_256", 64),
    "BEiT": ("beit_base_patch16_224", 32),
    "Swin": ("swin_tiny_patch4_window7_224", 56),
    "ConvNeXt": ("convnext_atto", 64),
    "ResNet": ("resnet10t", 64),
    MODULE: (MODULE, 16),
}
SIZES = {"classes": 6, "tasks": 2, "n_max": 6, "n_min": 2, "batch_size": 4}
SMALL: dict[str, Any] = SIZES | {"device": "cpu", "threads": 1}


def cell(folder: str, method: str, backbone: str, img_size: int) -> str:
    """`yes`, `no`, or the setting with which the method trains on the backbone for a few steps."""
    own: dict[str, Any] = {} if backbone == MODULE else {"weights": "random"}
    own |= {"backbone": backbone, "img_size": img_size, "data_root": folder, "output": folder}
    tries: dict[str, dict[str, Any]] = {"yes": {}}
    if hasattr(method_config(method), "adapter"):
        tries["`adapter=false`"] = {"adapter": False}
    for answer, settings in tries.items():
        try:
            pt.run(method, "demo_lt", quick=True, **own, **SMALL, **settings)
            return answer
        except pt.UserError as error:
            if "ViT with a CLS token" not in str(error):
                raise
    return "no"


def table(methods: list[str], families: list[str]) -> str:
    """The table in Markdown; methods that work on the same backbones share a column."""
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    register_backbone(lambda: network, MODULE)
    names = [f"`{name}`" if name != MODULE else "" for name, _ in (BACKBONES[family] for family in families)]
    columns: dict[tuple[str, ...], list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for method in methods:
            found = tuple(cell(folder, method, *BACKBONES[family]) for family in families)
            columns.setdefault(found, []).append(f"`{method}`")
    rows = [["backbone", "tested as", *map(", ".join, columns.values())], ["---"] * (len(columns) + 2)]
    rows += map(list, zip(families, names, *columns, strict=True))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    made = table(pt.list_methods(), list(BACKBONES))
    PAGE.write_text(before + START + made + END + rest.partition(END)[2], encoding="utf-8")
