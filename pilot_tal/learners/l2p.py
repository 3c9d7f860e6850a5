"""L2P: a pool of prompt tokens, picked by their keys, put between CLS and the patches at the input."""

import torch
from torch import Tensor, nn

from pilot_tal.learners.base import LEARNERS
from pilot_tal.learners.pool import PoolConfig, PoolLearner


@LEARNERS.register
class L2P(PoolLearner):
    """Learning to Prompt (Wang et al., CVPR 2022)."""

    name, title = "l2p", "L2P"
    config_class = PoolConfig

    def add_prompts(self) -> None:
        """Prompts [size, length, dim]."""
        shape = self.config.size, self.config.length, self.backbone.dim
        self.prompt = nn.Parameter(torch.empty(shape).uniform_(-1, 1))

    def prompted(self, tokens: Tensor, ids: Tensor) -> Tensor:
        """The mean of the prompts' output tokens; the order is [CLS, prompts, patches]."""
        prompts = self.prompt[ids].flatten(-3, -2)
        tokens = self.backbone.insert_prompts(tokens, prompts.expand(tokens.shape[0], -1, -1))
        return self.backbone.run(tokens, keep=slice(1, 1 + prompts.shape[-2])).mean(dim=1)

    def named_tensors(self) -> dict[str, Tensor]:
        """Prompts, keys and classifier."""
        prompts = {"backbone.prompt.prompt": self.prompt, "backbone.prompt.prompt_key": self.prompt_key}
        return prompts | super().named_tensors()
