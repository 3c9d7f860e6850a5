"""The stream of tasks: class order by seed, and tasks of disjoint classes."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path, read_names

ORDERS = ("shuffled", "head_first", "tail_first")


@dataclass(frozen=True)
class TaskInfo:
    """What a learner and a loss get at the start of a task: its place, its classes and their training images.

    Labels are those after the class order was applied, so a task owns the consecutive labels
    `first … stop - 1` and `stop` is also the number of classes seen so far.
    """

    index: int
    num_tasks: int
    first: int
    stop: int
    counts: tuple[int, ...]
    epoch_steps: int | None = None
    """Optimizer steps of one epoch, where they are known."""

    @property
    def num_classes(self) -> int:
        """Number of classes of this task."""
        return self.stop - self.first


def class_order(order: str, seed: int, names: Sequence[str], counts: Sequence[int]) -> list[int]:
    """The original label of each new label, from names and training counts by original label.

    `shuffled` is the permutation that LAMDA-PILOT draws for this seed; `head_first` and `tail_first` go by the training
    counts, equal ones by label; any other order is a file with the class names, one a line.
    """
    if order == "shuffled":
        return np.random.RandomState(seed).permutation(len(names)).tolist()
    if order in ORDERS:
        sizes = np.asarray(counts) if order == "tail_first" else -np.asarray(counts)
        return np.argsort(sizes, kind="stable").tolist()
    return _order_of_file(given_path(order, "order"), names)


def _order_of_file(file: Path, names: Sequence[str]) -> list[int]:
    if not file.is_file():
        raise UserError(f"order must be {', '.join(ORDERS)} or a file with a class name a line, got {str(file)[:60]!r}")
    order, labels = read_names(file, "order"), {name: label for label, name in enumerate(names)}
    for name in order:
        if name not in labels:
            raise unknown_name(f"class in {file}", name, labels)
    if missing := labels.keys() - set(order):
        raise UserError(f"the class order {file} lacks {min(missing)!r}; it must name each of the {len(names)} classes")
    return [labels[name] for name in order]


def equal_tasks(num_classes: int, tasks: int) -> list[int]:
    """Sizes of tasks as equal as can be; the first ones take the remainder (101 in 5: 21, 20, 20, 20, 20)."""
    if not 1 <= tasks <= num_classes:
        raise UserError(f"tasks must be 1 to {num_classes}, the number of classes, got {tasks}")
    size, remainder = divmod(num_classes, tasks)
    return [size + (task < remainder) for task in range(tasks)]


def incremental_tasks(num_classes: int, init_cls: int, increment: int) -> list[int]:
    """LAMDA-PILOT's split: `init_cls` classes, then `increment` at a time; the last task takes the remainder."""
    if not 1 <= init_cls <= num_classes:
        raise UserError(f"init_cls must be 1 to {num_classes}, the number of classes, got {init_cls}")
    if increment < 1:
        raise UserError(f"increment must be at least 1, got {increment}")
    return [init_cls, *(min(increment, num_classes - seen) for seen in range(init_cls, num_classes, increment))]


def given_tasks(num_classes: int, sizes: Sequence[int]) -> list[int]:
    """Sizes that a user listed, which must cover every class."""
    if sum(sizes) != num_classes:
        raise UserError(
            f"task_sizes has {sum(sizes)} classes in all, but there are {num_classes}; "
            "change a size, or choose as many classes with classes="
        )
    return list(sizes)


def imbalanced_counts(task_sizes: Sequence[int], counts: Sequence[int], task_rho: float) -> list[int]:
    """Training counts by new label where the classes of later tasks are rarer.

    A class of task t of T keeps the share task_rho^(-t / (T - 1)) of its images, rounded down, and at least one: all
    of them in the first task (t = 0), 1 / task_rho in the last.
    """
    if task_rho == 1:
        return list(counts)
    if len(task_sizes) == 1:
        raise UserError("task_rho makes later tasks rarer and needs at least two tasks; leave it out")
    shares = [task_rho ** (-task / (len(task_sizes) - 1)) for task, size in enumerate(task_sizes) for _ in range(size)]
    return [max(1, math.floor(count * share + 1e-9)) for count, share in zip(counts, shares, strict=True)]


def make_tasks(task_sizes: Sequence[int], train_counts: Sequence[int]) -> list[TaskInfo]:
    """The tasks of a stream, given the training counts by new label."""
    bounds = enumerate(itertools.pairwise([0, *itertools.accumulate(task_sizes)]))
    return [TaskInfo(i, len(task_sizes), first, stop, tuple(train_counts[first:stop])) for i, (first, stop) in bounds]
