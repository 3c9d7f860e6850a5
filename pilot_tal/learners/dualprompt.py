"""DualPrompt: G-prompts for all tasks and one E-prompt a task, as key/value prefixes of the first blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.backbone import BlockExtras, FrozenViT
from pilot_tal.learners.base import vit_head
from pilot_tal.learners.config import Blocks, MethodConfig
from pilot_tal.learners.pool import PoolConfig, PoolLearner
from pilot_tal.learners.registry import LEARNERS
from pilot_tal.schema import Rule


@dataclass(frozen=True)
class DualPromptConfig(PoolConfig):
    """DualPrompt's own settings."""

    head_type: Annotated[str, Rule("what the classifier sees", choices=("token",))] = "token"
    top_k: Annotated[int, Rule("prompts of a sample, at most size", 1, 10_000)] = 1
    use_prompt_mask: Annotated[bool, Rule("task t trains prompts of its own")] = True
    shared_prompt_pool: Annotated[bool, Rule("a task's prompts start as those of the task before")] = True
    g_prompt_length: Annotated[int, Rule("tokens of a G-prompt", 1, 1000)] = 5
    g_prompt_layer_idx: Blocks = (0, 1)
    e_prompt_layer_idx: Blocks = (2, 3, 4)
    use_prefix_tune_for_e_prompt: Annotated[bool, Rule("false: E-prompts are tokens before the sequence")] = True

    def __post_init__(self):
        super().__post_init__()
        both = sorted({*self.g_prompt_layer_idx} & {*self.e_prompt_layer_idx})
        if both:
            raise UserError(
                "a block takes a G-prompt or an E-prompt, not both, but g_prompt_layer_idx and e_prompt_layer_idx name "
                f"{both}"
            )


def e_prefixes(prompt: Tensor, ids: Tensor, batch: int, mixed: bool) -> Tensor:
    """Prefixes [layers, B, 2, k * length, heads, head_dim] of picked E-prompts; index 2 is key, value.

    Args:
        prompt: The pool [layers, 2, size, length, heads, head_dim].
        ids: Picked prompts, [k] for the whole batch or [B, k].
        batch: B.
        mixed: LAMDA-PILOT's layout. It reshapes [2, B] to [B, 2] instead of swapping the axes, so that the first
            half of a batch gets slot 0 as key and as value, the second half slot 1 (and, with picks that differ
            between samples, prompts of other samples).
    """
    picked = prompt[:, :, ids.expand(batch, -1)].flatten(3, 4)  # [layers, 2, B, k * length, heads, head_dim]
    if mixed:
        return picked.reshape(picked.shape[0], batch, 2, *picked.shape[3:])
    return picked.transpose(1, 2)


@LEARNERS.register
class DualPrompt(PoolLearner):
    """DualPrompt (Wang et al., ECCV 2022)."""

    name, title = "dualprompt", "DualPrompt"
    config_class = DualPromptConfig
    linear_classifier = True
    splits_pool = True

    config: DualPromptConfig

    @classmethod
    def mixes_batch(cls, config: MethodConfig, fidelity: str) -> bool:
        """With fidelity pilot, by vote or by the layout of the prefixes (see `e_prefixes`)."""
        mixed = fidelity == "pilot" and cast(DualPromptConfig, config).use_prefix_tune_for_e_prompt
        return mixed or super().mixes_batch(config, fidelity)

    @property
    def pool_axis(self) -> int:
        """Prefixes have an axis for key and value before that of the pool, tokens have not."""
        return 2 if self.config.use_prefix_tune_for_e_prompt else 1

    def __init__(self, backbone: FrozenViT, config: DualPromptConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        heads = (backbone.num_heads, backbone.head_dim)
        g_layers, e_layers = len(config.g_prompt_layer_idx), len(config.e_prompt_layer_idx)
        self.g_prompt = self.init_pool(g_layers, 2, config.g_prompt_length, *heads)
        if config.use_prefix_tune_for_e_prompt:
            self.prompt = self.init_pool(e_layers, 2, config.size, config.length, *heads)
        else:
            self.prompt = self.init_pool(e_layers, config.size, config.length, backbone.dim)
        self.prompt_key = self.init_pool(config.size, backbone.dim)
        self.head = vit_head(backbone.dim, num_classes)
        # Blocks take the G- and E-prompts in their order.
        depth = range(backbone.depth)
        self.g_blocks = [block for block in depth if block in config.g_prompt_layer_idx]
        self.e_blocks = [block for block in depth if block in config.e_prompt_layer_idx]

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; the auxiliary loss pulls the picked keys towards the queries."""
        tokens = self.backbone.embed(x)
        features, similarity = self._features(tokens, lambda: self.backbone.query(tokens), training=True)
        return self.task_logits(features, self.head), self.pull_loss(similarity)

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits of all classes seen."""
        tokens = self.backbone.embed(x)
        features, _ = self._features(tokens, lambda: self.cached_query(tokens, ids), training=False)
        return self.seen_logits(features, self.head)

    def _features(self, tokens: Tensor, query: Callable[[], Tensor], training: bool) -> tuple[Tensor, Tensor]:
        chosen, similarity = self.select(tokens, query, training)
        extras = {b: _prefix(self.g_prompt[i].unsqueeze(0)) for i, b in enumerate(self.g_blocks)}
        if self.config.use_prefix_tune_for_e_prompt:
            prefixes = e_prefixes(self.prompt, chosen, tokens.shape[0], mixed=self.fidelity == "pilot")
            extras |= {b: _prefix(prefixes[i]) for i, b in enumerate(self.e_blocks)}
            return self.backbone.run(tokens, extras)[:, 0], similarity
        prompts = self.prompt[:, chosen.expand(tokens.shape[0], -1)].flatten(2, 3)
        extras |= {b: BlockExtras(tokens=prompts[i]) for i, b in enumerate(self.e_blocks)}
        cls = len(self.e_blocks) * prompts.shape[2]  # every E-block puts its tokens before CLS
        return self.backbone.run(tokens, extras, keep=slice(cls, cls + 1))[:, 0], similarity

    def named_tensors(self) -> dict[str, Tensor]:
        """Prompts, keys and classifier."""
        return {
            "backbone.g_prompt": self.g_prompt,
            "backbone.e_prompt.prompt": self.prompt,
            "backbone.e_prompt.prompt_key": self.prompt_key,
            "backbone.head.weight": self.head.weight,
            "backbone.head.bias": self.head.bias,
        }


def _prefix(prompt: Tensor) -> BlockExtras:
    """A prefix from [B or 1, 2, m, heads, head_dim]."""
    key, value = prompt.transpose(2, 3).unbind(dim=1)
    return BlockExtras(prefix=(key, value))
