"""Hooks into a run: subclass `Callback`, override what you need, pass it as `callbacks=[…]`; and progress."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pilot_tal.record.writer import RunWriter
from pilot_tal.stream.task import TaskInfo

if TYPE_CHECKING:
    from pilot_tal.engine.trainer import Trainer

SECONDS_BETWEEN_LIVE = 0.2
SECONDS_BETWEEN_STATUSES = 5.0
SECONDS_BETWEEN_LINES = 30.0


@dataclass(frozen=True)
class StepInfo:
    """One training step; losses and accuracy (among the task's own classes) are on the device: reading waits for it."""

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


@dataclass(frozen=True)
class Status:
    """How far a run is: seconds of training left, and share of its training steps done."""

    position: str
    loss: float | None = None
    left: float | None = None
    done: float = 0.0

    def __str__(self) -> str:
        if self.loss is None or self.left is None:
            return self.position
        return f"{self.position} loss {self.loss:.2f} {duration(self.left)} left"


class Display:
    """Shows the progress of several runs; this base class shows nothing."""

    live = False  # whether `update` is shown at once
    total = ""  # how far all runs are

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, name: str, status: Status | None) -> None:
        """Shows the status of a run; None when it has ended."""

    def message(self, line: str, routine: bool = False) -> None:
        """Prints a line; `routine` ones repeat what a display that changes shows."""


class Progress(Callback):
    """Shows on a display how far a run is, of whose training `total_steps` are left; also in its log and lock."""

    def __init__(self, display: Display, label: str, writer: RunWriter, total_steps: int):
        self.display, self.label, self.writer, self.left = display, label, writer, total_steps
        self.steps, self.busy = 0, 0.0  # training steps, and seconds in them alone
        self.last_shown = self.last_line = self.step_started = time.monotonic()

    def on_task_start(self, run: "Trainer", task: TaskInfo) -> None:
        """Starts the clock of the training steps."""
        self.step_started = time.monotonic()

    def on_step(self, run: "Trainer", task: TaskInfo, step: StepInfo) -> None:
        """Updates the status now and then; the loss is read only when it is shown."""
        now = time.monotonic()
        self.steps, self.busy = self.steps + 1, self.busy + now - self.step_started
        self.step_started = now
        if now - self.last_shown < (SECONDS_BETWEEN_LIVE if self.display.live else SECONDS_BETWEEN_STATUSES):
            return
        position = f"task {task.index + 1}/{task.num_tasks} epoch {step.epoch + 1}/{run.settings.tuned_epoch}"
        left = (self.left - self.steps) * self.busy / self.steps
        self.show(status := Status(position, float(step.loss), left, self.steps / self.left))
        if not self.display.live and now - self.last_line >= SECONDS_BETWEEN_LINES:
            run.message(str(status))

    def on_task_end(self, run: "Trainer", task: TaskInfo, result: TaskResult) -> None:
        """Reports the accuracy after a task."""
        accuracy = 100 * result.metrics["accuracy_after_task"][-1]
        done = f"task {task.index + 1}/{task.num_tasks} done, {task.stop} classes seen, accuracy {accuracy:.2f} %"
        self.on_message(run, done, routine=True)

    def on_message(self, run: "Trainer", text: str, routine: bool = False) -> None:
        """Prints a line and appends it to the run's log."""
        self.last_line = time.monotonic()
        self.display.message(f"{self.label}: {text}", routine)
        self.writer.append_log(text)

    def show(self, status: Status) -> None:
        """Shows a status, on the display and in the lock."""
        self.last_shown = time.monotonic()
        self.display.update(self.label, status)
        self.writer.lock.doing = {"position": status.position, "left": status.left}


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
