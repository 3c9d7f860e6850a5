"""The losses, one short file each, behind one registry.

Every loss follows one contract: `begin_task(TaskInfo)` before the first step of a task, then
`loss(logits, targets)` on the logits of the task's own classes, with targets 0 … C−1. A new loss is a
subclass of `TaskLoss` with a name and one or two methods; `CONTRIBUTING.md` has an example.
"""

from pilot_tal.losses.base import LOSSES, TaskLoss, build_loss

# In the order in which they are listed: the baseline, TAL, other losses.
# isort: off
from pilot_tal.losses.ce import CrossEntropy
from pilot_tal.losses.tal import TAL
from pilot_tal.losses.tal_auto import AutoTAL
from pilot_tal.losses.seesaw import Seesaw
from pilot_tal.losses.ace import AsymmetricCE
from pilot_tal.losses.balanced_softmax import BalancedSoftmax
from pilot_tal.losses.logit_adjustment import LogitAdjustment
from pilot_tal.losses.vs import VectorScaling
from pilot_tal.losses.focal import Focal
from pilot_tal.losses.class_balanced import ClassBalanced
from pilot_tal.losses.ldam import LDAM
from pilot_tal.losses.ldam_drw import DeferredLDAM
# isort: on

__all__ = [
    "LDAM",
    "LOSSES",
    "TAL",
    "AsymmetricCE",
    "AutoTAL",
    "BalancedSoftmax",
    "ClassBalanced",
    "CrossEntropy",
    "DeferredLDAM",
    "Focal",
    "LogitAdjustment",
    "Seesaw",
    "TaskLoss",
    "VectorScaling",
    "build_loss",
]
