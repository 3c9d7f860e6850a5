"""The losses, one short file each, behind one registry.

Every loss follows one contract: `begin_task(TaskInfo)` before the first step of a task, then
`loss(logits, targets)` on the logits of the task's own classes, with targets 0 … C−1. A new loss is a
subclass of `TaskLoss` with a name and one or two methods; `docs/losses.md` adds one in twenty lines.
"""

from pilot_tal.losses.balanced_softmax import BalancedSoftmax
from pilot_tal.losses.base import TaskLoss
from pilot_tal.losses.ce import CrossEntropy
from pilot_tal.losses.class_balanced import ClassBalanced
from pilot_tal.losses.focal import Focal
from pilot_tal.losses.ldam import LDAM
from pilot_tal.losses.logit_adjustment import LogitAdjustment
from pilot_tal.losses.registry import LOSSES, build_loss, loss_options
from pilot_tal.losses.tal import TaskTAL

__all__ = [
    "LDAM",
    "LOSSES",
    "BalancedSoftmax",
    "ClassBalanced",
    "CrossEntropy",
    "Focal",
    "LogitAdjustment",
    "TaskLoss",
    "TaskTAL",
    "build_loss",
    "loss_options",
]
