"""Picking prompts from a pool by their keys, for L2P and DualPrompt."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenViT
from pilot_tal.learners.base import Learner, named_layer, vit_head
from pilot_tal.learners.config import MethodConfig, TrainedConfig
from pilot_tal.schema import Rule


@dataclass(frozen=True)
class PoolConfig(TrainedConfig):
    """What L2P and DualPrompt share: a pool of prompts, picked by their keys."""

    size: Annotated[int, Rule("prompts in the pool", 1, 10_000)] = 10
    length: Annotated[int, Rule("tokens of a prompt", 1, 1000)] = 5
    top_k: Annotated[int, Rule("prompts of a sample, at most size", 1, 10_000)] = 5
    pull_constraint_coeff: Annotated[float, Rule("weight of the pull of picked keys to the queries", 0, 1000)] = 0.1

    former: ClassVar = {
        **{"head_type": "prompt", "embedding_key": "cls", "prompt_key_init": "uniform", "batchwise_prompt": True},
        **{"use_prompt_mask": False, "shared_prompt_pool": False, "shared_prompt_key": False, "pull_constraint": True},
    }

    def __post_init__(self):
        super().__post_init__()
        if self.top_k > self.size:
            raise UserError(f"top_k must be at most the pool's size {self.size}, got {self.top_k}")


def l2_normalized(x: Tensor) -> Tensor:
    """Rows scaled to length one; the squared length counts as at least 1e-12."""
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True).clamp_min(1e-12))


def vote(ids: Tensor, pool_size: int) -> Tensor:
    """The k prompts picked most often in a batch, from each sample's own picks [B, k].

    The counts are in the order of LAMDA-PILOT (picked prompts by id, then zeros up to the pool's size), because
    the way `topk` breaks ties depends on places and length. No host synchronisation.
    """
    counts = torch.zeros(pool_size, dtype=torch.long, device=ids.device)
    counts.scatter_add_(0, ids.flatten(), torch.ones_like(ids).flatten())
    order = torch.argsort((counts == 0).long(), stable=True)
    return order[torch.topk(counts[order], ids.shape[1]).indices]


def pick(keys: Tensor, query: Tensor, top_k: int, batchwise: bool, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Picks prompts and measures how well their keys fit.

    Args:
        keys: Prompt keys [pool, dim].
        query: Query features [B, dim], no gradient.
        top_k: Prompts a sample.
        batchwise: One set for the whole batch, by vote.
        mask: Ids [k] to use whatever the similarity, or None.

    Returns:
        Ids, [k] if they are common to the batch and [B, k] if not, and the mean over the batch of the summed
        similarities of the picked keys.
    """
    keys, query = l2_normalized(keys), l2_normalized(query)
    if mask is not None:
        ids = mask
    else:
        ids = torch.topk(query @ keys.detach().t(), top_k, dim=1).indices
        if batchwise:
            ids = vote(ids, len(keys))
    picked = keys[ids] if ids.ndim == 2 else keys[ids].unsqueeze(0)
    return ids, (picked * query.unsqueeze(1)).sum() / query.shape[0]


class PoolLearner(Learner):
    """A learner with a pool of prompts; a subclass implements `prompted`."""

    linear_classifier = True
    reschedules = False  # see Learner.learning_rate
    config: PoolConfig
    prompt: nn.Parameter

    def __init__(self, backbone: FrozenViT, config: PoolConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.pool_size = config.size
        self.add_prompts()
        self.prompt_key = nn.Parameter(torch.empty(config.size, backbone.dim).uniform_(-1, 1))
        self.head = vit_head(backbone.dim, num_classes)

    @classmethod
    def mixes_batch(cls, config: MethodConfig, fidelity: str) -> bool:
        """With fidelity pilot, by vote and by the layout of DualPrompt's prefixes."""
        return fidelity == "pilot"

    def add_prompts(self) -> None:
        """Draws the prompts."""
        raise NotImplementedError

    def prompted(self, tokens: Tensor, ids: Tensor) -> Tensor:
        """Features [B, dim] of embedded tokens with the prompts of these ids, [k] or [B, k]."""
        raise NotImplementedError

    def own_prompts(self, task: int) -> slice | None:
        """The prompts that only one task trains, if there are such."""
        return None

    def select(self, query: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """Ids of the prompts to use, as `pick` returns them, and the similarity of their keys."""
        own = self.own_prompts(self.task.index) if training else None
        mask = None if own is None else torch.arange(own.start, own.stop, device=query.device)
        ids, similarity = pick(self.prompt_key, query, self.config.top_k, self.fidelity == "pilot", mask)
        if not training:
            self.picked = ids
        return ids, similarity

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; the auxiliary loss pulls the picked keys towards the queries."""
        tokens = self.backbone.embed(x)
        ids, similarity = self.select(self.backbone.query(tokens), training=True)
        return self.task_logits(self.prompted(tokens, ids), self.head), -self.config.pull_constraint_coeff * similarity

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits of all classes seen."""
        tokens = self.backbone.embed(x)
        chosen, _ = self.select(self.cached_query(tokens, ids), training=False)
        return self.seen_logits(self.prompted(tokens, chosen), self.head)

    def named_tensors(self) -> dict[str, Tensor]:
        """The classifier; subclasses add prompts and keys."""
        return named_layer("backbone.head", self.head)
