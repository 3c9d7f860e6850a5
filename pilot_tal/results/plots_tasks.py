"""Plots over the tasks: accuracy after each, over all classes and over parts of them, and task × task matrices."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pilot_tal.results.display import shorten
from pilot_tal.results.drawing import Plot, draw_cells, figure, legend, reference_style, variant_style
from pilot_tal.results.groups import Group, Variant

_NUMBERED_UP_TO = 12  # tasks; more leave no room for a number in each cell
PARTS = {
    "accuracy_after_task": "all classes",
    "tail_after_task": "tail so far",
    "old_after_task": "old classes",
    "new_after_task": "new classes",
}


def after_task(group: Group, variants: Sequence[Variant]) -> Plot:
    """Accuracy on all, tail, old and new classes after each task, with references as thin lines."""
    shown, panels = figure(6.6, rows=len(PARTS), sharex=True)
    for axes, (metric, name) in zip(panels, PARTS.items(), strict=True):
        for index, variant in enumerate(variants):
            _line(axes, variant, metric, 0.06 * (index - (len(variants) - 1) / 2), variants)
        for turn, reference in enumerate(group.references):
            values = 100 * reference.variant.mean_over_seeds(metric)
            look = {"label": shorten(reference.title, 36), **reference_style(turn)}
            if not reference.joint:
                axes.plot(np.arange(1, len(values) + 1), values, **look)
            elif metric == "accuracy_after_task":
                axes.axhline(values[-1], **look)
        axes.set_ylabel(f"{name}, %")
        axes.margins(y=0.12)
    panels[-1].set_xlabel("after task")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(shown, panels[0])
    caption = (
        "Mean over seeds, bars are one standard deviation. All: images of all classes seen; its mean over tasks is "
        "A_Avg. Tail: mean accuracy of its classes seen by then. Old: images of the classes of earlier tasks. New: "
        "images of the classes just learned. Thin lines are references"
    )
    caption += "; joint is the same method with all classes in one task." if _has_joint(group) else "."
    return Plot("after-task", "Accuracy after each task", caption, shown)


def task_matrix(variant: Variant) -> Plot:
    """Accuracy on each task's classes after each task."""
    matrix = 100 * variant.mean_over_seeds("task_matrix")
    tasks = len(matrix)
    shown, (axes,) = figure(4.0 if tasks > 2 else 3.0)
    texts = [[f"{value:.0f}" for value in row] for row in matrix] if tasks <= _NUMBERED_UP_TO else []
    draw_cells(axes, matrix, "cividis", (0, 100), texts)
    places, step = np.arange(tasks) + 0.5, 1 if tasks <= 20 else 5
    axes.set_xticks(places[::step], np.arange(1, tasks + 1)[::step])
    axes.set_yticks(places[::step], np.arange(1, tasks + 1)[::step])
    axes.set(xlabel="classes of task", ylabel="after task")
    caption = "Accuracy in percent on the classes of a task (column) after each task (row), mean over seeds."
    return Plot(f"task-matrix-{variant.slug}", f"Task × task: {variant.label}", caption, shown)


def _line(axes: Axes, variant: Variant, metric: str, shift: float, variants: Sequence[Variant]) -> None:
    """A variant's line, with a bar where several seeds have the metric; `shift` keeps bars from hiding each other."""
    runs = 100 * np.array([variant.runs[seed].metrics[metric] for seed in variant.seeds], dtype=float)
    complete = ~np.isnan(runs).any(axis=0)
    bars = np.full(runs.shape[1], np.nan)
    if len(runs) > 1:
        bars[complete] = runs[:, complete].std(axis=0, ddof=1)
    look = {"label": shorten(variant.label, 36), "capsize": 3, "markersize": 4, **variant_style(variant, variants)}
    tasks = np.arange(1, runs.shape[1] + 1) + shift
    axes.errorbar(tasks, 100 * variant.mean_over_seeds(metric), bars if len(runs) > 1 else None, **look)


def _has_joint(group: Group) -> bool:
    return any(reference.joint for reference in group.references)
