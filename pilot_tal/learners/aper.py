"""APER: prototypes on the frozen ViT's features beside those of the ViT with an adapter of the first task."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pilot_tal.learners.base import LEARNERS
from pilot_tal.learners.closed_form import ClosedFormConfig
from pilot_tal.learners.simplecil import Prototypes
from pilot_tal.schema import Rule


@dataclass(frozen=True)
class APERConfig(ClosedFormConfig):
    """APER's own settings."""

    adapter: Annotated[bool, Rule("train an adapter in the first task; false: as SimpleCIL")] = True


@LEARNERS.register
class APER(Prototypes):
    """APER with an adapter (Zhou et al., IJCV 2024)."""

    name, title = "aper", "APER"
    config_class = APERConfig

    config: APERConfig

    @property
    def feature_dim(self) -> int:
        """Both networks side by side."""
        return (1 + self.config.adapter) * self.backbone.dim

    @torch.no_grad()
    def embedding(self, x: Tensor) -> Tensor:
        """Features of the frozen ViT, then those with the adapter; two forward passes."""
        adapted = super().embedding(x)
        return torch.cat((self.backbone.features(x)[:, 0], adapted), dim=1) if self.config.adapter else adapted

    def settle_features(self) -> None:
        """Ends the training of the adapter; the prototypes have a new scale."""
        super().settle_features()
        self.sigma = torch.ones_like(self.sigma)

    def named_tensors(self) -> dict[str, Tensor]:
        """LAMDA-PILOT holds both networks in a list once the first task is trained."""
        named, place = super().named_tensors(), "backbone" if self.head is not None else "backbones.1"
        return {name.replace("backbone.blocks", f"{place}.blocks"): tensor for name, tensor in named.items()}
