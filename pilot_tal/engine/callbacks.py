"""Hooks into a run: subclass `Callback`, override what you need, pass it as `callbacks=[…]`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pilot_tal.stream.task import TaskInfo

if TYPE_CHECKING:
    from pilot_tal.engine.trainer import Trainer


@dataclass(frozen=True)
class StepInfo:
    """One training step. Losses and accuracy are tensors on the device: reading them waits for it.

    `accuracy` is the share of the batch that is right among the task's own classes.
    """

    epoch: int
    step: int
    lr: float
    loss: Tensor
    aux: Tensor
    accuracy: Tensor


@dataclass(frozen=True)
class TaskResult:
    """What a run has after a task: its step log, the states of its loss, and the metrics over all tasks so far."""

    steps: list[dict[str, Any]]
    states: list[dict[str, Any]]
    metrics: dict[str, Any]


class Callback:
    """Base class of callbacks; every hook is optional.

    Hooks run in the process that trains. `compare` trains several runs at a time in processes of their own, each with
    a copy of the callback: what a hook stores in memory stays there, so write results to a file. An exception in a
    hook ends the run. `run` has `path`, `record` (settings, classes, tasks), `config` and `tasks`.
    """

    def on_run_start(self, run: "Trainer") -> None:
        """Called before the first task that is left to train."""

    def on_task_start(self, run: "Trainer", task: TaskInfo) -> None:
        """Called before the training of a task."""

    def on_step(self, run: "Trainer", task: TaskInfo, step: StepInfo) -> None:
        """Called after every optimizer step."""

    def on_task_end(self, run: "Trainer", task: TaskInfo, result: TaskResult) -> None:
        """Called when a task is evaluated and its files and checkpoint are written."""

    def on_run_end(self, run: "Trainer") -> None:
        """Called when the run is finished."""

    def on_message(self, run: "Trainer", text: str) -> None:
        """Called with every message, such as a warning; what a task reached comes with `on_task_end`."""
