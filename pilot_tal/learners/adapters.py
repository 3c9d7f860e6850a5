"""Bottlenecks parallel to the MLPs of the frozen ViT, for MOS, RanPAC and EASE."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilot_tal.backbone import BlockExtras
from pilot_tal.learners.base import Learner
from pilot_tal.learners.config import TrainedConfig
from pilot_tal.schema import Rule


@dataclass(frozen=True)
class AdapterConfig(TrainedConfig):
    """What the learners with adapters share."""

    ffn_num: Annotated[int, Rule("width of an adapter", 1, 10_000)] = 64
    adapter_scale: Annotated[float, Rule("factor of an adapter's output", 0, 1000)] = 0.1
    adapter_dropout: Annotated[float, Rule("dropout inside an adapter", 0, below=1)] = 0.1


class AdapterSet(nn.Module):
    """One adapter in every block; each of the four tensors is stacked over the blocks. A new one adds nothing."""

    def __init__(self, depth: int, dim: int, width: int):
        super().__init__()
        down = torch.empty(depth, width, dim).uniform_(-1 / math.sqrt(dim), 1 / math.sqrt(dim))
        zeros = (torch.zeros(depth, width), torch.zeros(depth, dim, width), torch.zeros(depth, dim))
        self.parts = nn.ParameterList([down, *zeros])


def named_adapters(adapters: nn.Module, pattern: str) -> dict[str, Tensor]:
    """The tensors of an adapter set under LAMDA-PILOT's names; `{}` in the pattern is the block."""
    names = ("down_proj.weight", "down_proj.bias", "up_proj.weight", "up_proj.bias")
    return {
        f"{pattern.format(block)}.{name}": part[block]
        for name, part in zip(names, adapters.parameters(), strict=True)
        for block in range(len(part))
    }


class AdapterLearner(Learner):
    """A learner whose features come from the frozen ViT with adapters."""

    config: AdapterConfig

    def new_adapters(self) -> AdapterSet:
        """Fresh adapters for every block."""
        return AdapterSet(self.backbone.depth, self.backbone.dim, self.config.ffn_num)

    def features(self, tokens: Tensor, parts: Sequence[Tensor], dropout: bool = False) -> Tensor:
        """CLS features [B, dim] under an adapter set."""
        return self.backbone.run(tokens, self.adapter_extras(parts, dropout))[:, 0]

    def adapter_extras(self, parts: Sequence[Tensor], dropout: bool = False) -> dict[int, BlockExtras]:
        """What an adapter set adds to each block."""
        scale, drop = self.config.adapter_scale, self.config.adapter_dropout if dropout else 0.0

        def adapter(down: Tensor, down_bias: Tensor, up: Tensor, up_bias: Tensor) -> Callable[[Tensor], Tensor]:
            def apply(x: Tensor) -> Tensor:
                hidden = F.dropout(F.relu(F.linear(x, down, down_bias)), drop, training=drop > 0)
                return scale * F.linear(hidden, up, up_bias)

            return apply

        blocks = zip(*(part.unbind(0) for part in parts), strict=True)
        return {i: BlockExtras(mlp_adapter=adapter(*tensors)) for i, tensors in enumerate(blocks)}

    def tensors_replaced(self) -> None:
        """Features kept under the old adapters are void."""
        self.cache.clear()
