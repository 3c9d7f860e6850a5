"""The losses, one short file each, behind one registry.

Every loss follows one contract: `begin_task(TaskInfo)` before the first step of a task, then
`loss(logits, targets)` on the logits of the task's own classes, with targets 0 … C−1. A new loss is a
subclass of `TaskLoss` with a name and one or two methods; `CONTRIBUTING.md` has an example.
"""

from importlib import import_module

from pilot_tal.losses.base import LOSSES, TaskLoss, build_loss

# In the order in which they are listed: the baseline, TAL, other losses.
for _loss in (
    *("ce", "tal", "tal_auto", "seesaw", "ace", "balanced_softmax"),
    *("logit_adjustment", "vs", "focal", "class_balanced", "ldam", "ldam_drw"),
):
    import_module(f"{__name__}.{_loss}")

__all__ = ["LOSSES", "TaskLoss", "build_loss"]
