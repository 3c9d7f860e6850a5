"""The stream of tasks: class order by seed, and tasks of disjoint classes."""

from collections.abc import Sequence

import numpy as np

from pilot_tal.errors import PilotTalError
from pilot_tal.task import TaskInfo


def class_order(num_classes: int, seed: int) -> list[int]:
    """The original label of each new label; the same permutation that LAMDA-PILOT draws for this seed."""
    return np.random.RandomState(seed).permutation(num_classes).tolist()


def equal_tasks(num_classes: int, tasks: int) -> list[int]:
    """Sizes of tasks as equal as can be; the first ones take the remainder (101 in 5: 21, 20, 20, 20, 20)."""
    if not 1 <= tasks <= num_classes:
        raise PilotTalError(f"tasks must be 1 to {num_classes}, the number of classes, got {tasks}")
    size, remainder = divmod(num_classes, tasks)
    return [size + (task < remainder) for task in range(tasks)]


def incremental_tasks(num_classes: int, init_cls: int, increment: int) -> list[int]:
    """LAMDA-PILOT's split: `init_cls` classes, then `increment` at a time; the last task takes the remainder."""
    if not 1 <= init_cls <= num_classes:
        raise PilotTalError(f"init_cls must be 1 to {num_classes}, the number of classes, got {init_cls}")
    if increment < 1:
        raise PilotTalError(f"increment must be at least 1, got {increment}")
    sizes = [init_cls]
    while sum(sizes) + increment < num_classes:
        sizes.append(increment)
    if sum(sizes) < num_classes:
        sizes.append(num_classes - sum(sizes))
    return sizes


def make_tasks(task_sizes: Sequence[int], train_counts: Sequence[int]) -> list[TaskInfo]:
    """The tasks of a stream, given the training counts by new label."""
    tasks, first = [], 0
    for index, size in enumerate(task_sizes):
        stop = first + size
        tasks.append(TaskInfo(index, len(task_sizes), first, stop, tuple(train_counts[first:stop])))
        first = stop
    return tasks
