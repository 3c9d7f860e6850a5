"""Writes the run directory while the checkout runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pilot_tal.errors import PilotTalError
from pilot_tal.files import write_text
from pilot_tal.metrics import summarize
from pilot_tal.rundir import RunInfo, write_predictions, write_result, write_run
from pilot_tal.tal import TAL
from pilot_tal.task import TaskInfo
from pilot_tal.upstream.job import Job
from pilot_tal.upstream.sites import Toolbox
from pilot_tal.upstream.swap import Patches

STATES_PER_TASK = 200


class RunWriter:
    """Follows one learner through its tasks and writes what our own engine would write."""

    def __init__(self, job: Job, toolbox: Toolbox, criterion: torch.nn.Module, environment: dict[str, Any]):
        self.job, self.toolbox, self.criterion, self.environment = job, toolbox, criterion, environment
        self.path = Path(job.run_dir)
        self.info: RunInfo | None = None
        self.notes = list(job.notes)
        self.predictions: list[tuple[np.ndarray, np.ndarray]] = []
        self._losses: list[Tensor] = []
        self._states: list[dict[str, Any]] = []
        self._stride = 1
        self._steps: list[str] = []
        self._tal: list[str] = []

    def follow(self, patches: Patches, learner: Any) -> None:
        """Hooks into a learner: the start, and the predictions after each task."""
        name = f"_eval_{self.job.classifier}"
        evaluate, eval_task, train = getattr(learner, name), learner.eval_task, learner.incremental_train
        kept: list[tuple[np.ndarray, np.ndarray]] = []

        def keep(*args: Any) -> tuple[np.ndarray, np.ndarray]:
            result = evaluate(*args)
            kept[:] = [result]
            return result

        def then_write(*args: Any, **kwargs: Any) -> Any:
            kept.clear()
            result = eval_task(*args, **kwargs)
            if not kept:
                raise PilotTalError(f"{self.job.method} has no classifier {self.job.classifier!r}; use cnn")
            self.end_task(learner, kept[0][0][:, 0], kept[0][1])
            return result

        def start_first(data_manager: Any, *args: Any, **kwargs: Any) -> Any:
            if self.info is None:
                self.start(data_manager)
            return train(data_manager, *args, **kwargs)

        patches.set(learner, name, keep)
        patches.set(learner, "eval_task", then_write)
        patches.set(learner, "incremental_train", start_first)

    def start(self, data_manager: Any) -> None:
        """Writes what is known from the start."""
        job, order = self.job, [int(label) for label in data_manager._class_order]
        counts = np.bincount(data_manager._train_targets, minlength=len(order))
        names = job.data.class_names if job.data else [f"class {label}" for label in range(len(order))]
        self.info = RunInfo(
            dataset=job.dataset,
            method=job.method,
            loss=job.loss,
            seed=job.seed,
            fidelity="pilot",
            task_sizes=[int(data_manager.get_task_size(t)) for t in range(data_manager.nb_tasks)],
            class_names=[names[label] for label in order],
            class_order=order,
            train_counts=counts.tolist(),
            engine=self.toolbox.engine,
            notes=self.notes,
        )
        write_run(self.path, self.info, job.config, self.environment)
        write_result(self.path, 0, False, {})
        self._write_logs()

    def step(self, task: TaskInfo, loss: Tensor) -> None:
        """Notes a training step; values stay on the device until the task ends."""
        step = len(self._losses)
        self._losses.append(loss)
        if isinstance(self.criterion, TAL) and step % self._stride == 0:
            tal = self.criterion
            state = {"Q": tal.Q.clone(), "weights": tal.negative_weights()}
            self._states.append({"task": task.index, "step": step, "alpha": tal.alpha, **state})
            if len(self._states) >= STATES_PER_TASK:  # how many steps there will be is not known: thin out
                self._states, self._stride = self._states[::2], 2 * self._stride

    def end_task(self, learner: Any, pred: np.ndarray, true: np.ndarray) -> None:
        """Writes the predictions, the logs and the metrics after a task."""
        task, dataset = learner._cur_task, learner.test_loader.dataset
        if not np.array_equal(np.asarray(dataset.labels), true):
            raise PilotTalError("the checkout's test loader no longer keeps the order of its dataset")
        self._take_logs(task, len(learner.train_loader))
        self._write_logs()
        self.predictions.append((true, pred))
        write_predictions(self.path, task, self._image_names(dataset), true, pred)
        info = self.info
        metrics = summarize(self.predictions, info.task_sizes, info.train_counts, info.class_order)
        write_result(self.path, task + 1, task + 1 == info.num_tasks, metrics)

    def _image_names(self, dataset: Any) -> list[str]:
        if not dataset.use_path:
            return [f"test/{index}" for index in range(len(dataset.labels))]
        root = self.job.data.root if self.job.data else "."
        names = (Path(str(path)) for path in dataset.images)
        return [(name.relative_to(root) if name.is_relative_to(root) else name).as_posix() for name in names]

    def _take_logs(self, task: int, batches: int) -> None:
        losses = torch.stack(self._losses).tolist() if self._losses else []
        for step, loss in enumerate(losses):
            line = {"task": task, "epoch": step // batches, "step": step, "loss": _plain(loss)}
            self._steps.append(json.dumps({**line, "aux": None, "lr": None}))
        for state in self._states:
            lists = {key: [_plain(value) for value in state[key].tolist()] for key in ("Q", "weights")}
            self._tal.append(json.dumps({**state, **lists}))
        self._losses, self._states, self._stride = [], [], 1

    def _write_logs(self) -> None:
        write_text(self.path / "steps.jsonl", "".join(f"{line}\n" for line in self._steps))
        if isinstance(self.criterion, TAL):
            write_text(self.path / "tal.jsonl", "".join(f"{line}\n" for line in self._tal))


def _plain(value: float) -> float | None:
    """Seven digits, as float32 has them; JSON has no NaN and no infinity."""
    return float(f"{value:.7g}") if np.isfinite(value) else None
