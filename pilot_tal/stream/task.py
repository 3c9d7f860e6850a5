"""`TaskInfo`: what a learner and a loss get at the start of a task."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskInfo:
    """One task of the stream: its place, its classes and how many training images each has.

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
