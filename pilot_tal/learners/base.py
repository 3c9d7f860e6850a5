"""What every learner is: four hooks around a training step, scores, and its tensors by name; and the list of all."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_lt.errors import Registry, UserError, unknown_name
from pilot_tal.backbone import FrozenBackbone, FrozenViT
from pilot_tal.learners.cache import FeatureCache
from pilot_tal.learners.config import MethodConfig, TrainedConfig
from pilot_tal.learners.posthoc import PostHoc
from pilot_tal.schema import defaults_of
from pilot_tal.stream.task import TaskInfo

FIDELITIES = ("pilot", "fixed")
STATISTICS = "statistics."
"""Start of the names of statistics in a checkpoint."""
Images = Callable[[], Iterable[tuple[Tensor, Tensor]]]
# Names of the frozen ViT inside LAMDA-PILOT's networks, in whose state dicts it is, and of its copy for queries.
_FROZEN = re.compile(
    r"original_backbone\.|(backbone|feat|backbones\.[01])\.(patch_embed\.|cls_token|pos_embed|blocks\.|norm\.)"
)


class Learner(nn.Module):
    """One class-incremental learner on a frozen ViT.

    The training loop calls, for every task: `begin_task`, then for every epoch `begin_epoch` and for every batch
    `observe` (the logits of the task's own classes and the auxiliary loss) and, after the optimizer's step,
    `after_step`; at last `end_task`. `scores` may be called at any time and changes nothing.

    Attributes:
        stops: For every task begun so far, the number of classes seen at its end.
    """

    name: ClassVar[str]
    """As on the command line."""
    title: ClassVar[str]
    """As in a report."""
    config_class: ClassVar[type[MethodConfig]]
    """Its settings; their values are in `configs/methods/<name>.yaml`."""
    needs: ClassVar[str] = "vit"
    """`vit`: it puts prompts or adapters into the blocks of a ViT with a CLS token; `features`: any backbone."""
    recommended: ClassVar[str] = ""
    """What `pilot-tal list` recommends it for, by measured results."""
    linear_classifier: ClassVar[bool] = False
    """Whether its scores are logits of `seen_logits`, so that `posthoc` applies."""
    reschedules: ClassVar[bool] = True
    """Whether the original's scheduler still drives the optimizer after the first task (not in all learners)."""

    pool_size: int = 0
    """Number of prompts that an image picks from; 0 without a pool."""
    splits_pool: ClassVar[bool] = False
    """Whether its prompts are divided among the tasks, so that their number must be known at construction."""

    @classmethod
    def trains(cls, config: MethodConfig, task: int = 0) -> bool:
        """Whether, with these settings, a task is trained with a loss; if the first is not, none is."""
        return isinstance(config, TrainedConfig)

    @classmethod
    def needs_vit(cls, config: MethodConfig) -> bool:
        """Whether, with these settings, the backbone must be a ViT with a CLS token."""
        return cls.needs == "vit"

    @classmethod
    def mixes_batch(cls, config: MethodConfig, fidelity: str) -> bool:
        """Whether, with these settings, the scores of an image depend on the images beside it in its batch."""
        return False

    def __init__(self, backbone: FrozenBackbone, config: MethodConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__()
        self.backbone = cast(FrozenViT, backbone)  # `build_learner` checks it for methods that need one
        self.config = config
        self.num_classes = num_classes
        self.num_tasks = num_tasks
        self.fidelity = fidelity
        self.stops: list[int] = []
        self._task: TaskInfo | None = None
        self.posthoc: PostHoc | None = None
        self.picked: Tensor | None = None  # prompts [k] or [B, k] of the batch scored last, if there is a pool
        self.cache = FeatureCache()

    # The four hooks.

    def begin_task(self, task: TaskInfo) -> None:
        """Gets ready for a task: grow, re-draw, transfer."""
        known = self.stops[-1] if self.stops else 0
        if task.index != len(self.stops) or task.first != known or task.stop > self.num_classes:
            raise UserError(
                f"task {task.index} with classes {task.first} to {task.stop - 1} cannot follow {len(self.stops)} "
                f"tasks with {known} of {self.num_classes} classes"
            )
        self.stops.append(task.stop)
        self._task = task

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
        """Groups for a fresh optimizer, each with its base learning rate; none: the task trains nothing."""
        if not isinstance(self.config, TrainedConfig):
            return []
        return [{"params": [p for p in self.parameters() if p.requires_grad], "lr": self.config.init_lr}]

    def learning_rate(self, base: float, epoch: int, epochs: int) -> float:
        """Learning rate of an epoch for a group whose base rate is `base`."""
        config = self.config
        # L2P, DualPrompt and LAE of LAMDA-PILOT schedule an optimizer they have thrown away after task 0.
        lost = self.fidelity == "pilot" and not self.reschedules and len(self.stops) > 1
        if not isinstance(config, TrainedConfig) or config.scheduler == "constant" or lost:
            return base
        if config.scheduler == "steplr":
            return base * config.init_lr_decay ** sum(epoch >= m for m in config.init_milestones)
        return cosine_annealing(base, epoch, epochs, config.min_lr)

    # Evaluation.

    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Scores [B, classes seen] that rank the classes; changes no tensor.

        Args:
            x: Images under the test transform.
            ids: The images' places in the test set; given, features that cannot change are computed once per run.
        """
        raise NotImplementedError

    def probabilities(self, scores: Tensor) -> Tensor:
        """What `scores` gave as shares of one, in the same order; here scores are logits."""
        return scores.softmax(dim=1)

    def score_alone(self) -> bool:
        """From now on the scores of an image do not depend on its batch, as in `fixed`; returns whether they did."""
        mixed = self.mixes_batch(self.config, self.fidelity)
        self.fidelity = "fixed" if mixed else self.fidelity
        return mixed

    @property
    def task(self) -> TaskInfo:
        """The task that has begun last."""
        if self._task is None:
            raise UserError("the learner is in no task: begin_task() must come first")
        return self._task

    @property
    def seen(self) -> int:
        """Number of classes seen so far."""
        if not self.stops:
            raise UserError("the learner has not begun a task yet, so there are no classes to score")
        return self.stops[-1]

    # Tensors by name.

    def named_tensors(self) -> dict[str, Tensor]:
        """The learned tensors themselves (or views of them) under LAMDA-PILOT's state-dict names."""
        raise NotImplementedError

    def grow_to(self, stops: Sequence[int]) -> None:
        """Takes the shape the learner has after tasks that ended at these numbers of classes."""
        self.stops = list(stops)
        self._task = None

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
            if name not in own and not _FROZEN.match(name):
                raise unknown_name(f"tensor of {type(self).__name__}", name, own)
        for name, tensor in own.items():
            if name not in tensors:
                raise UserError(f"the tensor {name!r} is missing: damaged, or of another version of pilot_tal")
            if tensors[name].shape != tensor.shape:
                raise UserError(f"the tensor {name!r} must be {list(tensor.shape)}, got {list(tensors[name].shape)}")
            tensor.copy_(tensors[name])
        self.tensors_replaced()

    def tensors_replaced(self) -> None:
        """Called after tensors were imported: what was derived from the old ones is void."""

    def statistics(self) -> dict[str, Tensor]:
        """What further tasks need and scores do not, by name."""
        return {}

    def load_statistics(self, known: dict[str, Tensor]) -> None:
        """Takes over what `statistics` returned."""

    def checkpoint_state(self) -> dict[str, Tensor]:
        """Everything needed to go on after a finished task, flat; neither the backbone nor caches."""
        known = {f"{STATISTICS}{name}": tensor.clone() for name, tensor in self.statistics().items()}
        return {"stops": torch.tensor(self.stops, dtype=torch.long)} | self.export_tensors() | known

    def load_checkpoint_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `checkpoint_state` returned."""
        if "stops" not in state:
            raise UserError("the checkpoint lacks 'stops', so it is not one of a learner")
        self.grow_to(state["stops"].tolist())
        known = {name: tensor for name, tensor in state.items() if name.startswith(STATISTICS)}
        self.import_tensors({name: state[name] for name in state.keys() - known.keys() - {"stops"}})
        self.load_statistics({name.removeprefix(STATISTICS): tensor for name, tensor in known.items()})

    # Shared parts.

    def task_logits(self, features: Tensor, head: nn.Linear) -> Tensor:
        """Logits of the current task's classes only: slicing equals masking the others with -inf."""
        rows = slice(self.task.first, self.task.stop)
        return F.linear(features, head.weight[rows], head.bias[rows])

    def seen_logits(self, features: Tensor, head: nn.Linear) -> Tensor:
        """Logits of all classes seen, for scores: with the run's post-hoc correction, if it has one."""
        rows = head.weight[: self.seen], head.bias[: self.seen]
        return F.linear(features, *rows) if self.posthoc is None else self.posthoc(features, *rows)

    def cached_query(self, tokens: Tensor, ids: Tensor | None) -> Tensor:
        """The query feature of embedded test images, from the cache where their ids are known."""
        return self.cache.get("query", ids, tokens, self.backbone.query)


def vit_head(dim: int, num_classes: int) -> nn.Linear:
    """A classifier as timm initialises it: truncated normal weights of deviation 0.02, zero bias."""
    head = nn.Linear(dim, num_classes)
    nn.init.trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


class CosineHead(nn.Module):
    """A classifier by cosine with a learned scale, which starts at one; weights uniform in ±1/sqrt(dim)."""

    def __init__(self, dim: int, num_classes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, dim).uniform_(-1 / math.sqrt(dim), 1 / math.sqrt(dim)))
        self.sigma = nn.Parameter(torch.ones(1))

    def forward(self, features: Tensor) -> Tensor:
        """Logits [B, num_classes]."""
        return self.sigma * cosine_similarity(features, self.weight)


def cosine_similarity(features: Tensor, rows: Tensor) -> Tensor:
    """Cosine of every feature [B, dim] and every row [C, dim], always in float32: cosines lie close together."""
    with torch.autocast(features.device.type, enabled=False):
        return F.linear(F.normalize(features.float(), dim=1), F.normalize(rows, dim=1))


def cosine_annealing(base: float, epoch: int, epochs: int, low: float = 0.0) -> float:
    """Cosine from `base` at epoch 0 to `low` at epoch `epochs`."""
    return low + (base - low) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def named_layer(name: str, layer: nn.Linear) -> dict[str, Tensor]:
    """Weight and bias of a layer by name."""
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


LEARNERS: Registry[type[Learner]] = Registry("method")


def build_learner(
    method: str,
    backbone: FrozenBackbone,
    config: MethodConfig,
    num_classes: int,
    num_tasks: int,
    fidelity: str = "pilot",
) -> Learner:
    """Builds a learner for a stream of `num_tasks` tasks with `num_classes` classes in all."""
    learner = LEARNERS[method]
    if fidelity not in FIDELITIES:
        raise unknown_name("fidelity", fidelity, FIDELITIES)
    if not isinstance(config, learner.config_class):
        raise UserError(f"{method} needs a {learner.config_class.__name__}, got {type(config).__name__}")
    if not 1 <= num_tasks <= num_classes:
        raise UserError(f"{num_tasks} tasks cannot share {num_classes} classes")
    if learner.needs_vit(config) and not isinstance(backbone, FrozenViT):
        others = ", ".join(name for name, other in LEARNERS.items() if other.needs == "features")
        raise UserError(
            f"{method} puts prompts or adapters into the blocks of a timm ViT with a CLS token, and {backbone.name} is "
            f"none; use such a ViT, or a method that needs features alone ({others}; without adapters)"
        )
    _check_blocks(config, backbone.depth)
    return learner(backbone, config, num_classes, num_tasks, fidelity)


def _check_blocks(config: MethodConfig, depth: int) -> None:
    """Blocks that a user names must exist; with none to learn in, nothing would be learnt.

    The default ones are meant for twelve blocks: of these a smaller ViT takes those it has, as in LAMDA-PILOT.
    """
    for name, usual in defaults_of(type(config)).items():
        if name not in ("adapt_blocks", "prompt_layer_idx", "g_prompt_layer_idx", "e_prompt_layer_idx"):
            continue
        blocks, needed = getattr(config, name), name != "g_prompt_layer_idx"
        absent = blocks != usual and max(blocks, default=0) >= depth
        if absent or (needed and min(blocks, default=depth) >= depth):
            some = " at least one and only" if needed else " only"
            raise UserError(f"{name} must name{some} blocks of the ViT, which are 0 … {depth - 1}, got {list(blocks)}")
