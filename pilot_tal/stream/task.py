"""`TaskInfo`: what a learner and a loss get at the start of a task."""

from dataclasses import dataclass

from data_lt.errors import UserError


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

    def __post_init__(self):
        if not (0 <= self.index < self.num_tasks and 0 <= self.first < self.stop):
            raise UserError(
                f"a task needs 0 <= index < num_tasks and 0 <= first < stop, got index={self.index}, "
                f"num_tasks={self.num_tasks}, first={self.first}, stop={self.stop}"
            )
        if len(self.counts) != self.num_classes:
            raise UserError(
                f"a task of {self.num_classes} classes needs as many training counts, got {len(self.counts)}"
            )

    @property
    def num_classes(self) -> int:
        """Number of classes of this task."""
        return self.stop - self.first
