"""What all losses but TAL share: one value a class of the task, the checks, and float32 arithmetic."""

import torch
from torch import Tensor, nn

from pilot_tal.errors import PilotTalError
from pilot_tal.task import TaskInfo


class TaskLoss(nn.Module):
    """A loss over the classes of one task. Subclasses give `batch_loss`, and `class_values` if they use a prior."""

    def __init__(self):
        super().__init__()
        self._exact: Tensor | None = None

    def class_values(self, counts: Tensor) -> Tensor:
        """What the loss needs of each class, from the classes' training counts; float64 in and out."""
        return counts

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Mean loss of the batch, given the class values in the type and on the device of the logits."""
        raise NotImplementedError

    def begin_task(self, task: TaskInfo) -> None:
        """Gets the class values of `task` ready."""
        if min(task.counts) < 1:
            raise PilotTalError(f"every class of a task needs at least one training image, got {task.counts}")
        self._exact = self._values = self.class_values(torch.tensor(task.counts, dtype=torch.float64))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the batch, in float32 or better."""
        if self._exact is None:
            raise PilotTalError(f"{type(self).__name__}: begin_task() must come before the first loss")
        classes = len(self._exact)
        if logits.ndim != 2 or logits.shape[1] != classes:
            raise PilotTalError(
                f"logits must be [batch, {classes}], one column a class of the task, got {list(logits.shape)}"
            )
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self._values.dtype != logits.dtype or self._values.device != logits.device:
            self._values = self._exact.to(logits.dtype).to(logits.device)
        with torch.autocast(logits.device.type, enabled=False):
            return self.batch_loss(logits, targets, self._values)


def check_range(name: str, value: float, low: float, high: float, allowed: str) -> None:
    """Refuses a setting outside low … high."""
    if not low <= value <= high:
        raise PilotTalError(f"{name} must be {allowed}, got {value!r}")
