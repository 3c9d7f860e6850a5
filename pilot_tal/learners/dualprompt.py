"""DualPrompt: G-prompts for all tasks and one E-prompt a task, as key/value prefixes of the first blocks."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.backbone import BlockExtras
from pilot_tal.learners.base import LEARNERS
from pilot_tal.learners.config import Blocks
from pilot_tal.learners.pool import PoolConfig, PoolLearner
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@dataclass(frozen=True)
class DualPromptConfig(PoolConfig):
    """DualPrompt's own settings."""

    top_k: Annotated[int, Rule("prompts of a sample, at most size", 1, 10_000)] = 1
    g_prompt_length: Annotated[int, Rule("tokens of a G-prompt", 1, 1000)] = 5
    g_prompt_layer_idx: Blocks = (0, 1)
    e_prompt_layer_idx: Blocks = (2, 3, 4)

    former: ClassVar = {
        **PoolConfig.former,
        **{"head_type": "token", "use_prompt_mask": True, "shared_prompt_pool": True},
        **{"use_prefix_tune_for_e_prompt": True},
    }

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
    splits_pool = True

    config: DualPromptConfig

    def add_prompts(self) -> None:
        """G-prompts [layers, 2, length, heads, head_dim] and E-prompts [layers, 2, size, length, heads, head_dim]."""
        config, heads = self.config, (self.backbone.num_heads, self.backbone.head_dim)
        g_blocks, e_blocks = config.g_prompt_layer_idx, config.e_prompt_layer_idx
        g_shape = len(g_blocks), 2, config.g_prompt_length, *heads
        self.g_prompt = nn.Parameter(torch.empty(g_shape).uniform_(-1, 1))
        e_shape = len(e_blocks), 2, config.size, config.length, *heads
        self.prompt = nn.Parameter(torch.empty(e_shape).uniform_(-1, 1))
        # Blocks take the G- and E-prompts in their order.
        depth = range(self.backbone.depth)
        self.g_blocks, self.e_blocks = ([b for b in depth if b in blocks] for blocks in (g_blocks, e_blocks))

    def own_prompts(self, task: int) -> slice | None:
        """Task t trains the t-th `top_k` prompts, until the pool is used up."""
        first, stop = task * self.config.top_k, (task + 1) * self.config.top_k
        return slice(first, stop) if stop <= self.config.size else None

    @torch.no_grad()
    def begin_task(self, task: TaskInfo) -> None:
        """Starts the task's prompts from those of the task before."""
        super().begin_task(task)
        own = self.own_prompts(task.index)
        if task.index > 0 and own is not None:
            self.prompt[:, :, own] = self.prompt[:, :, self.own_prompts(task.index - 1)].clone()

    def prompted(self, tokens: Tensor, ids: Tensor) -> Tensor:
        """CLS with the G-prompts and the picked E-prompts."""
        prefixes = e_prefixes(self.prompt, ids, tokens.shape[0], mixed=self.fidelity == "pilot")
        extras = {block: _prefix(self.g_prompt[i].unsqueeze(0)) for i, block in enumerate(self.g_blocks)}
        extras |= {block: _prefix(prefixes[i]) for i, block in enumerate(self.e_blocks)}
        return self.backbone.run(tokens, extras)[:, 0]

    def named_tensors(self) -> dict[str, Tensor]:
        """Prompts, keys and classifier."""
        prompts = {"backbone.e_prompt.prompt": self.prompt, "backbone.e_prompt.prompt_key": self.prompt_key}
        return {"backbone.g_prompt": self.g_prompt} | prompts | super().named_tensors()


def _prefix(prompt: Tensor) -> BlockExtras:
    """A prefix from [B or 1, 2, m, heads, head_dim]."""
    key, value = prompt.transpose(2, 3).unbind(dim=1)
    return BlockExtras(prefix=(key, value))
