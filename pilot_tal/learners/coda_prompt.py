"""CODA-Prompt: prefixes composed from components, weighted by an attended query; every task adds components."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.backbone import BlockExtras, FrozenViT
from pilot_tal.learners.base import LEARNERS, Learner, named_layer
from pilot_tal.learners.config import Blocks, TrainedConfig
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@dataclass(frozen=True)
class CODAPromptConfig(TrainedConfig):
    """CODA-Prompt's own settings."""

    prompt_param: Annotated[
        tuple[float, ...], Rule("[components in the pool, length, weight of the orthogonality term]", 0, 100_000)
    ] = (100.0, 8.0, 0.0)
    prompt_layer_idx: Blocks = (0, 1, 2, 3, 4)
    drop_last: Annotated[bool, Rule("leave out a last incomplete batch")] = True

    def __post_init__(self):
        super().__post_init__()
        pool, length, weight = self.prompt_param if len(self.prompt_param) == 3 else (0, 0, 0)
        if pool < 1 or length < 2 or pool % 1 or length % 2 or weight < 0:
            raise UserError(
                "prompt_param must be [pool size >= 1, even length >= 2, orthogonality weight >= 0], "
                f"got {list(self.prompt_param)}"
            )


def gram_schmidt(rows: Tensor, first: int, stop: int) -> Tensor:
    """New unit rows first … stop-1, drawn at random and orthogonalised against all rows before them.

    Rows before `first` are kept as trained, rows from `stop` on are zero. Classical Gram-Schmidt: a drawn vector
    is projected on the kept rows and on the new, still unscaled ones; only then the new ones are scaled.
    """
    shape = rows.shape
    rows = rows.detach().flatten(1).clone()
    rows[first:] = 0
    norms = rows[:first].square().sum(dim=1)
    if bool((norms < 1e-8).any()):
        raise UserError("a trained prompt component is zero, so no new one can be made orthogonal to it")
    for row in range(first, stop):
        drawn, before = torch.randn_like(rows[row]), rows[:row]
        rows[row] = drawn - (before @ drawn / before.square().sum(dim=1)) @ before
        if bool(rows[row].square().sum() < 1e-8):
            raise UserError(f"no room for {stop} orthogonal components in {rows.shape[1]} dimensions")
    rows[first:stop] /= rows[first:stop].norm(dim=1, keepdim=True)
    return rows.view(shape)


def orthogonality(rows: Tensor) -> Tensor:
    """Mean squared distance of the Gram matrix from the identity."""
    rows = rows.flatten(1)
    return (rows @ rows.t() - torch.eye(len(rows), device=rows.device)).square().mean()


@LEARNERS.register
class CODAPrompt(Learner):
    """CODA-Prompt (Smith et al., CVPR 2023)."""

    name, title = "coda_prompt", "CODA-Prompt"
    config_class = CODAPromptConfig
    linear_classifier = True
    splits_pool = True

    config: CODAPromptConfig

    def __init__(self, backbone: FrozenViT, config: CODAPromptConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        pool, length = int(config.prompt_param[0]), int(config.prompt_param[1])
        self.ortho_weight = float(config.prompt_param[2])
        self.per_task = pool // num_tasks
        if self.per_task < 1:
            raise UserError(f"prompt_param: a pool of {pool} components is too small for {num_tasks} tasks")
        layers, dim = len(config.prompt_layer_idx), backbone.dim
        # One tensor a layer, as only the layers inside the ViT get gradients (and weight decay).
        self.prompts = nn.ParameterList(torch.zeros(pool, length, dim) for _ in range(layers))
        self.keys = nn.ParameterList(torch.zeros(pool, dim) for _ in range(layers))
        self.attentions = nn.ParameterList(torch.zeros(pool, dim) for _ in range(layers))
        self.fc = nn.Linear(dim, num_classes)
        self._draw(0)

    @torch.no_grad()
    def _draw(self, task: int) -> None:
        first, stop = task * self.per_task, (task + 1) * self.per_task
        for parameter in (*self.keys, *self.attentions, *self.prompts):
            parameter.copy_(gram_schmidt(parameter, first, stop))

    def begin_task(self, task: TaskInfo) -> None:
        """Draws the new task's components; those of the first task were drawn at construction."""
        super().begin_task(task)
        if task.index > 0:
            self._draw(task.index)

    def learning_rate(self, base: float, epoch: int, epochs: int) -> float:
        """CODA-Prompt's own cosine: it starts one epoch late and ends just above zero, whatever `min_lr` says."""
        cosine = self.config.scheduler == "cosine"
        return base * coda_factor(epoch, epochs) if cosine else super().learning_rate(base, epoch, epochs)

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; the auxiliary loss keeps the components orthogonal, if asked for."""
        tokens = self.backbone.embed(x)
        query = self.backbone.query(tokens)
        old, stop = self.task.index * self.per_task, (self.task.index + 1) * self.per_task
        extras: dict[int, BlockExtras] = {}
        penalty = query.new_zeros(())
        for block, tensors in self._layers():
            prompts, keys, attentions = (torch.cat((rows[:old].detach(), rows[old:stop])) for rows in tensors)
            extras[block] = self._prefix(query, prompts, keys, attentions)
            if self.ortho_weight > 0:
                parts = orthogonality(keys) + orthogonality(attentions) + orthogonality(prompts)
                penalty = penalty + self.ortho_weight * parts
        features = self.backbone.run(tokens, extras)[:, 0]
        return self.task_logits(features, self.fc), penalty

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits of all classes seen, with the components of all tasks so far."""
        tokens = self.backbone.embed(x)
        query = self.cached_query(tokens, ids)
        used = len(self.stops) * self.per_task
        extras = {block: self._prefix(query, *(rows[:used] for rows in tensors)) for block, tensors in self._layers()}
        return self.seen_logits(self.backbone.run(tokens, extras)[:, 0], self.fc)

    def _layers(self) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor]]]:
        """Blocks with a prompt that the ViT has, with their components, keys and attention vectors."""
        for block, *tensors in zip(self.config.prompt_layer_idx, self.prompts, self.keys, self.attentions, strict=True):
            if block < self.backbone.depth:
                yield block, tuple(tensors)

    def _prefix(self, query: Tensor, prompts: Tensor, keys: Tensor, attentions: Tensor) -> BlockExtras:
        """The sum of components weighted by cos(q ∘ A, K), its first half as keys, its second as values."""
        weights = attended_cosine(query, keys, attentions)
        prompt = torch.einsum("br,rld->bld", weights, prompts)
        key, value = prompt.unflatten(-1, (self.backbone.num_heads, self.backbone.head_dim)).transpose(1, 2).chunk(2, 2)
        return BlockExtras(prefix=(key, value))

    def named_tensors(self) -> dict[str, Tensor]:
        """Components, keys and attention vectors of every layer, and the classifier."""
        named = named_layer("fc", self.fc)
        for index, block in enumerate(self.config.prompt_layer_idx):
            named[f"prompt.e_p_{block}"] = self.prompts[index]
            named[f"prompt.e_k_{block}"] = self.keys[index]
            named[f"prompt.e_a_{block}"] = self.attentions[index]
        return named


def attended_cosine(query: Tensor, keys: Tensor, attentions: Tensor) -> Tensor:
    """cos(q_b ∘ A_r, K_r) for all samples and rows [B, R], by two products instead of a [B, R, dim] tensor."""
    products = query @ (attentions * F.normalize(keys, dim=1)).t()
    norms = (query.square() @ attentions.square().t()).clamp_min(1e-24).sqrt()
    return products / norms


def coda_factor(epoch: int, epochs: int) -> float:
    """Share of the base learning rate in an epoch: 1, 1, then a cosine that ends just above zero."""
    return math.cos(99 * math.pi * max(epoch - 1, 0) / (200 * max(epochs - 1, 1)))
