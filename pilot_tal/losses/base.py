"""Base class of the losses: name, validated options, one value per class, float32 arithmetic; and the list of all."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data_lt.errors import Registry, UserError
from pilot_tal.schema import Option, settings_of, unknown_setting
from pilot_tal.stream.task import TaskInfo


class TaskLoss(nn.Module):
    """A loss over the classes of one task.

    Subclasses define their names and `batch_loss`, and `class_values` if they use class counts. Options are parameters
    of `__init__` that are annotated with a `Rule`; passed to this class they are validated and become read-only
    attributes.
    """

    name: ClassVar[str]
    """As on the command line."""
    title: ClassVar[str]
    """As in a report."""
    prior: ClassVar[str] = "none"
    """What it uses of the class frequencies: none, online (counted during training) or class counts (given)."""
    recommended: ClassVar[str] = ""
    """What `pilot-tal list` recommends it for, by measured results."""
    _settings: ClassVar[dict[str, Option]] = {}

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls._settings = {**cls._settings, **settings_of(cls)}

    def __init__(self, **options: Any):
        super().__init__()
        for option, value in options.items():
            plain = value.item() if hasattr(value, "item") else value  # NumPy's numbers are numbers too
            self._settle(option, self._settings[option].check(plain))
        self._exact: Tensor | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._settings and name in vars(self):
            raise UserError(f"{name} of a loss cannot be changed; make a new one with {name}={value!r}")
        super().__setattr__(name, value)

    def _settle(self, option: str, value: Any) -> None:
        """Set an option; only for this class and its subclasses."""
        vars(self)[option] = value

    def class_values(self, counts: Tensor) -> Tensor:
        """Compute one value per class (or several rows) from the training counts; float64."""
        return counts

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Mean loss of the batch, given the class values in the type and on the device of the logits."""
        raise NotImplementedError

    def begin_task(self, task: TaskInfo) -> None:
        """Compute the class values of `task`."""
        if min(task.counts) < 1:
            raise UserError(f"every class of a task needs at least one training image, got {task.counts}")
        self._exact = self._values = self.class_values(torch.tensor(task.counts, dtype=torch.float64))

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before the first batch of every epoch."""

    def state_to_log(self) -> dict[str, Tensor]:
        """Return the state to log: one value per class under each name."""
        return {}

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss of the batch, in float32 or better."""
        if self._exact is None:
            raise UserError(f"{type(self).__name__}: begin_task() must come before the first loss")
        check_batch(logits, targets, self._exact.shape[-1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self._values.dtype != logits.dtype or self._values.device != logits.device:
            self._values = self._exact.to(logits.dtype).to(logits.device)
        with torch.autocast(logits.device.type, enabled=False):
            return self.batch_loss(logits, targets, self._values)


LOSSES: Registry[type[TaskLoss]] = Registry("loss")


def build_loss(name: str, **options: Any) -> TaskLoss:
    """Makes the loss `name`; it still needs `begin_task` before its first call.

    Raises:
        UserError: no such loss, no such option, or a value out of range.
    """
    known = settings_of(LOSSES[name])
    for option in options:
        if option not in known:
            raise unknown_setting(option, known, f"the loss {name}")
    return LOSSES[name](**options)


def sum_over_ranks(counts: Tensor, group: Any = None) -> bool:
    """Add the counts of the other processes of `group` in place; return False without other processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    dist.all_reduce(counts, group=group)
    return True


def check_batch(logits: Tensor, targets: Tensor, classes: int, state: Tensor | None = None) -> None:
    """Validate shape, type and device of logits and targets."""
    if logits.ndim != 2 or not logits.is_floating_point():
        raise UserError(f"logits must be a floating point tensor [batch, classes], got {_kind(logits)}")
    if logits.shape[1] != classes:
        raise UserError(
            f"logits must have {classes} columns, one per class, got {logits.shape[1]}; "
            "slice them to the classes of the task, or grow() a loss that can when classes are added"
        )
    if targets.ndim != 1 or targets.dtype != torch.int64 or targets.shape[0] != logits.shape[0]:
        raise UserError(f"targets must be {logits.shape[0]} class indices of type int64, got {_kind(targets)}")
    if logits.device != targets.device or (state is not None and state.device != logits.device):
        devices = [str(tensor.device) for tensor in (logits, targets, state) if tensor is not None]
        raise UserError(
            f"logits, targets and loss must be on one device, got {', '.join(devices)}; move the loss with to(device)"
        )


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
