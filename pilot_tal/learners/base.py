"""What every learner is: four hooks around a training step, scores, and its tensors by name."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pilot_tal.backbone import FrozenViT
from pilot_tal.errors import PilotTalError, unknown_name
from pilot_tal.learners.cache import FeatureCache
from pilot_tal.learners.config import MethodConfig
from pilot_tal.task import TaskInfo

FIDELITIES = ("pilot", "fixed")
Images = Callable[[], Iterable[tuple[Tensor, Tensor]]]
# Names of the frozen ViT inside LAMDA-PILOT's networks: a state dict saved there holds them as well.
_FROZEN_OWNERS = ("backbone.", "original_backbone.", "feat.")
_FROZEN_PARTS = ("patch_embed.", "cls_token", "pos_embed", "blocks.", "norm.")


class Learner(nn.Module):
    """One class-incremental learner on a frozen ViT.

    The training loop calls, for every task: `begin_task`, then for every epoch `begin_epoch` and for every batch
    `observe` (the logits of the task's own classes and the auxiliary loss) and, after the optimizer's step,
    `after_step`; at last `end_task`. `scores` may be called at any time and changes nothing.

    Attributes:
        stops: For every task begun so far, the number of classes seen at its end.
    """

    reschedules: ClassVar[bool] = True
    """Whether the original's scheduler still drives the optimizer after the first task (not in all learners)."""

    def __init__(self, backbone: FrozenViT, config: MethodConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__()
        self.backbone = backbone
        self.config = config
        self.num_classes = num_classes
        self.num_tasks = num_tasks
        self.fidelity = fidelity
        self.stops: list[int] = []
        self.task: TaskInfo | None = None
        self.cache = FeatureCache()

    # The four hooks.

    def begin_task(self, task: TaskInfo) -> None:
        """Gets ready for a task: grow, re-draw, transfer."""
        known = self.stops[-1] if self.stops else 0
        if task.index != len(self.stops) or task.first != known or task.stop > self.num_classes:
            raise PilotTalError(
                f"task {task.index} with classes {task.first} to {task.stop - 1} cannot follow {len(self.stops)} "
                f"tasks with {known} of {self.num_classes} classes"
            )
        self.stops.append(task.stop)
        self.task = task

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before the first batch of every epoch."""

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the current task's classes [B, task.num_classes] and the auxiliary loss of a batch."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Called after every step of the optimizer."""

    def end_task(self, images: Images) -> None:
        """Called after the last epoch; `images()` gives the task's training images under the test transform."""

    # Optimisation.

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups for a fresh optimizer, each with its base learning rate."""
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": self.config.init_lr}]

    def learning_rate(self, base: float, epoch: int, epochs: int) -> float:
        """Learning rate of an epoch for a group whose base rate is `base`."""
        config = self.config
        # L2P, DualPrompt and LAE of LAMDA-PILOT schedule an optimizer they have thrown away after task 0.
        lost = self.fidelity == "pilot" and not self.reschedules and self.task is not None and self.task.index > 0
        if config.scheduler == "constant" or lost:
            return base
        if config.scheduler == "steplr":
            return base * config.init_lr_decay ** sum(epoch >= m for m in config.init_milestones)
        return self.cosine(base, epoch, epochs)

    def cosine(self, base: float, epoch: int, epochs: int) -> float:
        """Cosine annealing from `base` to the configuration's `min_lr`."""
        return cosine_annealing(base, epoch, epochs, self.config.min_lr)

    # Evaluation.

    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Scores [B, classes seen] that rank the classes; changes no tensor.

        Args:
            x: Images under the test transform.
            ids: The images' places in the test set; given, features that cannot change are computed once a run.
        """
        raise NotImplementedError

    @property
    def seen(self) -> int:
        """Number of classes seen so far."""
        if not self.stops:
            raise PilotTalError("the learner has not begun a task yet, so there are no classes to score")
        return self.stops[-1]

    # Tensors by name.

    def named_tensors(self) -> dict[str, Tensor]:
        """The learned tensors themselves (or views of them) under LAMDA-PILOT's state-dict names."""
        raise NotImplementedError

    def new_rows(self) -> slice:
        """Rows of `named_tensors` that `begin_task` has drawn for the current task."""
        return slice(0, 0)

    def grow_to(self, stops: Sequence[int]) -> None:
        """Takes the shape the learner has after tasks that ended at these numbers of classes."""
        self.stops = list(stops)
        self.task = None

    def export_tensors(self) -> dict[str, Tensor]:
        """Copies of the learned tensors under LAMDA-PILOT's names."""
        return {name: tensor.detach().clone() for name, tensor in self.named_tensors().items()}

    @torch.no_grad()
    def import_tensors(self, tensors: Mapping[str, Tensor], task_sizes: Sequence[int] | None = None) -> None:
        """Takes over tensors under LAMDA-PILOT's names; those of its frozen ViT are ignored.

        Args:
            tensors: Every name of `named_tensors`.
            task_sizes: Number of classes of each finished task, if the tensors were learned elsewhere.
        """
        if task_sizes is not None:
            self.grow_to([sum(task_sizes[: i + 1]) for i in range(len(task_sizes))])
        own = self.named_tensors()
        for name in tensors:
            if name not in own and not _is_frozen(name):
                raise unknown_name(f"tensor of {type(self).__name__}", name, own)
        for name, tensor in own.items():
            if name not in tensors:
                raise PilotTalError(f"the tensor {name!r} is missing")
            if tensors[name].shape != tensor.shape:
                raise PilotTalError(
                    f"the tensor {name!r} must be {list(tensor.shape)}, got {list(tensors[name].shape)}"
                )
            tensor.copy_(tensors[name])
        self.tensors_replaced()

    def tensors_replaced(self) -> None:
        """Called after tensors were imported: what was derived from the old ones is void."""

    def checkpoint_state(self) -> dict[str, Tensor]:
        """Everything needed to go on after a finished task, flat; neither the backbone nor caches."""
        return {"stops": torch.tensor(self.stops, dtype=torch.long)} | self.export_tensors()

    def load_checkpoint_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes up the state that `checkpoint_state` gave."""
        if "stops" not in state:
            raise PilotTalError("the checkpoint lacks 'stops', so it is not one of a learner")
        self.grow_to(state["stops"].tolist())
        self.import_tensors({name: tensor for name, tensor in state.items() if name != "stops"})

    def statistics(self) -> dict[str, Tensor]:
        """What the learner knows of the classes besides its learned tensors, by name."""
        return {}

    # Shared parts.

    def task_logits(self, features: Tensor, head: nn.Linear) -> Tensor:
        """Logits of the current task's classes only: slicing equals masking the others with -inf."""
        rows = slice(self.task.first, self.task.stop)
        return F.linear(features, head.weight[rows], head.bias[rows])

    def seen_logits(self, features: Tensor, head: nn.Linear) -> Tensor:
        """Logits of all classes seen."""
        return F.linear(features, head.weight[: self.seen], head.bias[: self.seen])

    def cached_query(self, tokens: Tensor, ids: Tensor | None) -> Tensor:
        """The query feature of embedded test images, from the cache where their ids are known."""
        return self.cache.get("query", ids, tokens, self.backbone.query)


def vit_head(dim: int, num_classes: int) -> nn.Linear:
    """A classifier as timm initialises it: truncated normal weights of deviation 0.02, zero bias."""
    head = nn.Linear(dim, num_classes)
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def cosine_annealing(base: float, epoch: int, epochs: int, low: float = 0.0) -> float:
    """Cosine from `base` at epoch 0 to `low` at epoch `epochs`."""
    return low + (base - low) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def _is_frozen(name: str) -> bool:
    return any(name.startswith(owner + part) for owner in _FROZEN_OWNERS for part in _FROZEN_PARTS)
