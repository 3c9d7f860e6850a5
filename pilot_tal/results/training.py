"""What the logs of a run tell about its training: the loss per epoch, and TAL's Q and weight α·w per class."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pilot_tal.record.run_dir import Run, damaged, task_file

CALIBRATED = 0.9
"""Mean α·w over the classes at the end of a task from which on TAL counts as calibrated."""


@dataclass(frozen=True)
class TaskState:
    """One task's log: n `steps`, and for each of them Q and α·w of the k classes in `labels` (n × k)."""

    task: int
    steps: np.ndarray
    labels: np.ndarray
    q: np.ndarray
    weights: np.ndarray


def epoch_losses(run: Run) -> list[np.ndarray]:
    """Mean training loss of each epoch, an array per task; empty for a run without a log of steps."""
    tasks: dict[int, dict[int, list[float]]] = {}
    for line in run.step_log():
        if isinstance(loss := line.get("loss"), (int, float)):
            tasks.setdefault(line["task"], {}).setdefault(line.get("epoch", 0), []).append(loss)
    return [np.array([np.mean(epochs[e]) for e in sorted(epochs)]) for _, epochs in sorted(tasks.items())]


def read_states(run: Run) -> list[TaskState]:
    """TAL's state in each logged task of a run; empty when nothing was logged.

    Raises:
        UserError: the log does not fit the tasks of the run.
    """
    lines: dict[int, list[dict]] = {}
    for line in run.state_log():
        lines.setdefault(line["task"], []).append(line)
    return [_task_state(run, task, found) for task, found in lines.items()]


def mean_weights(run: Run) -> list[float]:
    """Mean α·w over the classes at the end of each task: near or above 1 when TAL is calibrated."""
    return [float(state.weights[-1].mean()) for state in read_states(run)]


def over_steps(states: list[TaskState]) -> Iterator[tuple[int, TaskState]]:
    """Each task's state with the number of steps before it."""
    before = 0
    for state in states:
        yield before, state
        before += int(state.steps[-1]) + 1


def _task_state(run: Run, task: int, lines: list[dict]) -> TaskState:
    sizes = run.record.stream.task_sizes
    stop = sum(sizes[: task + 1])
    try:
        steps = np.array([line["step"] for line in lines], dtype=int)
        q, weights = (np.array([line[key] for line in lines], dtype=float) for key in ("Q", "weights"))
        # One weight for each class of the task, or for each class seen so far.
        if q.ndim != 2 or q.shape != weights.shape or q.shape[1] not in (sizes[task], stop):
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"every line needs step, and Q and weights of the {sizes[task]} classes of task {task}"
        raise damaged(run.path / task_file("states", task), reason) from error
    return TaskState(task, steps, np.arange(stop - q.shape[1], stop), q, weights)
