"""LAE: one small module in the first blocks, learned online, and its slow copy offline; both vote."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

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
class LAEConfig(TrainedConfig):
    """LAE's own settings."""

    ema_decay: Annotated[float, Rule("memory of the offline copy", 0, 1)] = 0.9999
    num_freeze_epochs: Annotated[
        int | None, Rule("epochs with the module frozen; null: LAMDA-PILOT's share, 3 of 5", 0, 100_000)
    ] = None
    pet_cls: Annotated[str, Rule("the module", choices=("Prefix", "Adapter", "LoRA"))] = "Prefix"
    pet_length: Annotated[int, Rule("Prefix: tokens", 1, 1000)] = 10
    down_sample_dim: Annotated[int, Rule("Adapter: width", 1, 10_000)] = 5
    lora_rank: Annotated[int, Rule("LoRA: rank", 1, 10_000)] = 5
    adapt_blocks: Blocks = (0, 1, 2, 3, 4)


class Scaler(nn.Module):
    """A learned factor."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        """Scales `x`."""
        return x * self.scale


class Tokens(nn.Module):
    """Scaled tokens [length, dim] of a prefix."""

    def __init__(self, length: int, dim: int):
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(length, dim).uniform_(0, 0.01))
        self.scaler = Scaler()

    def forward(self) -> Tensor:
        """The scaled tokens."""
        return self.scaler(self.tokens)


class Prefix(nn.Module):
    """Keys and values before those of a block, with a softmax of their own."""

    def __init__(self, backbone: FrozenViT, config: LAEConfig):
        super().__init__()
        self.heads = (backbone.num_heads, backbone.head_dim)
        self.key = Tokens(config.pet_length, backbone.dim)
        self.val = Tokens(config.pet_length, backbone.dim)

    def extras(self) -> BlockExtras:
        """What it adds to a block."""
        key, value = (part().unflatten(-1, self.heads).transpose(0, 1).unsqueeze(0) for part in (self.key, self.val))
        return BlockExtras(prefix=(key, value), compensated=True)


class Adapter(nn.Module):
    """A bottleneck parallel to a block's attention."""

    def __init__(self, backbone: FrozenViT, config: LAEConfig):
        super().__init__()
        down, up = nn.Linear(backbone.dim, config.down_sample_dim), nn.Linear(config.down_sample_dim, backbone.dim)
        nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
        for tensor in (down.bias, up.weight, up.bias):
            nn.init.zeros_(tensor)
        self.layer = nn.Sequential(down, nn.GELU(), up, Scaler())

    def extras(self) -> BlockExtras:
        """What it adds to a block."""
        return BlockExtras(attention_adapter=self.layer)


class LoRA(nn.Module):
    """Low-rank additions to a block's key and value projections."""

    def __init__(self, backbone: FrozenViT, config: LAEConfig):
        super().__init__()
        rank, dim = config.lora_rank, backbone.dim
        self.lora_A = nn.ParameterList(torch.empty(rank, dim) for _ in range(2))
        self.lora_B = nn.ParameterList(torch.zeros(dim, rank) for _ in range(2))
        self.scale = nn.ModuleList(Scaler() for _ in range(2))
        for down in self.lora_A:
            nn.init.kaiming_uniform_(down, a=math.sqrt(5))

    def extras(self) -> BlockExtras:
        """What it adds to a block."""
        return BlockExtras(kv_delta=self._delta)

    def _delta(self, x: Tensor) -> Tensor:
        parts = zip(self.scale, self.lora_A, self.lora_B, strict=True)
        return torch.cat([scale(F.linear(F.linear(x, down), up)) for scale, down, up in parts], dim=-1)


PETS = {"Prefix": Prefix, "Adapter": Adapter, "LoRA": LoRA}


@LEARNERS.register
class LAE(Learner):
    """Learning-Accumulation-Ensemble (Gao et al., ICCV 2023)."""

    name, title = "lae", "LAE"
    config_class = LAEConfig
    linear_classifier = True

    reschedules = False
    config: LAEConfig

    def __init__(self, backbone: FrozenViT, config: LAEConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.blocks = [block for block in config.adapt_blocks if block < backbone.depth]
        self.pets = nn.ModuleList(PETS[config.pet_cls](backbone, config) for _ in self.blocks)
        self.pets_emas = nn.ModuleList(PETS[config.pet_cls](backbone, config) for _ in self.blocks)
        self.pets_emas.load_state_dict(self.pets.state_dict())
        self.pets_emas.requires_grad_(False)
        self.fc: nn.Linear | None = None  # grown by every task
        self.frozen = False

    def begin_task(self, task: TaskInfo) -> None:
        """Grows the classifier by the task's classes."""
        super().begin_task(task)
        old, self.fc = self.fc, self._new_head(task.stop)
        if old is not None:
            with torch.no_grad():
                self.fc.weight[: task.first] = old.weight
                self.fc.bias[: task.first] = old.bias

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Freezes the online module in the first epochs; the repaired learner spares the first task."""
        freeze = self.config.num_freeze_epochs
        freeze = 3 * epochs // 5 if freeze is None else freeze
        self.frozen = epoch < freeze and not (self.fidelity == "fixed" and self.task.index == 0)

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; no auxiliary loss. While frozen, only the classifier sees autograd."""
        with torch.set_grad_enabled(not self.frozen):
            features = self._features(self.backbone.embed(x), self.pets)
        return self.task_logits(features, self._head), features.new_zeros(())

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the offline copy towards the online module.

        In the repaired learner the offline copy begins after the first task: until then it equals the online one.
        """
        decay = 0.0 if self.fidelity == "fixed" and self.task.index == 0 else self.config.ema_decay
        for offline, online in zip(self.pets_emas.parameters(), self.pets.parameters(), strict=True):
            offline.mul_(decay).add_(online, alpha=1 - decay)

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """For every class seen the larger of the two probabilities, online and offline."""
        tokens = self.backbone.embed(x)
        online, offline = (
            self.seen_logits(self._features(tokens, pets), self._head).softmax(dim=1)
            for pets in (self.pets, self.pets_emas)
        )
        return torch.maximum(online, offline)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The larger ones of two probabilities sum to more than one."""
        return F.normalize(scores, p=1, dim=1)

    def _features(self, tokens: Tensor, pets: nn.ModuleList) -> Tensor:
        extras = {block: cast(Any, pet).extras() for block, pet in zip(self.blocks, pets, strict=True)}
        return self.backbone.run(tokens, extras)[:, 0]

    @property
    def _head(self) -> nn.Linear:
        if self.fc is None:
            raise UserError("the learner has not begun a task yet, so there is no classifier")
        return self.fc

    def grow_to(self, stops: Sequence[int]) -> None:
        """Gives the classifier its rows."""
        super().grow_to(stops)
        self.fc = self._new_head(stops[-1]) if stops else None

    def named_tensors(self) -> dict[str, Tensor]:
        """Online and offline modules and the classifier."""
        named: dict[str, Tensor] = {f"pets_emas.{name}": tensor for name, tensor in self.pets_emas.named_parameters()}
        named |= {f"pets.{name}": tensor for name, tensor in self.pets.named_parameters()}
        return named if self.fc is None else named | named_layer("fc", self.fc)

    def _new_head(self, num_classes: int) -> nn.Linear:
        """A classifier with weights uniform in ±sqrt(3 / dim) and zero bias."""
        dim = self.backbone.dim
        head = nn.Linear(dim, num_classes)
        nn.init.uniform_(head.weight, -math.sqrt(3 / dim), math.sqrt(3 / dim))
        nn.init.zeros_(head.bias)
        return head.to(next(self.pets.parameters()).device)
