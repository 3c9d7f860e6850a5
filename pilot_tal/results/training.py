"""What the logs of a run hold: loss and accuracy per epoch, TAL's Q and weight α·w per class, prompts picked."""

from dataclasses import dataclass

import numpy as np

from pilot_tal.record.run_dir import Run

CALIBRATED = 0.9
"""Mean α·w over the classes at the end of a task from which on TAL counts as calibrated."""


@dataclass(frozen=True)
class TaskState:
    """One task's log: `steps`, counted over all tasks, and for each Q and α·w of the classes in `labels`."""

    start: int
    steps: np.ndarray
    labels: np.ndarray
    q: np.ndarray
    weights: np.ndarray


def epoch_means(run: Run, key: str) -> dict[int, np.ndarray]:
    """Mean of `loss` or `accuracy` over the steps of each epoch, an array per task; empty where it was not logged."""
    tasks: dict[int, dict[int, list[float]]] = {}
    for line in run.step_log():
        if isinstance(value := line.get(key), (int, float)):
            tasks.setdefault(line["task"], {}).setdefault(line.get("epoch", 0), []).append(value)
    return {task: np.array([np.mean(epochs[e]) for e in sorted(epochs)]) for task, epochs in sorted(tasks.items())}


def prompt_usage(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Test images of each task's classes, and how many picked each prompt (tasks × pool); None without a log."""
    lines = [line for line in run.prompt_log() if line["task"] == run.tasks_done - 1]
    return (np.array([n["images"] for n in lines]), np.array([n["counts"] for n in lines])) if lines else None


def read_states(run: Run) -> list[TaskState]:
    """TAL's state in each logged task of a run; empty when nothing was logged."""
    lines: dict[int, list[dict]] = {}
    for line in run.state_log():
        lines.setdefault(line["task"], []).append(line)
    states, start = [], 0
    for task, found in lines.items():
        steps = start + 1 + np.array([line["step"] for line in found])
        q, weights = (np.array([line[key] for line in found], dtype=float) for key in ("Q", "weights"))
        stop = sum(run.record.stream.task_sizes[: task + 1])
        labels = np.arange(stop - q.shape[1], stop)  # those of the task, or all seen so far
        states.append(TaskState(start, steps, labels, q, weights))
        start = int(steps[-1])
    return states


def mean_weights(run: Run) -> list[float]:
    """Mean α·w over the classes at the end of each task: near or above 1 when TAL is calibrated."""
    return [float(state.weights[-1].mean()) for state in read_states(run)]
