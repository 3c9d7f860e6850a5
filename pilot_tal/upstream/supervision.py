"""The loss as a learner of the checkout meets it: called where its cross-entropy was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pilot_tal.errors import PilotTalError
from pilot_tal.tal import TAL
from pilot_tal.task import TaskInfo

Observer = Callable[[TaskInfo, Tensor], None]


class Supervision:
    """Tells the loss which task it is in, and hands it the logits and targets it is made for.

    LAMDA-PILOT masks old classes with -inf and keeps global labels: the loss gets the columns of the task alone
    and labels from 0, and starts anew in every task. PyCIL replays old classes (`growing`): the loss gets all
    classes so far; TAL keeps its state and grows, and losses with a prior get the counts of new images and
    exemplars together.

    Args:
        criterion: The loss.
        growing: Whether old classes are replayed.
        on_step: Called after every swapped call with the task and the detached loss.

    `learner` and `num_tasks` are set once the checkout has built the one and split the classes.
    """

    def __init__(self, criterion: torch.nn.Module, growing: bool, on_step: Observer):
        self.criterion, self.growing, self.on_step = criterion, growing, on_step
        self.num_tasks = 0
        self.learner: Any = None
        self.task: TaskInfo | None = None

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch of training images."""
        if self.task is None or self.task.index != self.learner._cur_task:
            self._begin_task(logits)
        task = self.task
        if logits.shape[1] != task.stop:
            raise PilotTalError(
                f"the learner must give {task.stop} logits in task {task.index}, one a class seen, "
                f"got {logits.shape[1]}"
            )
        loss = self.criterion(logits[:, task.first :], targets.long() - task.first)
        self.on_step(task, loss.detach().clone())  # a learner may add to its loss in place
        return loss

    def _begin_task(self, logits: Tensor) -> None:
        """At the first batch of a task: by then the learner has made the loader it trains with."""
        learner = self.learner
        first, stop = (0 if self.growing else learner._known_classes), learner._total_classes
        labels = np.asarray(learner.train_loader.dataset.labels)
        if labels.min() < first or labels.max() >= stop:
            raise PilotTalError(
                f"training labels must lie in {first} … {stop - 1} in task {learner._cur_task}, "
                f"got {labels.min()} … {labels.max()}"
            )
        if first and not bool(torch.isneginf(logits[:, :first]).all()):
            raise PilotTalError("the learner no longer masks the logits of old classes with -inf")
        counts = np.bincount(labels, minlength=stop)[first:].tolist()
        self.task = TaskInfo(learner._cur_task, self.num_tasks, first, stop, tuple(counts))
        if isinstance(self.criterion, TAL) and self.growing and self.task.index > 0:
            self.criterion.grow(stop)
        else:
            self.criterion.begin_task(self.task)
        self.criterion.to(logits.device).train()
