"""Plots over the tasks: accuracy after each, the task × task matrices, and all settings' differences."""

from collections.abc import Callable, Iterator

import numpy as np

from pilot_tal.report.study import BASELINE, Arm, Setting, Study
from pilot_tal.report.svg import INK, Plot, arm_style, colour, figure, legend, to_svg
from pilot_tal.report.text import LOSSES, clean, points, shorten, slug

_NUMBERED_UP_TO = 12  # tasks; more do not leave room for a number in each cell


def accuracy_after_task(setting: Setting) -> Plot:
    """Accuracy over the classes seen, after each task."""
    arms, tasks = setting.finished_arms(), np.arange(1, len(setting.task_sizes) + 1)
    shown, (axes,) = figure(2.9)
    for index, arm in enumerate(arms):
        runs = 100 * np.array([arm.results[seed].metrics["accuracy_after_task"] for seed in arm.seeds])
        shift = 0.06 * (index - (len(arms) - 1) / 2)  # so that the bars of two arms do not hide each other
        error = runs.std(axis=0, ddof=1) if len(runs) > 1 else None
        axes.errorbar(
            tasks + shift,
            runs.mean(axis=0),
            error,
            label=shorten(arm.label, 36),
            capsize=3,
            markersize=4,
            **arm_style(arm, arms),
        )
    axes.set(xlabel="after task", ylabel="accuracy, %", xticks=tasks)
    axes.margins(y=0.1)
    legend(shown, axes)
    caption = (
        "Over all classes seen by then; mean over seeds, bars are one standard deviation. "
        "The mean over the tasks is A_Avg, the end is A_Last."
    )
    return Plot("accuracy-after-task", "Accuracy after each task", caption, to_svg(shown))


def task_matrices(setting: Setting) -> Iterator[Plot]:
    """Accuracy on each task's classes after each task: for every arm, and its difference to CE."""
    matrices = [(arm, 100 * arm.mean_over_seeds("task_matrix")) for arm in setting.finished_arms()]
    everything = np.stack([matrix for _, matrix in matrices])
    limits = (10 * np.floor(np.nanmin(everything) / 10), 10 * np.ceil(np.nanmax(everything) / 10))
    for arm, matrix in matrices:
        caption = "Accuracy in percent on the classes of a task (column) after each task (row), mean over seeds."
        svg = _matrix(matrix, "cividis", limits, "{:.0f}".format)
        yield Plot(f"task-matrix-{arm.slug}", f"Task × task: {arm.label}", caption, svg)
    for arm in setting.compared_arms():
        base, seeds = setting.baseline(arm), setting.pairs(arm)
        assert base is not None
        matrix = 100 * (
            arm.only(seeds).mean_over_seeds("task_matrix") - base.only(seeds).mean_over_seeds("task_matrix")
        )
        limit = max(5.0, float(np.nanmax(np.abs(matrix))))
        name = f"{arm.label} − {LOSSES[BASELINE]}"
        caption = f"{name}, in points: orange is higher with {arm.label}, purple lower."
        svg = _matrix(matrix, "PuOr_r", (-limit, limit), lambda value: points(value / 100, 1))
        yield Plot(f"task-matrix-difference-{arm.slug}", f"Task × task: {name}", caption, svg)


def differences(study: Study, metric: str, name: str) -> Plot | None:
    """Difference to CE with its interval in every setting; None when there is nothing to compare."""
    cases = [
        (setting, arm, difference)
        for setting in study.finished
        for arm in setting.compared_arms()
        if arm.counts and (difference := setting.difference(arm, metric)) is not None
    ]
    if not cases:
        return None
    shown, (axes,) = figure(1.0 + 0.5 * len(cases))
    for row, (_, arm, found) in enumerate(cases):
        if found.low is not None:
            axes.plot([100 * found.low, 100 * found.high], [row, row], color=colour(arm.loss), linewidth=2.5)
        axes.plot(100 * found.mean, row, "o", color=colour(arm.loss), markersize=6)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(cases)), [_case_name(setting, arm) for setting, arm, _ in cases], fontsize=9)
    axes.set(ylim=(len(cases) - 0.5, -0.5), xlabel="points against CE")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    svg = to_svg(shown)
    caption = "Mean over shared seeds, 95 % interval (none with one seed). Right of 0: better than CE."
    return Plot(f"differences-{slug(metric)}", f"Change of {name} against CE", caption, svg)


def _case_name(setting: Setting, arm: Arm) -> str:
    """Two lines; the method is in the second where the first says which data it is."""
    rest = f"{setting.tasks_name} · {clean(setting.fidelity)} · {arm.label}"
    if setting.data_note:
        return f"{shorten(setting.dataset_name, 36)}\n{shorten(f'{setting.method_name} · {rest}', 40)}"
    return f"{shorten(f'{setting.dataset_name} · {setting.method_name}', 32)}\n{shorten(rest, 40)}"


def _matrix(matrix: np.ndarray, colours: str, limits: tuple[float, float], show: Callable[[float], str]) -> str:
    """A lower triangle of coloured cells with their numbers."""
    tasks = len(matrix)
    shown, (axes,) = figure(4.0 if tasks > 2 else 3.0)
    mesh = axes.pcolormesh(np.ma.masked_invalid(matrix), cmap=colours, vmin=limits[0], vmax=limits[1])
    if tasks <= _NUMBERED_UP_TO:
        for row, column in zip(*np.tril_indices(tasks), strict=True):
            value = matrix[row, column]
            if not np.isnan(value):
                ink = _readable_on(mesh.cmap(mesh.norm(value)))
                text = show(value)
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontsize=10)
    places, step = np.arange(tasks) + 0.5, 1 if tasks <= 20 else 5
    axes.set_xticks(places[::step], np.arange(1, tasks + 1)[::step])
    axes.set_yticks(places[::step], np.arange(1, tasks + 1)[::step])
    axes.set(xlabel="classes of task", ylabel="after task", ylim=(tasks, 0))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return to_svg(shown)


def _readable_on(rgba: tuple[float, float, float, float]) -> str:
    """Black or white, whichever stands out."""
    return "#000000" if 0.299 * rgba[0] + 0.587 * rgba[1] + 0.114 * rgba[2] > 0.5 else "#ffffff"
