"""How far a run is: measured by a callback, shown on a display, and stored in the run's log and lock."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilot_tal.engine.callbacks import Callback, StepInfo, TaskResult
from pilot_tal.record.writer import RunWriter
from pilot_tal.stream.task import TaskInfo

if TYPE_CHECKING:
    from pilot_tal.engine.trainer import Trainer

SECONDS_BETWEEN_LIVE = 0.2
SECONDS_BETWEEN_STATUSES = 5.0
SECONDS_BETWEEN_LINES = 30.0


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
    """Shows the progress of several runs; this base class shows nothing.

    Attributes:
        live: Whether `update` is shown at once.
        total: How far all runs are.
    """

    live = False
    total = ""

    def __enter__(self) -> "Display":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, name: str, status: Status | None) -> None:
        """Shows the status of a run; None when it has ended."""

    def message(self, line: str, routine: bool = False) -> None:
        """Prints a line; `routine` ones repeat what a display that changes shows."""


class Progress(Callback):
    """Reports how far a run is on a display, in its log and with its lock.

    Args:
        display: Where it is shown.
        label: Of the run on the display.
        writer: Of the run; its log gets the lines that stay.
        total_steps: Training steps that are left, over all tasks.
    """

    def __init__(self, display: Display, label: str, writer: RunWriter, total_steps: int):
        self.display, self.label, self.writer, self.left = display, label, writer, total_steps
        self.steps, self.images = 0, 0.0
        self.busy = 0.0  # seconds in training steps alone
        self.last_shown = self.last_line = self.step_started = time.monotonic()
        self.between = SECONDS_BETWEEN_LIVE if display.live else SECONDS_BETWEEN_STATUSES

    def on_task_start(self, run: "Trainer", task: TaskInfo) -> None:
        """Starts the clock of the training steps."""
        self.step_started = time.monotonic()
        self.images_per_step = sum(task.counts) / (task.epoch_steps or 1)

    def on_step(self, run: "Trainer", task: TaskInfo, step: StepInfo) -> None:
        """Updates the status now and then; the loss is read only when it is shown."""
        now = time.monotonic()
        self.busy += now - self.step_started
        self.step_started = now
        self.steps, self.images = self.steps + 1, self.images + self.images_per_step
        if now - self.last_shown < self.between:
            return
        position = f"task {task.index + 1}/{task.num_tasks} epoch {step.epoch + 1}/{run.settings.tuned_epoch}"
        left = (self.left - self.steps) * self.busy / self.steps
        status = Status(position, float(step.loss), left, self.steps / self.left)
        self.show(status)
        if not self.display.live and now - self.last_line >= SECONDS_BETWEEN_LINES:
            run.message(f"{status}, {self.images / max(self.busy, 1e-9):.0f} images/s")

    def on_task_end(self, run: "Trainer", task: TaskInfo, result: TaskResult) -> None:
        """Reports the accuracy after a task."""
        accuracy = result.metrics["accuracy_after_task"][-1]
        done = f"task {task.index + 1}/{task.num_tasks} done, {task.stop} classes seen"
        self._print(f"{done}, accuracy {100 * accuracy:.2f} %", routine=True)

    def on_message(self, run: "Trainer", text: str) -> None:
        """Prints a line and appends it to the run's log."""
        self._print(text)

    def _print(self, text: str, routine: bool = False) -> None:
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
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
