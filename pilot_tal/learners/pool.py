"""Picking prompts from a pool by their keys, for L2P and DualPrompt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast

import torch
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.learners.base import Learner
from pilot_tal.learners.config import MethodConfig, TrainedConfig
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@dataclass(frozen=True)
class PoolConfig(TrainedConfig):
    """What L2P and DualPrompt share: a pool of prompts, picked by their keys."""

    size: Annotated[int, Rule("prompts in the pool", 1, 10_000)] = 10
    length: Annotated[int, Rule("tokens of a prompt", 1, 1000)] = 5
    top_k: Annotated[int, Rule("prompts of a sample, at most size", 1, 10_000)] = 5
    head_type: Annotated[str, Rule("what the classifier sees", choices=("prompt", "token", "token+prompt", "gap"))] = (
        "prompt"
    )
    embedding_key: Annotated[str, Rule("what the query is made of", choices=("cls", "mean", "max", "mean_max"))] = "cls"
    batchwise_prompt: Annotated[bool, Rule("one set voted by the batch; fidelity=fixed never does")] = True
    use_prompt_mask: Annotated[bool, Rule("task t trains prompts of its own")] = False
    shared_prompt_pool: Annotated[bool, Rule("a task's prompts start as those of the task before")] = False
    shared_prompt_key: Annotated[bool, Rule("a task's keys start as those of the task before")] = False
    prompt_key_init: Annotated[str, Rule("start of prompts and keys", choices=("uniform", "zero"))] = "uniform"
    pull_constraint: Annotated[bool, Rule("pull picked keys towards the queries")] = True
    pull_constraint_coeff: Annotated[float, Rule("weight of that pull", 0, 1000)] = 0.1

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
    similarity = (picked * query.unsqueeze(1)).sum() / query.shape[0]
    return ids, similarity


def token_statistic(tokens: Tensor, kind: str) -> Tensor:
    """A statistic [B, dim] of embedded tokens to compare with the keys: mean, max or mean_max."""
    if kind == "mean":
        return tokens.mean(dim=1)
    if kind == "max":
        return tokens.amax(dim=1)
    return tokens.amax(dim=1) + 2 * tokens.mean(dim=1)


class PoolLearner(Learner):
    """A learner with a pool of prompts: which prompts a batch gets, and what a task hands to the next one."""

    reschedules = False  # see Learner.learning_rate
    config: PoolConfig
    prompt: nn.Parameter
    prompt_key: nn.Parameter

    @classmethod
    def mixes_batch(cls, config: MethodConfig, fidelity: str) -> bool:
        """With fidelity pilot, by vote."""
        return fidelity == "pilot" and cast(PoolConfig, config).batchwise_prompt

    @property
    def pool_size(self) -> int:  # type: ignore[override]
        """Prompts in the pool."""
        return self.config.size

    @property
    def pool_axis(self) -> int:
        """Which axis of `prompt` counts the prompts."""
        return 0

    def init_pool(self, *shape: int) -> nn.Parameter:
        """A new tensor of prompts or keys: uniform in [-1, 1], or zero."""
        values = torch.zeros(shape)
        return nn.Parameter(values.uniform_(-1, 1) if self.config.prompt_key_init == "uniform" else values)

    def own_prompts(self, task: int) -> slice | None:
        """The prompts that belong to a task, or None when the pool is used up."""
        first, stop = task * self.config.top_k, (task + 1) * self.config.top_k
        return slice(first, stop) if stop <= self.config.size else None

    @torch.no_grad()
    def begin_task(self, task: TaskInfo) -> None:
        """Starts the task's prompts and keys from those of the task before, where they are shared."""
        super().begin_task(task)
        own = self.own_prompts(task.index)
        if task.index == 0 or own is None:
            return
        before = self.own_prompts(task.index - 1)
        if self.config.shared_prompt_pool:
            pool = self.prompt.movedim(self.pool_axis, 0)
            pool[own] = pool[before].clone()
        if self.config.shared_prompt_key:
            self.prompt_key[own] = self.prompt_key[before].clone()

    def select(self, embedded: Tensor, query: Callable[[], Tensor], training: bool) -> tuple[Tensor, Tensor]:
        """Ids of the prompts to use, as `pick` gives them, and the similarity of their keys.

        Args:
            embedded: Embedded tokens, for the embedding keys that are statistics of them.
            query: Gives the query feature; called only if it is the embedding key.
            training: Whether the task's own prompts are forced on the batch (`use_prompt_mask`).
        """
        config = self.config
        own = self.own_prompts(self.task.index) if training and config.use_prompt_mask else None
        mask = None if own is None else torch.arange(own.start, own.stop, device=embedded.device)
        batchwise = config.batchwise_prompt and self.fidelity == "pilot"
        vector = query() if config.embedding_key == "cls" else token_statistic(embedded, config.embedding_key)
        ids, similarity = pick(self.prompt_key, vector, config.top_k, batchwise, mask)
        if not training and not torch.compiler.is_compiling():  # an exported graph has no attributes to set
            self.picked = ids
        return ids, similarity

    def score_alone(self) -> bool:
        """Every image picks its own prompts.

        Identical to LAMDA-PILOT's code at batch size 1, and to `fixed` at any batch size.
        """
        changed, self.fidelity = self.mixes_batch(self.config, self.fidelity), "fixed"
        return changed

    def pull_loss(self, similarity: Tensor) -> Tensor:
        """The auxiliary loss that pulls the picked keys towards the queries."""
        if not self.config.pull_constraint:
            return similarity.new_zeros(())
        return -self.config.pull_constraint_coeff * similarity
