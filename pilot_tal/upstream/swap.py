"""Puts a loss in the place of chosen cross-entropies of a learner, and restores everything afterwards."""

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.losses import TaskLoss
from pilot_tal.losses.tal import TAL
from pilot_tal.stream.task import TaskInfo
from pilot_tal.upstream.seams import Located
from pilot_tal.upstream.sites import LearnerSites

_ABSENT = object()
Loss = Callable[[Tensor, Tensor], Tensor]


class Patches(contextlib.ExitStack):
    """Attributes that are set until the context ends."""

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name`, on the class, instance or module itself, until the context ends."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        if before is _ABSENT:
            self.callback(delattr, owner, name)
        else:
            self.callback(setattr, owner, name, before)


class SwappedFunctional:
    """Stands for `torch.nn.functional` in one module: all as before but the cross-entropies at the swapped sites.

    A call is known by the line it stands on, which `check_seams` has located in the same file before.
    """

    def __init__(self, functional: ModuleType, located: Located, loss: Loss):
        self._functional, self._loss = functional, loss
        self._sites = {line: site for lines, site in located for line in lines}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functional, name)

    def cross_entropy(self, *args: Any, **kwargs: Any) -> Tensor:
        """The loss at a swapped site, torch's own cross-entropy at the others."""
        caller = sys._getframe(1)
        site = self._sites.get(caller.f_lineno)
        if site is None:
            raise UserError(
                f"cross_entropy was called in {caller.f_code.co_name}, line {caller.f_lineno} of "
                f"{caller.f_code.co_filename}, which is none of the known call sites"
            )
        return (self._loss if site.swap else self._functional.cross_entropy)(*args, **kwargs)


def swap(patches: Patches, module: Any, located: Located, loss: Loss) -> None:
    """Uses `loss` at the swapped sites of `module` until the context of `patches` ends."""
    patches.set(module, "F", SwappedFunctional(module.F, located, loss))


class Supervision:
    """Calls the loss with its task and epoch, and with the logits and targets of that task.

    A learner without replay gets the loss of one task's classes, labels from 0, and a new start in every task. Where
    old classes are replayed TAL keeps its state and grows, and losses with a prior get the counts of new images and
    exemplars together.

    Args:
        criterion: The loss.
        sites: What is known of the learner.
        epochs: The number of epochs of a task.
        on_step: Called after every swapped call with the epoch and the detached loss.

    `learner` and `num_tasks` are set when the learner begins its first task.
    """

    def __init__(self, criterion: TaskLoss, sites: LearnerSites, epochs: Callable[[int], int],
                 on_step: Callable[[int, Tensor], None]):  # fmt: skip
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
        labels = np.asarray(learner.train_loader.dataset.labels).astype(np.int64)
        if labels.min() < first or labels.max() >= stop:
            raise UserError(
                f"training labels must lie in {first} … {stop - 1} in task {learner._cur_task}, "
                f"got {labels.min()} … {labels.max()}"
            )
        counts = tuple(np.bincount(labels, minlength=stop)[first:].tolist())
        return TaskInfo(learner._cur_task, self.num_tasks, first, stop, counts, len(learner.train_loader))

    def _begin_task(self, task: TaskInfo, device: torch.device) -> None:
        self.task, self._steps = task, 0
        if self.sites.growing and task.index > 0 and isinstance(self.criterion, TAL):
            self.criterion.grow(task.stop, task.epoch_steps)
        else:
            self.criterion.begin_task(task)
        self.criterion.to(device).train()
