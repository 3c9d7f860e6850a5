"""TAL's state over a run, from its log: Q and the weight α·w of each class, and whether it calibrated."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pilot_tal.record.run_dir import Run, damaged, task_file

CALIBRATED = 0.9  # mean α·w over the classes at the end of a task from which on we call TAL calibrated


@dataclass(frozen=True)
class TaskState:
    """One task's log: n `steps`, and for each of them Q and α·w of the k classes in `labels` (n × k)."""

    task: int
    steps: np.ndarray
    labels: np.ndarray
    q: np.ndarray
    weights: np.ndarray


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
    file, sizes = run.path / task_file("states", task), run.record.stream.task_sizes
    stop = sum(sizes[: task + 1])
    try:
        steps = np.array([line["step"] for line in lines], dtype=int)
        q, weights = (np.array([line[key] for line in lines], dtype=float) for key in ("Q", "weights"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = "each line needs step, Q and weights, equally long in a task"
        raise damaged(file, reason) from error
    if steps[0] < 0 or (np.diff(steps) <= 0).any() or not (np.isfinite(q).all() and np.isfinite(weights).all()):
        raise damaged(file, "its steps must rise from 0 on, and Q and weights be numbers")
    # One weight for each class of the task, or for each class seen so far.
    classes = q.shape[1] if q.ndim == 2 else 0
    if weights.shape != q.shape or classes not in (sizes[task], stop):
        reason = f"task {task} has {sizes[task]} classes, but {classes} values a line"
        raise damaged(file, reason)
    return TaskState(task, steps, np.arange(stop - classes, stop), q, weights)
