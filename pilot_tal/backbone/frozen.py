"""A frozen network that maps images to features: all that prototype and closed-form methods need."""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from data_lt.errors import UserError, sentence


def state_checksum(state: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, shapes and float32 values of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        values = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(f"{name}{tuple(values.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()


class FrozenBackbone(nn.Module):
    """A network whose tensors never change and never get a gradient.

    Attributes:
        network: The module; it maps images [B, 3, height, width] to features [B, dim].
        name: As in a run's record.
        img_size: Height and width of the images.
        dim: Width of the features of one layer.
        depth: Number of layers that `features` can return.
        tokens: Positions at which it computes `dim` values, for estimates of memory.
    """

    network: Any
    depth = 1

    def __init__(self, network: Any, name: str, img_size: tuple[int, int]):
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.name, self.img_size = name, img_size
        self.dim = self._find_dim()
        self.tokens = max(1, img_size[0] * img_size[1] // 128)  # a CNN: dim / 8 channels at a quarter of each side

    def _find_dim(self) -> int:
        """Width of the features, from two blank images."""
        try:
            with torch.no_grad():
                features = self.network(torch.zeros(2, 3, *self.img_size))
        except Exception as error:
            raise UserError(
                f"{self.name} does not take images [2, 3, {self.img_size[0]}, {self.img_size[1]}]: "
                f"{sentence(error)[:120]}; set img_size"
            ) from error
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
            shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise UserError(f"{self.name} must map images to features [images, dim]; for 2 images it returns {shape}")
        return features.shape[1]

    def train(self, mode: bool = True) -> "FrozenBackbone":
        """Stays in evaluation mode: a frozen network has no training behaviour."""
        return super().train(False)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the network's tensors."""
        return state_checksum(self.network.state_dict())

    @torch.no_grad()
    def features(self, x: Tensor, layers: int = 1) -> Tensor:
        """Features [B, 1, dim] of images: only the last layer, because other layers differ in width."""
        self.check_images(x)
        self.check_layers(layers)
        return self.network(x).unsqueeze(1)

    def check_layers(self, layers: int) -> None:
        """Raises a UserError for a number of layers that the network does not have."""
        if not 1 <= layers <= self.depth:
            raise UserError(f"layers must be from 1 to {self.depth}, the layers of {self.name}, got {layers}")

    def check_images(self, x: Tensor) -> None:
        """Raises a UserError for images of another shape."""
        if x.ndim != 4 or tuple(x.shape[-2:]) != self.img_size:
            raise UserError(
                f"{self.name} takes images [B, 3, {self.img_size[0]}, {self.img_size[1]}], got {list(x.shape)}"
            )
