"""What all losses but TAL share: the task's class counts, the checks and the mean over the batch."""

import torch
from torch import Tensor, nn

from pilot_tal.errors import PilotTalError
from pilot_tal.task import TaskInfo


class TaskLoss(nn.Module):
    """A loss over the classes of one task; subclasses give `per_sample` and may use `self.counts`.

    `counts` holds the training images of each class of the task, the prior that some losses need.
    """

    counts: Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("counts", torch.zeros(0), persistent=False)

    def begin_task(self, task: TaskInfo) -> None:
        """Takes over the class counts of `task`."""
        if min(task.counts) < 1:
            raise PilotTalError(f"every class of a task needs at least one training image, got {task.counts}")
        self.counts = torch.tensor(task.counts, dtype=torch.float32, device=self.counts.device)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the batch, computed in float32 or better."""
        if not len(self.counts):
            raise PilotTalError(f"{type(self).__name__}: begin_task() must come before the first loss")
        if logits.ndim != 2 or logits.shape[1] != len(self.counts):
            raise PilotTalError(
                f"logits must be [batch, {len(self.counts)}], one column a class of the task, got {list(logits.shape)}"
            )
        if self.counts.device != logits.device:
            self.counts = self.counts.to(logits.device)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        with torch.autocast(logits.device.type, enabled=False):
            return self.per_sample(logits.to(dtype), targets).mean()

    def per_sample(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each sample, shape [batch]."""
        raise NotImplementedError


def check_range(name: str, value: float, low: float, high: float, allowed: str) -> None:
    """Refuses a setting outside low … high."""
    if not low <= value <= high:
        raise PilotTalError(f"{name} must be {allowed}, got {value!r}")
