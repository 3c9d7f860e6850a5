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
from pilot_tal.stream.task import TaskInfo
from pilot_tal.upstream.checkout import Located

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

    A call is known by the line it stands on, which `locate` has found in the same file before.
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
    """Calls the loss with its task and epoch, and with the columns of the task, labels from 0.

    Args:
        criterion: The loss; it begins anew in every task.
        masked: Whether the learner gives all classes so far, old ones at −inf.
        epochs: The number of epochs of a task.
        on_step: Called after every swapped call with the epoch and the detached loss.

    `learner` and `num_tasks` are set when the learner begins its first task.
    """

    def __init__(self, criterion: TaskLoss, masked: bool, epochs: Callable[[int], int],
                 on_step: Callable[[int, Tensor], None]):  # fmt: skip
        self.criterion, self.masked, self.epochs, self.on_step = criterion, masked, epochs, on_step
        self.num_tasks = 0
        self.learner: Any = None
        self.task: TaskInfo | None = None
        self._steps = 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch of training images."""
        if self.task is None or self.task.index != self.learner._cur_task:
            self.task, self._steps = self._next_task(logits), 0
            self.criterion.begin_task(self.task)
            self.criterion.to(logits.device).train()
        task, targets = self.task, targets.long()
        if self.masked:
            logits, targets = logits[:, task.first :], targets - task.first
        epoch, batch = divmod(self._steps, task.epoch_steps or 1)
        if batch == 0:
            self.criterion.begin_epoch(epoch, self.epochs(task.index))
        loss = self.criterion(logits, targets)
        self._steps += 1
        self.on_step(epoch, loss.detach().clone())  # a learner may add to its loss in place
        return loss

    def _next_task(self, logits: Tensor) -> TaskInfo:
        """At the first batch of a task: by then the learner has made the loader it trains with."""
        learner = self.learner
        index, first, stop = learner._cur_task, learner._known_classes, learner._total_classes
        labels = np.asarray(learner.train_loader.dataset.labels).astype(np.int64)
        if labels.min() < first or labels.max() >= stop:
            raise UserError(
                f"training labels must lie in {first} … {stop - 1} in task {index}, got {labels.min()} … {labels.max()}"
            )
        columns = stop if self.masked else stop - first
        if logits.shape[1] != columns:
            raise UserError(f"the learner must give {columns} logits in task {index}, got {logits.shape[1]}")
        if self.masked and not bool(torch.isneginf(logits[:, :first]).all()):
            raise UserError("the learner no longer masks the logits of old classes with -inf")
        counts = tuple(np.bincount(labels, minlength=stop)[first:].tolist())
        return TaskInfo(index, self.num_tasks, first, stop, counts, len(learner.train_loader))
