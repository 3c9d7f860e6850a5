"""Plots over the tasks: accuracy after each, over all classes and over parts of them, and task × task matrices."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pilot_tal.results.display import points, shorten
from pilot_tal.results.study import Group, Variant
from pilot_tal.results.svg import Plot, draw_cells, figure, legend, to_svg, variant_style

_NUMBERED_UP_TO = 12  # tasks; more do not leave room for a number in each cell
_LINES = ("--", "-.", ":")
_PARTS = {"tail_after_task": "tail so far", "old_after_task": "old classes", "new_after_task": "new classes"}


def accuracy_after_task(group: Group, variants: list[Variant]) -> Plot:
    """Accuracy over the classes seen, after each task."""
    shown, (axes,) = figure(2.9)
    _lines(axes, variants, "accuracy_after_task")
    for turn, reference in enumerate(group.references):
        values = 100 * reference.variant.mean_over_seeds("accuracy_after_task")
        look: dict[str, Any] = {
            "color": reference.variant.colour,
            "linestyle": _LINES[turn % len(_LINES)],
            "linewidth": 1.2,
        }
        if reference.joint:
            axes.axhline(values[-1], label=shorten(reference.title, 36), **look)
        else:
            axes.plot(np.arange(1, len(values) + 1), values, label=shorten(reference.title, 36), **look)
    axes.set(xlabel="after task", ylabel="accuracy, %")
    axes.margins(y=0.1)
    legend(shown, axes)
    caption = (
        "Over all classes seen by then; mean over seeds, bars are one standard deviation. "
        "The mean over the tasks is A_Avg, the end is A_Last."
    )
    if any(reference.joint for reference in group.references):
        caption += " Joint: the method's accuracy when it sees all classes in one task, its upper bound."
    return Plot("accuracy-after-task", "Accuracy after each task", caption, to_svg(shown))


def parts_after_task(variants: list[Variant]) -> Plot:
    """Accuracy on the tail, on old and on new classes after each task."""
    shown, panels = figure(5.0, rows=len(_PARTS), sharex=True)
    for axes, (metric, name) in zip(panels, _PARTS.items(), strict=True):
        _lines(axes, variants, metric)
        axes.set_ylabel(f"{name}, %")
        axes.margins(y=0.12)
    panels[-1].set_xlabel("after task")
    legend(shown, panels[0])
    caption = (
        "Mean over seeds, bars are one standard deviation. Tail: mean accuracy of its classes seen by then. Old: "
        "images of the classes of earlier tasks. New: images of the classes of the task just learnt."
    )
    return Plot("parts-after-task", "Tail, old and new classes after each task", caption, to_svg(shown))


def _lines(axes: Axes, variants: list[Variant], metric: str) -> None:
    """One line a variant, with a bar where several seeds have the metric."""
    for index, variant in enumerate(variants):
        runs = 100 * np.array([variant.runs[seed].metrics[metric] for seed in variant.seeds], dtype=float)
        tasks = np.arange(1, runs.shape[1] + 1)
        complete = ~np.isnan(runs).any(axis=0)
        bars = np.full(runs.shape[1], np.nan)
        if len(runs) > 1:
            bars[complete] = runs[:, complete].std(axis=0, ddof=1)
        shift = 0.06 * (index - (len(variants) - 1) / 2)  # so that the bars of two variants do not hide each other
        look = {"label": shorten(variant.label, 36), "capsize": 3, "markersize": 4, **variant_style(variant, variants)}
        axes.errorbar(tasks + shift, 100 * variant.mean_over_seeds(metric), bars if len(runs) > 1 else None, **look)
        axes.set_xticks(tasks if len(tasks) <= 20 else tasks[::5])


def task_matrices(group: Group, variants: list[Variant]) -> Iterator[Plot]:
    """Accuracy on each task's classes after each task: for every variant, and its difference to CE."""
    matrices = [(variant, 100 * variant.mean_over_seeds("task_matrix")) for variant in variants]
    everything = np.stack([matrix for _, matrix in matrices])
    limits = (10 * np.floor(np.nanmin(everything) / 10), 10 * np.ceil(np.nanmax(everything) / 10))
    for variant, matrix in matrices:
        caption = "Accuracy in percent on the classes of a task (column) after each task (row), mean over seeds."
        texts = [[f"{value:.0f}" for value in row] for row in matrix]
        svg = _matrix(matrix, "cividis", limits, texts)
        yield Plot(f"task-matrix-{variant.slug}", f"Task × task: {variant.label}", caption, svg)
    for variant in (variant for variant in group.compared_variants() if variant in variants):
        base, seeds = group.baseline(variant), group.pairs(variant)
        assert base is not None
        matrix = 100 * (
            variant.only(seeds).mean_over_seeds("task_matrix") - base.only(seeds).mean_over_seeds("task_matrix")
        )
        limit = max(5.0, float(np.nanmax(np.abs(matrix))))
        name = f"{variant.label} − {group.baseline_title}"
        caption = f"{name}, in points: orange is higher with {variant.label}, purple lower."
        texts = [[points(value / 100, 1) for value in row] for row in matrix]
        svg = _matrix(matrix, "PuOr_r", (-limit, limit), texts)
        yield Plot(f"task-matrix-difference-{variant.slug}", f"Task × task: {name}", caption, svg)


def _matrix(matrix: np.ndarray, colours: str, limits: tuple[float, float], texts: list[list[str]]) -> str:
    """A lower triangle of coloured cells with their numbers."""
    tasks = len(matrix)
    shown, (axes,) = figure(4.0 if tasks > 2 else 3.0)
    draw_cells(axes, matrix, colours, limits, texts if tasks <= _NUMBERED_UP_TO else [])
    places, step = np.arange(tasks) + 0.5, 1 if tasks <= 20 else 5
    axes.set_xticks(places[::step], np.arange(1, tasks + 1)[::step])
    axes.set_yticks(places[::step], np.arange(1, tasks + 1)[::step])
    axes.set(xlabel="classes of task", ylabel="after task")
    return to_svg(shown)
