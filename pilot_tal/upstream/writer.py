"""Writes the run directory while the checkout runs."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.losses import TaskLoss
from pilot_tal.record.run_record import RunRecord
from pilot_tal.record.step_log import StepLog
from pilot_tal.record.writer import RunWriter
from pilot_tal.schema import build
from pilot_tal.upstream.job import Job
from pilot_tal.upstream.swap import Patches, Supervision


class RunRecorder:
    """Follows a learner through its tasks and writes what our own engine would write."""

    def __init__(self, job: Job, criterion: TaskLoss, environment: dict[str, Any], writer: RunWriter):
        self.job, self.criterion, self.environment, self.writer = job, criterion, environment, writer
        self.record: RunRecord | None = None
        self._log = StepLog(criterion)

    def follow(self, patches: Patches, kind: Any, supervision: Supervision) -> None:
        """Hooks into the class of a learner: the start, and the predictions after each task."""
        name = f"_eval_{self.job.classifier}"
        evaluate, eval_task, train = getattr(kind, name), kind.eval_task, kind.incremental_train
        kept: list[tuple[np.ndarray, np.ndarray]] = []

        def keep(*args: Any) -> tuple[np.ndarray, np.ndarray]:
            kept[:] = [evaluate(*args)]
            return kept[0]

        def then_write(learner: Any, *args: Any, **kwargs: Any) -> Any:
            kept.clear()
            result = eval_task(learner, *args, **kwargs)
            if not kept:
                raise UserError(f"{self.job.method} has no classifier {self.job.classifier!r}; use cnn")
            self.end_task(learner, kept[0][0][:, 0], kept[0][1])
            return result

        def start_first(learner: Any, data_manager: Any) -> Any:
            if self.record is None:
                supervision.learner, supervision.num_tasks = learner, data_manager.nb_tasks
                self.start(data_manager)
            return train(learner, data_manager)

        patches.set(kind, name, keep)
        patches.set(kind, "eval_task", then_write)
        patches.set(kind, "incremental_train", start_first)

    def start(self, data_manager: Any) -> None:
        """Writes what is run, now that the checkout has split the classes."""
        job, order = self.job, [int(label) for label in data_manager._class_order]
        counts = np.bincount(data_manager._train_targets, minlength=len(order))
        names = job.data.class_names if job.data else [f"class {label}" for label in range(len(order))]
        stream = {
            "task_sizes": [int(data_manager.get_task_size(t)) for t in range(data_manager.nb_tasks)],
            "class_names": [names[label] for label in order],
            "class_order": order,
            "train_counts": counts.tolist(),
        }
        parts = {**job.record, "stream": {**job.record["stream"], **stream}, "environment": [self.environment]}
        self.record = build(RunRecord, parts)
        self.writer.write_record(self.record)
        self.writer.commit(self.record, 0, restart=True)  # a checkout cannot resume

    def step(self, epoch: int, loss: Tensor) -> None:
        """Notes a training step."""
        self._log.add(loss, epoch=epoch)

    def end_task(self, learner: Any, pred: np.ndarray, true: np.ndarray) -> None:
        """Writes the predictions, the logs and the metrics after a task."""
        task, dataset = learner._cur_task, learner.test_loader.dataset
        if not np.array_equal(np.asarray(dataset.labels), true):
            raise UserError("the checkout's test loader no longer keeps the order of its dataset")
        assert self.record is not None  # written before the first task
        logs = {"steps": self._log.steps(), "states": self._log.states()}
        self.writer.write_task(task, self._image_names(dataset), true, pred, **logs)
        self._log = StepLog(self.criterion)
        self.writer.commit(self.record, task + 1)

    def _image_names(self, dataset: Any) -> list[str]:
        if not dataset.use_path:
            return [f"test/{index}" for index in range(len(dataset.labels))]
        root = self.job.data.root if self.job.data else "."
        names = (Path(str(path)) for path in dataset.images)
        return [(name.relative_to(root) if name.is_relative_to(root) else name).as_posix() for name in names]
