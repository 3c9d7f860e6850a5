"""Plots over tasks and epochs: accuracy, precision and recall, training curves, TAL's state, prompts picked."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from pilot_tal.metrics import tail_classes
from pilot_tal.results.drawing import INK, Plot, figure, heatmap, legend, reference_style, variant_style
from pilot_tal.results.groups import Group, Variant
from pilot_tal.results.training import TaskState, epoch_means, prompt_usage, read_states

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
    tasks = np.arange(1, len(group.task_sizes) + 1)
    for axes, (metric, name) in zip(panels, PARTS.items(), strict=True):
        for index, variant in enumerate(variants):
            runs = np.array([variant.runs[seed].metrics[metric] for seed in variant.seeds], dtype=float)
            bars = 100 * runs.std(axis=0, ddof=1) if len(runs) > 1 else None
            look = {"capsize": 3, "markersize": 4, **variant_style(variant, variants)}
            shift = 0.06 * (index - (len(variants) - 1) / 2)  # so that bars do not hide each other
            axes.errorbar(tasks + shift, 100 * variant.mean_over_seeds(metric), bars, **look)
        for turn, reference in enumerate(group.references):
            values = 100 * reference.variant.mean_over_seeds(metric)
            if not reference.joint:
                axes.plot(tasks, values, **reference_style(reference, turn))
            elif metric == "accuracy_after_task":
                axes.axhline(values[-1], **reference_style(reference, turn))
        axes.set_ylabel(f"{name}, %")
        axes.margins(y=0.12)
    _count_along(panels[-1], "after task")
    legend(shown, panels[0])
    joint = any(reference.joint for reference in group.references)
    caption = (
        "Mean over seeds, bars are one standard deviation. All: images of all classes seen; its mean over tasks is "
        "A_Avg. Tail: mean accuracy of its classes seen by then. Old: images of the classes of earlier tasks. New: "
        "images of the classes just learned. Thin lines are references"
        f"{'; joint is the same method with all classes in one task' if joint else ''}."
    )
    return Plot("after-task", "Accuracy after each task", caption, shown)


def task_matrix(variant: Variant) -> Plot:
    """Accuracy on each task's classes after each task."""
    matrix = 100 * variant.mean_over_seeds("task_matrix")
    tasks = len(matrix)
    shown, (axes,) = figure(4.0 if tasks > 2 else 3.0)
    _percent_cells(axes, matrix)
    axes.set(xlabel="classes of task", ylabel="after task")
    caption = "Accuracy in percent on the classes of a task (column) after each task (row), mean over seeds."
    return Plot(f"task-matrix-{variant.slug}", f"Task × task: {variant.label}", caption, shown)


def precision_recall_by_task(group: Group, variants: Sequence[Variant]) -> Plot:
    """Mean precision minus recall of the classes of each task after the last one."""
    shown, (axes,) = figure(2.9)
    for variant in variants:
        gaps = []
        for run in variant.runs.values():
            precision, recall = (np.array(run.metrics["per_class"][k], dtype=float) for k in ("precision", "accuracy"))
            parts = np.split(np.ma.masked_invalid(precision - recall), np.cumsum(group.task_sizes)[:-1])
            gaps.append([100 * float(np.ma.filled(part.mean(), np.nan)) for part in parts])
        axes.plot(np.arange(1, len(gaps[0]) + 1), np.mean(gaps, axis=0), **variant_style(variant, variants))
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_ylabel("precision − recall, points")
    _count_along(axes, "task in which the class was learned")
    legend(shown, axes)
    caption = (
        "After the last task, mean over the classes of a task. Above 0 its classes are predicted too rarely, "
        "below 0 too often. The paper sees old classes above and new ones below."
    )
    return Plot("precision-recall-by-task", "Precision minus recall, by task", caption, shown)


def training_curves(variants: Sequence[Variant]) -> Iterator[Plot]:
    """Training loss and accuracy per epoch, all tasks in a row; none where no run logged its steps."""
    found = {key: {v: tasks for v in variants if (tasks := _over_seeds(v, key))} for key in ("loss", "accuracy")}
    curves = {key: tasks for key, tasks in found.items() if tasks}  # runs of earlier versions have no accuracy
    if not curves:
        return
    shown, panels = figure(0.7 + 2.2 * len(curves), rows=len(curves), sharex=True)
    for axes, (key, tasks_of) in zip(panels, curves.items(), strict=True):
        for variant, tasks in tasks_of.items():
            look = {**variant_style(variant, [*tasks_of]), "markersize": 3}
            stops = np.cumsum([*map(len, tasks.values())])
            for stop, means in zip(stops, tasks.values(), strict=True):
                axes.plot(np.arange(stop - len(means) + 1, stop + 1), means * (100 if key == "accuracy" else 1), **look)
                look["label"] = None
            if key == "accuracy":
                after = 100 * variant.mean_over_seeds("new_after_task")[[*tasks]]
                axes.plot(stops, after, "D", color=variant.colour, fillstyle="none", markersize=7)
        for bound in np.cumsum([*map(len, next(iter(tasks_of.values())).values())])[:-1]:
            axes.axvline(bound + 0.5, color=INK, alpha=0.35, linewidth=0.8, linestyle=":")
        axes.set(
            ylabel={"loss": "training loss", "accuracy": "accuracy, %"}[key], ylim=(min(0, axes.get_ylim()[0]), None)
        )
    _count_along(panels[-1], "epoch")
    legend(shown, panels[0])
    caption = "Mean over the steps of an epoch and over seeds; dotted lines separate tasks. Losses differ in scale."
    if "accuracy" in curves:
        caption += (
            " Lines below: training accuracy, of augmented images among the classes of the task. Diamonds: test "
            "accuracy on the same classes after the task, among all classes seen."
        )
    yield Plot(
        "training-loss", "Training loss and accuracy" if "accuracy" in curves else "Training loss", caption, shown
    )


def _over_seeds(variant: Variant, key: str) -> dict[int, np.ndarray]:
    """Task → mean over seeds per epoch, of the runs with as many epochs as the first."""
    runs = [means for run in variant.runs.values() if (means := epoch_means(run, key))]
    shapes = [{task: len(means) for task, means in run.items()} for run in runs]
    same = [run for run, shape in zip(runs, shapes, strict=True) if shape == shapes[0]]
    return {task: np.mean([run[task] for run in same], axis=0) for task in (same[0] if same else ())}


def prompts_picked(group: Group, variants: Sequence[Variant]) -> Iterator[Plot]:
    """Share of the images of each task that pick each prompt; variants that pick alike share a plot.

    Losses often pick alike: only the pull towards the queries trains the keys.
    """
    alike: dict[str, tuple[list[Variant], dict[int, tuple[np.ndarray, np.ndarray]]]] = {}
    for variant in variants:
        usage = {seed: found for seed in variant.seeds if (found := prompt_usage(variant.runs[seed]))}
        if usage:
            key = repr([(seed, images.tolist(), counts.tolist()) for seed, (images, counts) in usage.items()])
            alike.setdefault(key, ([], usage))[0].append(variant)
    for members, usage in alike.values():
        seed, (images, counts) = next(iter(usage.items()))
        shown, (axes,) = figure(0.9 + 0.4 * min(len(counts), _NUMBERED_UP_TO))
        _percent_cells(axes, 100 * counts / np.maximum(images, 1)[:, None])
        axes.set(xlabel="prompt", ylabel="images of task")
        needed = [prompts_needed(found.sum(axis=0)) for _, found in usage.values()]
        same = prompts_needed(np.ones(round(counts.sum() / max(images.sum(), 1)), dtype=int))
        caption = (
            f"Seed {seed}, after the last task: percent of the test images of a task's classes (row) that pick a "
            f"prompt (column). {', '.join(map(str, needed))} of {counts.shape[1]} prompts make up 90 % of all picks"
            f"{' (one number per seed)' if len(needed) > 1 else ''}; it would be {same} if all images picked the same."
        )
        if group.fidelity == "pilot":
            caption += " With fidelity pilot the images of a batch share their prompts, by vote."
        names = ", ".join(variant.label for variant in members)
        yield Plot(f"prompts-{members[0].slug}", f"Prompts picked: {names}", caption, shown)


def prompts_needed(picks: np.ndarray, share: float = 0.9) -> int:
    """How many prompts, the most picked first, make up a share of all picks."""
    covered = np.cumsum(np.sort(picks)[::-1]) / max(picks.sum(), 1)
    return int((covered < share - 1e-9).sum()) + 1


def _percent_cells(axes: Axes, matrix: np.ndarray) -> None:
    """A matrix of percents as a heatmap, with the numbers where there is room; rows and columns count from 1."""
    heatmap(axes, matrix, Normalize(0, 100))
    for row, column in np.argwhere(~np.isnan(matrix)) if max(matrix.shape) <= _NUMBERED_UP_TO else ():
        value, ink = matrix[row, column], "#000000" if matrix[row, column] > 55 else "#ffffff"
        axes.text(column + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=10)
    for axis, count in zip((axes.yaxis, axes.xaxis), matrix.shape, strict=True):
        step = 1 if count <= 20 else 5
        axis.set_ticks(np.arange(count)[::step] + 0.5, np.arange(1, count + 1)[::step])


def tal_over_steps(variants: Sequence[Variant]) -> Iterator[Plot]:
    """Q and α·w for head and tail classes, a plot for each TAL variant that logged them."""
    for variant in (variant for variant in variants if variant.loss.startswith("tal")):
        seed = variant.seeds[0]
        states = read_states(variant.runs[seed])
        if states:
            ends = ", ".join(f"{state.weights[-1].mean():.2f}" for state in states)
            caption = (
                f"Seed {seed}. Lines are means over the classes of a part, bands reach from the smallest to the "
                "largest; dotted lines start a task. At α·w = 1 negatives weigh as in CE. Mean α·w over all classes "
                f"at the end of each task: {ends}."
            )
            yield _tal_plot(variant, seed, states, caption)


def _tal_plot(variant: Variant, seed: int, states: list[TaskState], caption: str) -> Plot:
    stream = variant.runs[seed].record.stream
    in_tail = np.isin(np.arange(len(stream.class_order)), tail_classes(stream.train_counts, stream.class_order))
    shown, panels = figure(4.6, rows=2, sharex=True)
    for axes, what in zip(panels, ("q", "weights"), strict=True):
        for state in states:
            axes.axvline(state.start, color=INK, alpha=0.35, linewidth=0.8, linestyle=":")
        for name, wanted, ink, line in (("head", False, INK, "-"), ("tail", True, variant.colour, "--")):
            label: str | None = f"{name} classes"
            for state in states:
                values = getattr(state, what)[:, in_tail[state.labels] == wanted]
                if values.shape[1]:
                    axes.fill_between(state.steps, values.min(1), values.max(1), color=ink, alpha=0.15, linewidth=0)
                    marker = "o" if len(values) == 1 else None  # no line shows a task of one step
                    axes.plot(state.steps, values.mean(1), line, color=ink, label=label, marker=marker, markersize=3)
                    label = None
    panels[0].set_ylabel("Q")
    panels[1].set(ylabel="α·w", xlabel="step")
    panels[1].axhline(1, color=INK, linewidth=1, alpha=0.6, label="α·w = 1")
    for axes in panels:  # after all is drawn, so that the upper end includes the line
        axes.set_ylim(bottom=0)
    legend(shown, panels[1])
    return Plot(f"tal-state-{variant.slug}", f"Q and α·w over the steps: {variant.label}", caption, shown)


def _count_along(axes: Axes, title: str) -> None:
    axes.set_xlabel(title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
