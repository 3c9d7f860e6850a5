"""L2P: a pool of prompt tokens, picked by their keys, put between CLS and the patches at the input."""

from collections.abc import Callable

import torch
from torch import Tensor

from pilot_tal.backbone import FrozenViT
from pilot_tal.learners.base import vit_head
from pilot_tal.learners.pool import PoolConfig, PoolLearner
from pilot_tal.learners.registry import LEARNERS


@LEARNERS.register
class L2P(PoolLearner):
    """Learning to Prompt (Wang et al., CVPR 2022)."""

    name, title = "l2p", "L2P"
    config_class = PoolConfig
    linear_classifier = True

    config: PoolConfig

    def __init__(self, backbone: FrozenViT, config: PoolConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.prompt = self.init_pool(config.size, config.length, backbone.dim)
        self.prompt_key = self.init_pool(config.size, backbone.dim)
        self.head = vit_head(backbone.dim, num_classes)
        tokens = config.top_k * config.length
        # Output tokens the classifier averages; the order is [CLS, prompts, patches].
        self.kept = {
            "prompt": slice(1, 1 + tokens),
            "token": slice(0, 1),
            "token+prompt": slice(0, 1 + tokens),
            "gap": slice(None),
        }[config.head_type]

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; the auxiliary loss pulls the picked keys towards the queries."""
        patches = self.backbone.patches(x)
        tokens = self.backbone.embed(x, patches)
        features, similarity = self._features(patches, tokens, lambda: self.backbone.query(tokens), training=True)
        return self.task_logits(features, self.head), self.pull_loss(similarity)

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits of all classes seen."""
        patches = self.backbone.patches(x)
        tokens = self.backbone.embed(x, patches)
        features, _ = self._features(patches, tokens, lambda: self.cached_query(tokens, ids), training=False)
        return self.seen_logits(features, self.head)

    def _features(
        self, patches: Tensor, tokens: Tensor, query: Callable[[], Tensor], training: bool
    ) -> tuple[Tensor, Tensor]:
        chosen, similarity = self.select(patches, query, training)
        prompts = self.prompt[chosen].flatten(-3, -2)
        prompted = self.backbone.insert_prompts(tokens, prompts.expand(tokens.shape[0], -1, -1))
        return self.backbone.run(prompted, keep=self.kept).mean(dim=1), similarity

    def named_tensors(self) -> dict[str, Tensor]:
        """Prompts, keys and classifier."""
        return {
            "backbone.prompt.prompt": self.prompt,
            "backbone.prompt.prompt_key": self.prompt_key,
            "backbone.head.weight": self.head.weight,
            "backbone.head.bias": self.head.bias,
        }
