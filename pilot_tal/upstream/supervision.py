"""The loss in the place of the cross-entropy of a learner of the checkout."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.losses import TaskLoss
from pilot_tal.losses.tal import TAL
from pilot_tal.stream.task import TaskInfo
from pilot_tal.upstream.sites import LearnerSites

Observer = Callable[[int, Tensor], None]


class Supervision:
    """Calls the loss with its task and epoch, and with the logits and targets of that task.

    `columns` says which logits the learner passes (see `sites.COLUMNS`). A learner without replay gets the loss of
    one task's classes, labels from 0, and a new start in every task; TAL keeps its state and grows where old classes
    are replayed, and losses with a prior get the counts of new images and exemplars together.

    Args:
        criterion: The loss.
        sites: What is known of the learner.
        epochs: The number of epochs of a task.
        on_step: Called after every swapped call with the epoch and the detached loss.

    `learner` and `num_tasks` are set once the checkout has built the one and split the classes.
    """

    def __init__(self, criterion: TaskLoss, sites: LearnerSites, epochs: Callable[[int], int],
                 on_step: Observer):  # fmt: skip
        self.criterion, self.sites, self.epochs, self.on_step = criterion, sites, epochs, on_step
        self.num_tasks = 0
        self.learner: Any = None
        self.task: TaskInfo | None = None
        self._steps = 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch of training images."""
        task = self.task
        if task is None or task.index != self.learner._cur_task:
            task = self._next_task()
        logits, targets = self._own_columns(task, logits), targets.long()
        if self.sites.columns == "masked":
            targets = targets - task.first
        if task is not self.task:
            self._begin_task(task, logits.device)
        epoch, batch = divmod(self._steps, task.epoch_steps or 1)
        if batch == 0:
            self.criterion.begin_epoch(epoch, self.epochs(task.index))
        loss = self.criterion(logits, targets)
        self._steps += 1
        self.on_step(epoch, loss.detach().clone())  # a learner may add to its loss in place
        return loss

    def _own_columns(self, task: TaskInfo, logits: Tensor) -> Tensor:
        """The columns of the task's classes, if the learner gives what it is known to give."""
        masked = self.sites.columns == "masked"
        wanted = task.stop if masked else task.num_classes
        if logits.shape[1] != wanted:
            raise UserError(f"the learner must give {wanted} logits in task {task.index}, got {logits.shape[1]}")
        if not masked or not task.first:
            return logits
        if task is not self.task and not bool(torch.isneginf(logits[:, : task.first]).all()):
            raise UserError("the learner no longer masks the logits of old classes with -inf")
        return logits[:, task.first :]

    def _next_task(self) -> TaskInfo:
        """At the first batch of a task: by then the learner has made the loader it trains with."""
        learner = self.learner
        first, stop = (0 if self.sites.growing else learner._known_classes), learner._total_classes
        labels = np.asarray(learner.train_loader.dataset.labels)
        if labels.min() < first or labels.max() >= stop:
            raise UserError(
                f"training labels must lie in {first} … {stop - 1} in task {learner._cur_task}, "
                f"got {labels.min()} … {labels.max()}"
            )
        counts = np.bincount(labels.astype(np.int64), minlength=stop)[first:].tolist()
        steps = len(learner.train_loader)
        return TaskInfo(learner._cur_task, self.num_tasks, first, stop, tuple(counts), steps)

    def _begin_task(self, task: TaskInfo, device: torch.device) -> None:
        self.task, self._steps = task, 0
        if self.sites.growing and task.index > 0 and isinstance(self.criterion, TAL):
            self.criterion.grow(task.stop, task.epoch_steps)
        else:
            self.criterion.begin_task(task)
        self.criterion.to(device).train()
