"""TensorBoard, Weights & Biases and Trackio as callbacks. A logger that fails warns once and never stops training."""

import contextlib
import importlib
import importlib.util
import io
import os
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from data_lt.errors import UserError, sentence
from pilot_tal.engine.callbacks import Callback, TaskResult
from pilot_tal.metrics import tail_classes
from pilot_tal.record.run_record import RunRecord, short_hash
from pilot_tal.stream.task import TaskInfo
from pilot_tal.version import install_hint

if TYPE_CHECKING:
    from pilot_tal.engine.trainer import Trainer

NONE = "none"
PROJECT = "pilot-tal"
PER_STEP = {
    "loss": "train/loss",
    "aux": "train/auxiliary loss",
    "accuracy": "train/accuracy",
    "lr": "train/learning rate",
}
PER_TASK = {"a_last": "accuracy", "a_mean": "A_Mean", "a_tail": "A_Tail", "a_head": "A_Head", "a_avg": "A_Avg"}

Values = dict[str, float]


def check_log(log: str) -> None:
    """Raises a `UserError` if the package of a logger is not installed."""
    if log != NONE and importlib.util.find_spec(log) is None:
        raise UserError(f"log={log} needs the package {log}; install it {install_hint(log)}")


def make_loggers(log: str) -> list[Callback]:
    """The callbacks of the setting `log`."""
    return [kind() for kind in (TensorBoard, Wandb, Trackio) if kind.name == log]


class Logger(Callback):
    """Logs each task when it is complete, so that a resumed run logs nothing twice."""

    name = ""

    def __init__(self) -> None:
        self.failed = False

    def on_run_start(self, run: "Trainer") -> None:
        """Opens the log."""
        self._try(run, lambda: self.open(run))

    def on_task_end(self, run: "Trainer", task: TaskInfo, result: TaskResult) -> None:
        """Logs the steps of a task and the metrics after it."""
        before = sum(run.steps(other) for other in run.tasks[: task.index])
        self._try(run, lambda: self.write(run, task, before, step_values(run, task, result), task_values(result)))

    def on_run_end(self, run: "Trainer") -> None:
        """Closes the log."""
        self._try(run, lambda: self.close())

    def _try(self, run: "Trainer", action: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            action()
        except Exception as error:
            self.failed = True
            run.message(f"warning: log={self.name} failed and is off for the rest of this run: {sentence(error)[:300]}")

    def open(self, run: "Trainer") -> None:
        """Opens the log."""

    @abstractmethod
    def write(self, run: "Trainer", task: TaskInfo, before: int, steps: dict[int, Values], after: Values) -> None:
        """Logs a task whose first step is step `before` of the run."""

    def close(self) -> None:
        """Closes the log."""


class TensorBoard(Logger):
    """One event file per task, below `OUTPUT/tensorboard/STUDY/RUN`; their names sort in the order of the tasks."""

    name = "tensorboard"

    def write(self, run: "Trainer", task: TaskInfo, before: int, steps: dict[int, Values], after: Values) -> None:
        """Writes the event file of a task, atomically."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.path.parent / self.name / group_name(run.record) / run.path.name
        folder.mkdir(parents=True, exist_ok=True)
        rows = [(before + step, values) for step, values in steps.items()] + [(task.index + 1, after)]
        with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=folder.parent) as temporary:
            writer = EventFileWriter(temporary)
            for step, values in rows:
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
                writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
            writer.close()
            (written,) = Path(temporary).iterdir()
            written.replace(folder / f"events.out.tfevents.{task.index:05d}")


class Wandb(Logger):
    """A W&B run under the run's own name; with WANDB_MODE=offline it waits on disk for `wandb sync`."""

    name = "wandb"

    def open(self, run: "Trainer") -> None:
        """Opens the W&B run, or resumes it."""
        wandb = importlib.import_module("wandb")
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True)
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        # W&B makes its folder `wandb` in `dir`.
        self.start(wandb, run, project=project, id=run.path.name, dir=str(run.path.parent), settings=quiet)
        self.run.define_metric("task")
        self.run.define_metric("after task/*", step_metric="task")

    def start(self, package: Any, run: "Trainer", **options: Any) -> None:
        """Starts the run, or resumes it."""
        record = run.record
        settings = {"loss": record.loss.name, "seed": record.seed, **record.conditions(), **record.loss.options}
        named = {"name": run.path.name, "group": group_name(record), "config": settings}
        self.run: Any = package.init(resume="allow", **named, **options)

    def write(self, run: "Trainer", task: TaskInfo, before: int, steps: dict[int, Values], after: Values) -> None:
        """Sends a task: one W&B step per training step, and one for the metrics after it."""
        before += task.index
        for step, values in steps.items():
            self.run.log(values, step=before + step)
        self.run.log({"task": task.index + 1, **after}, step=before + len(steps))

    def close(self) -> None:
        """Ends the W&B run."""
        self.run.finish()


class Trackio(Wandb):
    """A run in Trackio's local database; `trackio show --project pilot-tal` opens the dashboard."""

    name = "trackio"

    def open(self, run: "Trainer") -> None:
        """Opens the Trackio run, or resumes it."""
        quiet = {"auto_log_gpu": False, "auto_log_cpu": False, "embed": False}
        with contextlib.redirect_stdout(io.StringIO()):
            self.start(importlib.import_module("trackio"), run, project=PROJECT, **quiet)

    def close(self) -> None:
        """Ends the Trackio run."""
        with contextlib.redirect_stdout(io.StringIO()):
            self.run.finish()


def step_values(run: "Trainer", task: TaskInfo, result: TaskResult) -> dict[int, Values]:
    """Per step: losses and learning rate, and where a state was kept the mean Q and α·w over head and tail classes."""
    steps = {
        line["step"]: {name: float(line[key]) for key, name in PER_STEP.items() if line[key] is not None}
        for line in result.steps
    }
    stream = run.record.stream
    in_tail = np.isin(np.arange(task.first, task.stop), tail_classes(stream.train_counts, stream.class_order))
    for state in result.states:
        for key, name in (("Q", "Q"), ("weights", "α·w")):
            for part, chosen in (("head", ~in_tail), ("tail", in_tail)):
                if key in state and chosen.any():
                    steps[state["step"]][f"tal/{name} {part}"] = float(np.array(state[key], float)[chosen].mean())
    return steps


def task_values(result: TaskResult) -> Values:
    """Metrics after a task, by the names of the report."""
    known = {key: result.metrics.get(key) for key in PER_TASK}
    return {f"after task/{PER_TASK[key]}": float(value) for key, value in known.items() if value is not None}


def group_name(record: RunRecord) -> str:
    """The same name for all runs that differ in loss and seed alone."""
    identity = {key: value for key, value in record.identity().items() if key not in ("loss", "seed")}
    return f"{record.data.name}-{record.method.name}-{short_hash(identity)}"
