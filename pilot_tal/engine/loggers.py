"""TensorBoard, Weights & Biases and Trackio as a callback. A logger that fails warns once and never stops training."""

import contextlib
import importlib.util
import io
import os
from collections.abc import Callable
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

PROJECT = "pilot-tal"
PER_STEP = {"loss": "loss", "aux": "auxiliary loss", "accuracy": "accuracy", "lr": "learning rate"}
PER_TASK = {"a_last": "accuracy", "a_mean": "A_Mean", "a_tail": "A_Tail", "a_head": "A_Head", "a_avg": "A_Avg"}


def make_loggers(log: str) -> list[Callback]:
    """The callbacks of the setting `log`.

    Raises:
        UserError: the package of the logger is not installed.
    """
    if log == "none":
        return []
    if importlib.util.find_spec(log) is None:
        raise UserError(f"log={log} needs the package {log}; install it {install_hint(log)}")
    return [Logger(log)]


class Logger(Callback):
    """Logs each task when it is complete, so that a resumed run logs nothing twice.

    TensorBoard gets one event file per task, below `OUTPUT/tensorboard/STUDY/RUN`; W&B a run under the run's own name,
    which with WANDB_MODE=offline waits on disk for `wandb sync`; Trackio a run in its local database.
    """

    def __init__(self, log: str):
        self.log, self.failed = log, False
        self.online: Any = None

    def on_run_start(self, run: "Trainer") -> None:
        """Opens the log, or resumes it."""
        if self.log != "tensorboard":
            self._try(run, lambda: self._open(run))

    def on_task_end(self, run: "Trainer", task: TaskInfo, result: TaskResult) -> None:
        """Logs the steps of a task and the metrics after it."""
        self._try(run, lambda: self._write(run, task, result))

    def on_run_end(self, run: "Trainer") -> None:
        """Closes the log."""
        if self.log != "tensorboard":
            self._try(run, lambda: self.online.finish())

    def _try(self, run: "Trainer", action: Callable[[], None]) -> None:
        if self.failed:
            return
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # Trackio prints
                action()
        except Exception as error:
            self.failed = True
            run.message(f"warning: log={self.log} failed and is off for the rest of this run: {sentence(error)[:300]}")

    def _open(self, run: "Trainer") -> None:
        package, record, name = importlib.import_module(self.log), run.record, run.path.name
        settings = {"loss": record.loss.name, "seed": record.seed, **record.conditions(), **record.loss.options}
        options: dict[str, Any] = {"name": name, "group": group_name(record), "config": settings, "resume": "allow"}
        if self.log == "trackio":
            self.online = package.init(project=PROJECT, auto_log_gpu=False, auto_log_cpu=False, embed=False, **options)
        else:
            options |= {"settings": package.Settings(console="off", silent=True, x_disable_stats=True)}
            options |= {"project": os.environ.get("WANDB_PROJECT", PROJECT), "dir": str(run.path.parent), "id": name}
            self.online = package.init(**options)
            self.online.define_metric("task")
            self.online.define_metric("after task/*", step_metric="task")

    def _write(self, run: "Trainer", task: TaskInfo, result: TaskResult) -> None:
        """One step per training step; in W&B and Trackio also one for the metrics after each task."""
        steps, first = step_values(run, task, result), sum(run.steps(other) for other in run.tasks[: task.index])
        known = {name: result.metrics.get(key) for key, name in PER_TASK.items()}
        after = {f"after task/{name}": float(value) for name, value in known.items() if value is not None}
        if self.log == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            with SummaryWriter(run.path.parent / self.log / group_name(run.record) / run.path.name) as writer:
                for step, values in [*((first + step, own) for step, own in steps.items()), (task.index + 1, after)]:
                    for name, value in values.items():
                        writer.add_scalar(name, value, step)
            return
        first += task.index
        for step, values in steps.items():
            self.online.log(values, step=first + step)
        self.online.log({"task": task.index + 1, **after}, step=first + len(steps))


def step_values(run: "Trainer", task: TaskInfo, result: TaskResult) -> dict[int, dict[str, float]]:
    """Per step: losses and learning rate, and where a state was kept the mean Q and α·w over head and tail classes."""
    steps = {
        line["step"]: {f"train/{name}": float(line[key]) for key, name in PER_STEP.items() if line[key] is not None}
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


def group_name(record: RunRecord) -> str:
    """The same name for all runs that differ in loss and seed alone."""
    identity = {key: value for key, value in record.identity().items() if key not in ("loss", "seed")}
    return f"{record.data.name}-{record.method.name}-{short_hash(identity)}"
