"""TAL's state over a run, from its log: Q and the weight α·w of each class, and whether it calibrated."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pilot_tal.rundir import Run, damaged

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
        PilotTalError: the log does not fit the tasks of the run.
    """
    lines: dict[int, list[dict]] = {}
    for line in run.tal_log():
        task = line.get("task")
        if not isinstance(task, int) or not 0 <= task < run.info.num_tasks:
            raise damaged(run.path / "tal.jsonl", f"it names a task outside 0 … {run.info.num_tasks - 1}")
        lines.setdefault(task, []).append(line)
    return [_task_state(run, task, lines[task]) for task in sorted(lines)]


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
    stop = sum(run.info.task_sizes[: task + 1])
    try:
        steps = np.array([line["step"] for line in lines], dtype=int)
        q, weights = (np.array([line[key] for line in lines], dtype=float) for key in ("Q", "weights"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = "each line needs step, Q and weights, equally long in a task"
        raise damaged(run.path / "tal.jsonl", reason) from error
    # One weight for each class of the task, or for each class seen so far.
    classes = q.shape[1] if q.ndim == 2 else 0
    if weights.shape != q.shape or classes not in (run.info.task_sizes[task], stop):
        reason = f"task {task} has {run.info.task_sizes[task]} classes, but {classes} values a line"
        raise damaged(run.path / "tal.jsonl", reason)
    return TaskState(task, steps, np.arange(stop - classes, stop), q, weights)
