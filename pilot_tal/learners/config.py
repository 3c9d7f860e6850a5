"""Settings that every learner has, under LAMDA-PILOT's names.

The classes give types, ranges and the neutral value of branches that no shipped configuration uses; a learner's own
settings are in its file, and `configs/methods/<method>.yaml` gives the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from data_lt.errors import UserError
from pilot_tal.schema import Rule, build

Blocks = Annotated[tuple[int, ...], Rule("blocks of the ViT, from 0", 0, 999, unique=True)]


@dataclass(frozen=True)
class MethodConfig:
    """What every learner has; one with these settings alone trains nothing."""

    batch_size: Annotated[int, Rule("images of a step", 1, 65_536)]

    former: ClassVar[Mapping[str, Any]] = {}
    """Settings of earlier versions, with the only value that there is now."""

    @classmethod
    def recorded(cls, values: Mapping[str, Any], method: str) -> "MethodConfig":
        """The settings in the record of a run, which may be one of an earlier version."""
        return build(cls, {k: v for k, v in values.items() if k not in cls.former or cls.former[k] != v}, method)

    if TYPE_CHECKING:  # the engine reads these of every learner: settings, or constants where there is nothing to set

        @property
        def tuned_epoch(self) -> int:
            """Epochs of a task."""

        @property
        def drop_last(self) -> bool:
            """Whether a last incomplete batch is left out."""


@dataclass(frozen=True)
class TrainedConfig(MethodConfig):
    """What every learner that trains has: the schedule of one task and its optimizer."""

    tuned_epoch: Annotated[int, Rule("epochs of a task; LAMDA-PILOT calls it tuned_epoch", 1, 100_000)]
    init_lr: Annotated[float, Rule("learning rate", 0, 1000)]
    weight_decay: Annotated[float, Rule("weight decay", 0, 100)]
    optimizer: Annotated[str, Rule(choices=("adam", "adamw", "sgd"))]
    scheduler: Annotated[str, Rule("of the learning rate over the epochs", choices=("constant", "cosine", "steplr"))]
    min_lr: Annotated[float, Rule("where the cosine ends", 0, 1000)] = 0.0
    init_milestones: Annotated[tuple[int, ...], Rule("epochs at which steplr decays", 0, 100_000, unique=True)] = ()
    init_lr_decay: Annotated[float, Rule("factor of steplr", above=0, high=1)] = 0.1
    drop_last: Annotated[bool, Rule("leave out a last incomplete batch")] = False

    def __post_init__(self):
        if self.scheduler == "cosine" and self.min_lr > self.init_lr:
            raise UserError(
                f"min_lr, where the cosine ends, must not exceed init_lr, got min_lr={self.min_lr}, "
                f"init_lr={self.init_lr}"
            )
