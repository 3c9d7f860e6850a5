"""What is logged of a run, from its step log, its states and its predictions: the numbers that the report has."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pilot_tal.metrics import summarize, tail_classes
from pilot_tal.record.run_dir import Run, damaged, task_file, task_files
from pilot_tal.record.run_record import short_hash
from pilot_tal.results.grouping import load_study
from pilot_tal.results.plots import setting_plots
from pilot_tal.results.svg import Plot
from pilot_tal.results.tal_state import TaskState, read_states

OF_A_STEP = {"loss": "train/loss", "aux": "train/auxiliary loss", "lr": "train/learning rate"}
AFTER_TASK = {"a_last": "accuracy", "a_mean": "A_Mean", "a_tail": "A_Tail", "a_head": "A_Head", "a_avg": "A_Avg"}


@dataclass(frozen=True)
class TaskValues:
    """One task: values by name at each of its steps (from 0), and those after it."""

    task: int
    steps: dict[int, dict[str, float]]
    after: dict[str, float]
    mark: str
    """Changes with the task's files."""
    time: float
    """When the last of them was written."""


def task_values(run: Run) -> Iterator[TaskValues]:
    """The tasks that are finished, in their order."""
    stream = run.record.stream
    tail = tail_classes(stream.train_counts, stream.class_order)
    states = {state.task: state for state in read_states(run)}
    steps: dict[int, dict[int, dict[str, float]]] = {task: {} for task in range(run.tasks_done)}
    for line in run.step_log():
        try:
            known = {name: float(line[key]) for key, name in OF_A_STEP.items() if line[key] is not None}
            steps[line["task"]][int(line["step"])] = known
        except (KeyError, TypeError, ValueError) as error:
            file = run.path / task_file("steps", line["task"])
            raise damaged(file, f"each line needs step, {', '.join(OF_A_STEP)}") from error
    for task in range(run.tasks_done):
        if task in states:
            for step, values in _state_values(states[task], tail):
                steps[task].setdefault(step, {}).update(values)
        metrics = summarize(run.predictions[: task + 1], stream.task_sizes, stream.train_counts, stream.class_order)
        after = {f"after task/{AFTER_TASK[key]}": metrics[key] for key in AFTER_TASK if metrics.get(key) is not None}
        files = {name: run.files[name] for name in task_files(task) if name in run.files}
        time = max((run.path / name).stat().st_mtime for name in files)
        yield TaskValues(task, dict(sorted(steps[task].items())), after, short_hash(files), time)


def _state_values(state: TaskState, tail: np.ndarray) -> Iterator[tuple[int, dict[str, float]]]:
    """Q and α·w at the steps that were kept, as means over the head's and the tail's classes of the task."""
    in_tail = np.isin(state.labels, tail)
    parts = [(name, part) for name, part in (("head", ~in_tail), ("tail", in_tail)) if part.any()]
    for place, step in enumerate(state.steps.tolist()):
        yield (
            step,
            {
                f"tal/{what} {name}": float(values[place, part].mean())
                for what, values in (("Q", state.q), ("α·w", state.weights))
                for name, part in parts
            },
        )


def pictures(run: Run) -> list[Plot]:
    """The report's plots of a finished run."""
    return [plot for setting in load_study([run.path]).finished for plot in setting_plots(setting)]


def comparison(run: Run) -> str:
    """The same name for all runs that differ in loss and seed alone."""
    record, same = run.record, run.record.identity()
    for of_the_run in ("loss", "seed"):
        same.pop(of_the_run)
    return f"{record.data.name}-{record.method.name}-{short_hash(same)}"
