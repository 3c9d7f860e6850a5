"""The plots of a report: of a study, and of a group over its classes, tasks, epochs and steps."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from pilot_tal.metrics import AFTER_TASK, DEFINITIONS, Difference, mean_interval
from pilot_tal.record.run_dir import Run
from pilot_tal.results.drawing import INK, Plot, figure, legend
from pilot_tal.results.findings import epoch_means, read_states
from pilot_tal.results.formats import number, shorten, slug
from pilot_tal.results.study import Classes, Group, Reference, Study, Variant

NAMED_UP_TO = 30  # classes of a confusion matrix
_NUMBERED_UP_TO = 12  # tasks; more leave no room for a number in each cell
_MOST_ROWS, _MOST_PLACES = 40, 6
_MARKERS, _LINES = "os^DvP*X<>hp", ("-", "--", "-.", ":")
_START: dict[str, Any] = {"color": INK, "alpha": 0.35, "linewidth": 0.8, "linestyle": ":"}  # of a task
_BY_CLASS = "class, from many to few training images"
Look = tuple[Variant, dict[str, Any]]


def study_plots(study: Study) -> Iterator[Plot]:
    """The trade-off of all methods on each dataset and its tasks, and the changes in all groups."""
    places: dict[tuple, list[Group]] = {}
    for group in study.finished:
        places.setdefault((group.dataset_title, group.tasks_title, group.task_sizes), []).append(group)
    for turn, ((dataset, tasks, _), groups) in enumerate([*places.items()][:_MOST_PLACES], 1):
        if len(groups) > 1:
            markers = dict(zip(dict.fromkeys(group.method_title for group in groups), cycle(_MARKERS), strict=False))
            found = [(v, {"marker": markers[g.method_title]}) for g in groups for v in g.finished_variants()]
            colours = dict.fromkeys((variant.loss_title, variant.colour) for variant, _ in found)
            keys = [(title, "s", colour) for title, colour in colours]
            keys += [(title, marker, INK) for title, marker in markers.items()]
            yield _tradeoff(f"tradeoff-{turn}", f"A_Mean against A_Tail: {dataset}, {tasks}", found, keys)
    for metric in ("a_tail", "a_mean"):
        yield from _changes(study, metric)


def group_tradeoff(group: Group) -> Plot:
    """A_Mean against A_Tail of the variants and references of one group."""
    rows = zip(group.rows(), cycle(_MARKERS), strict=False)
    looks = [(variant, {"marker": marker, "label": shorten(label)}) for (label, variant), marker in rows]
    return _tradeoff("tradeoff", "A_Mean against A_Tail", looks)


def _tradeoff(name: str, title: str, looks: Sequence[Look], keys: Sequence[tuple[str, str, str]] = ()) -> Plot:
    """The means with a bar for each interval; `keys` are further entries of the legend."""
    shown, (axes,) = figure(4.2 if keys else 3.4)
    for variant, look in looks:
        values = [[*variant.values(key).values()] for key in ("a_mean", "a_tail")]
        (x, left, right), (y, low, high) = (_percents(mean_interval(found) if found else None) for found in values)
        axes.plot([left, right], [y, y], color=variant.colour, linewidth=1, alpha=0.6)
        axes.plot([x, x], [low, high], color=variant.colour, linewidth=1, alpha=0.6)
        axes.plot(x, y, color=variant.colour, markersize=7, linestyle="none", **look)
    for text, marker, colour in keys:
        axes.plot([], [], marker, color=colour, fillstyle="none" if colour == INK else "full", label=shorten(text, 24))
    axes.set(xlabel="A_Mean, %", ylabel="A_Tail, %")
    axes.grid(axis="x", visible=True)
    legend(shown, axes)
    caption = "Means over seeds; bars are 95 % intervals of the means (none with one seed). Up and right is better."
    return Plot(name, title, caption, shown)


def _percents(found: Difference | None) -> np.ndarray:
    return 100 * np.array([found.mean, found.low, found.high] if found else [None] * 3, dtype=float)


def _changes(study: Study, metric: str) -> Iterator[Plot]:
    """Change against the baseline with its interval, a row per variant; none where nothing is compared."""
    cases = [
        (group, variant, _percents(found))
        for group in study.finished
        for variant in group.compared_variants()
        if (found := group.difference(variant, metric)) is not None
    ]
    if not 0 < len(cases) <= _MOST_ROWS:
        return
    base = cases[0][0].baseline_title
    shown, (axes,) = figure(1.0 + 0.5 * len(cases))
    for row, (_, variant, (mean, low, high)) in enumerate(cases):
        axes.plot([low, high], [row, row], color=variant.colour, linewidth=2.5)
        axes.plot(mean, row, "o", color=variant.colour, markersize=6)
    axes.axvline(0, color=INK, linewidth=1)
    names = [(g.dataset_title, f"{g.method_title} · {g.tasks_title} · {g.fidelity} · {v.label}") for g, v, _ in cases]
    axes.set_yticks(range(len(cases)), [f"{shorten(a)}\n{shorten(b, 44)}" for a, b in names], fontsize=9)
    axes.set(ylim=(len(cases) - 0.5, -0.5), xlabel=f"points against {base}")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    caption = f"Mean over shared seeds, 95 % interval (none with one seed). Right of 0: better than {base}."
    yield Plot(f"changes-{slug(metric)}", f"Change of {DEFINITIONS[metric][0]} against {base}", caption, shown)


def accuracy_by_class(group: Group, variants: Sequence[Variant]) -> Plot:
    """Training images, and below them the accuracy under every variant, classes from many to few images."""
    classes = group.classes()
    total, counts = len(classes.order), classes.counts[classes.order]
    shown, panels = figure(4.2, rows=2, sharex=True, height_ratios=(1, 2))
    panels[0].stairs(counts, np.arange(total + 1) + 0.5, fill=True, color=INK, alpha=0.55, linewidth=0)
    panels[0].set(ylabel="training images", ylim=(0, None))
    window = 2 * (max(3, total // 10) // 2) + 1 if total > 2 else 1
    for variant, look in _looks(variants, group.references):
        values, marker = 100 * variant.by_class("accuracy")[classes.order], look.pop("marker", None)
        means = pd.Series(values).rolling(window, center=True, min_periods=1).mean()
        if marker and len(variants) <= 3:  # more points hide each other
            panels[1].plot(1 + means.index, values, marker, color=look["color"], markersize=3, alpha=0.5)
        panels[1].plot(1 + means.index, means, **look)
    panels[1].set(xlabel=_BY_CLASS, ylabel="accuracy, %", ylim=(-3, 103))
    for axes in panels:
        _shade_tail(axes, classes, named=axes is panels[0])
    legend(shown, panels[1])
    caption = (
        f"{number(total, 'class', 'classes')} with {counts[0]} to {counts[-1]} training images; the shaded tail has "
        f"{classes.counts[classes.tail].sum()} of {counts.sum()}. Lines are running means over {window} classes."
    )
    return Plot("accuracy-by-class", "Training images and accuracy of each class", caption, shown)


def difference_by_class(group: Group, variant: Variant) -> Plot:
    """The variant minus the baseline, class by class."""
    classes, values = group.classes(), 100 * group.class_differences(variant)
    ordered = values[classes.order]
    shown, (axes,) = figure(3.1)
    _shade_tail(axes, classes)
    axes.stairs(
        np.nan_to_num(ordered),
        np.arange(len(ordered) + 1) + 0.5,
        fill=True,
        color=variant.colour,
        alpha=0.75,
        linewidth=0,
    )
    axes.axhline(0, color=INK, linewidth=0.8)
    limit = max(5.0, 1.1 * float(np.nanmax(np.abs(ordered))))
    axes.set(xlabel=_BY_CLASS, ylabel="change of accuracy, points", ylim=(-limit, limit))
    gained, lost, same = (int(found.sum()) for found in (values > 0, values < 0, values == 0))
    caption = f"Over the shared seeds. Classes that gain: {gained}, lose: {lost}, stay: {same}."
    title = f"{variant.label} − {group.baseline_title}, class by class"
    return Plot(f"difference-by-class-{variant.slug}", title, caption, shown)


def confusion(group: Group, variant: Variant) -> Plot:
    """The confusion matrix of a variant, classes from many to few training images."""
    classes, matrix = group.classes(), np.nan_to_num(variant.confusion())
    order, count = classes.order, len(classes.order)
    shown, (axes,) = figure(4.6 if count > NAMED_UP_TO else 5.4)
    # The root of the share as colour shows small shares.
    image = _heatmap(axes, 100 * matrix[np.ix_(order, order)], PowerNorm(0.5, 0, 100))
    axes.set_aspect("equal")
    shown.colorbar(image, ax=axes, shrink=0.8, label="% of the images of a class")
    axes.set(xlabel="taken for", ylabel=_BY_CLASS)
    _whole_numbers(axes.xaxis, axes.yaxis)
    if count <= NAMED_UP_TO:
        names = [name if len(name := classes.names[k]) <= 18 else f"{name[:9]}…{name[-8:]}" for k in order]
        axes.set_xticks(np.arange(count) + 0.5, names, rotation=90, fontsize=8)
        axes.set_yticks(np.arange(count) + 0.5, names, fontsize=8)
    for line in (axes.axhline, axes.axvline):
        line(count - count // 2, color=INK if count <= 1 else "#ffffff", linewidth=0.6, alpha=0.7)
    caption = "After the last task, mean over seeds. Lines separate head and tail."
    return Plot(f"confusion-{variant.slug}", f"Confusion matrix: {variant.label}", caption, shown)


def after_task(group: Group, variants: Sequence[Variant]) -> Plot:
    """Accuracy on all, tail, old and new classes after each task, with references as thin lines."""
    shown, panels = figure(6.6, rows=4, sharex=True)
    tasks, names = np.arange(1, len(group.task_sizes) + 1), ("all classes", "tail so far", "old classes", "new classes")
    for axes, metric, name in zip(panels, AFTER_TASK, names, strict=True):
        for index, (variant, look) in enumerate(_looks(variants)):
            runs = np.array([variant.runs[seed].metrics[metric] for seed in variant.seeds], dtype=float)
            bars = 100 * runs.std(axis=0, ddof=1) if len(runs) > 1 else None
            shift = 0.06 * (index - (len(variants) - 1) / 2)  # so that bars do not hide each other
            means = 100 * variant.mean_over_seeds(metric)
            axes.errorbar(tasks + shift, means, bars, capsize=3, markersize=4, **look)
        for variant, look in _looks((), group.references):
            axes.plot(tasks, 100 * variant.mean_over_seeds(metric), **look)
        axes.set_ylabel(f"{name}, %")
        axes.margins(y=0.12)
    panels[-1].set_xlabel("after task")
    _whole_numbers(panels[-1].xaxis)
    legend(shown, panels[0])
    caption = (
        "Mean over seeds, bars are one standard deviation. All: images of all classes seen; its mean over tasks is "
        "A_Avg. Tail: mean accuracy of its classes seen by then. Old: images of the classes of earlier tasks. New: "
        "images of the classes just learned. Thin lines are references."
    )
    return Plot("after-task", "Accuracy after each task", caption, shown)


def task_matrix(variant: Variant) -> Plot:
    """Accuracy on each task's classes after each task."""
    matrix = 100 * variant.mean_over_seeds("task_matrix")
    shown, (axes,) = figure(4.0 if len(matrix) > 2 else 3.0)
    _percent_cells(axes, matrix)
    axes.set(xlabel="classes of task", ylabel="after task")
    caption = "Accuracy in percent on the classes of a task (column) after each task (row), mean over seeds."
    return Plot(f"task-matrix-{variant.slug}", f"Task × task: {variant.label}", caption, shown)


def precision_recall_by_task(group: Group, variants: Sequence[Variant]) -> Plot:
    """Mean precision minus recall of the classes of each task after the last one."""
    shown, (axes,) = figure(2.9)
    tasks = np.repeat(np.arange(len(group.task_sizes)), group.task_sizes)
    for variant, look in _looks(variants):
        frames = [pd.DataFrame(run.metrics["per_class"], dtype=float) for run in variant.runs.values()]
        gaps = [(frame["precision"] - frame["accuracy"]).groupby(tasks).mean() for frame in frames]
        axes.plot(1 + np.unique(tasks), 100 * np.mean(gaps, axis=0), **look)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="task in which the class was learned", ylabel="precision − recall, points")
    _whole_numbers(axes.xaxis)
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
        for variant, look in _looks([*tasks_of]):
            tasks = tasks_of[variant]
            stops = np.cumsum([*map(len, tasks.values())])
            for stop, means in zip(stops, tasks.values(), strict=True):
                epochs = np.arange(stop - len(means) + 1, stop + 1)
                axes.plot(epochs, means * (100 if key == "accuracy" else 1), markersize=3, **look)
                look["label"] = None
            if key == "accuracy":
                after = 100 * variant.mean_over_seeds("new_after_task")[[*tasks]]
                axes.plot(stops, after, "D", color=variant.colour, fillstyle="none", markersize=7)
        for bound in np.cumsum([*map(len, next(iter(tasks_of.values())).values())])[:-1]:
            axes.axvline(bound + 0.5, **_START)
        axes.set_ylabel({"loss": "training loss", "accuracy": "accuracy, %"}[key])
        axes.set_ylim(min(0, axes.get_ylim()[0]), None)
    panels[-1].set_xlabel("epoch")
    _whole_numbers(panels[-1].xaxis)
    legend(shown, panels[0])
    caption = (
        "Mean over the steps of an epoch and over seeds; dotted lines separate tasks. Losses differ in scale. Training "
        "accuracy is that of augmented images among the classes of the task; diamonds are the test accuracy on the "
        "same classes after the task, among all classes seen."
    )
    yield Plot("training-loss", f"Training {' and '.join(curves)}", caption, shown)


def _over_seeds(variant: Variant, key: str) -> dict[int, np.ndarray]:
    """Task → mean over seeds per epoch, of the runs with as many epochs as the first."""
    runs = [means for run in variant.runs.values() if (means := epoch_means(run, key))]
    shapes = [[(task, len(means)) for task, means in run.items()] for run in runs]
    same = [run for run, shape in zip(runs, shapes, strict=True) if shape == shapes[0]]
    return {task: np.mean([run[task] for run in same], axis=0) for task in (same[0] if same else ())}


def prompts_picked(group: Group, variants: Sequence[Variant]) -> Iterator[Plot]:
    """Share of the images of each task that pick each prompt; variants that pick alike, as losses do, share a plot."""
    alike: dict[str, tuple[dict[int, list[dict[str, Any]]], list[Variant]]] = {}
    for variant in variants:
        usage = {seed: lines for seed, run in sorted(variant.runs.items()) if (lines := _prompt_lines(run))}
        alike.setdefault(repr(usage), (usage, []))[1].append(variant)
    for usage, members in (found for found in alike.values() if found[0]):
        seed, lines = next(iter(usage.items()))
        images, counts = (np.array([line[key] for line in lines]) for key in ("images", "counts"))
        shown, (axes,) = figure(0.9 + 0.4 * min(len(counts), _NUMBERED_UP_TO))
        _percent_cells(axes, 100 * counts / np.maximum(images, 1)[:, None])
        axes.set(xlabel="prompt", ylabel="images of task")
        needed = [_prompts_needed(np.sum([line["counts"] for line in found], axis=0)) for found in usage.values()]
        same = _prompts_needed(np.ones(round(counts.sum() / max(images.sum(), 1)), dtype=int))
        caption = (
            f"Seed {seed}, after the last task: percent of the test images of a task's classes (row) that pick a "
            f"prompt (column). {', '.join(map(str, needed))} of {counts.shape[1]} prompts make up 90 % of all picks"
            f"{' (one number per seed)' if len(needed) > 1 else ''}; it would be {same} if all images picked the same."
        )
        if group.fidelity == "pilot":
            caption += " With fidelity pilot the images of a batch share their prompts, by vote."
        names = ", ".join(variant.label for variant in members)
        yield Plot(f"prompts-{members[0].slug}", f"Prompts picked: {names}", caption, shown)


def _prompt_lines(run: Run) -> list[dict[str, Any]]:
    """The test images of each task's classes after the last task, and how many picked each prompt."""
    return [line for line in run.prompt_log() if line["task"] == run.tasks_done - 1]


def _prompts_needed(picks: np.ndarray, share: float = 0.9) -> int:
    """How many prompts, the most picked first, make up a share of all picks."""
    covered = np.cumsum(np.sort(picks)[::-1]) / max(picks.sum(), 1)
    return int((covered < share - 1e-9).sum()) + 1


def tal_over_steps(variants: Sequence[Variant]) -> Iterator[Plot]:
    """Q and α·w for head and tail classes, a plot for each TAL variant that logged them."""
    for variant in (variant for variant in variants if variant.loss.startswith("tal")):
        run = variant.runs[variant.seeds[0]]
        states = read_states(run)
        if not states:
            continue
        shown, panels = figure(4.6, rows=2, sharex=True)
        for axes, what in zip(panels, ("q", "weights"), strict=True):
            for state in states:
                axes.axvline(state.start, **_START)
            for name, wanted, ink, line in (("head", False, INK, "-"), ("tail", True, variant.colour, "--")):
                look: dict[str, Any] = {"color": ink, "linestyle": line, "label": f"{name} classes", "markersize": 3}
                for state in states:
                    part = np.isin(state.labels, run.metrics["tail_classes"]) == wanted
                    values = getattr(state, what)[:, part]
                    if part.any():
                        axes.fill_between(state.steps, values.min(1), values.max(1), color=ink, alpha=0.15, linewidth=0)
                        marker = "o" if len(values) == 1 else None  # no line shows a task of one step
                        axes.plot(state.steps, values.mean(1), marker=marker, **look)
                        look["label"] = None
        panels[0].set_ylabel("Q")
        panels[1].set(ylabel="α·w", xlabel="step")
        panels[1].axhline(1, color=INK, linewidth=1, alpha=0.6, label="α·w = 1")
        for axes in panels:  # after all is drawn, so that the upper end includes the line
            axes.set_ylim(bottom=0)
        legend(shown, panels[1])
        caption = (
            f"Seed {run.record.seed}. Lines are means over the classes of a part, bands reach from the smallest to the "
            "largest; dotted lines start a task. At α·w = 1 negatives weigh as in CE. Mean α·w over all classes at the "
            f"end of each task: {', '.join(f'{state.weights[-1].mean():.2f}' for state in states)}."
        )
        yield Plot(f"tal-state-{variant.slug}", f"Q and α·w over the steps: {variant.label}", caption, shown)


def _looks(variants: Sequence[Variant], references: Sequence[Reference] = ()) -> list[Look]:
    """Variants coloured by loss, where marker and line distinguish those of one loss; references as thin grey lines."""
    found: list[Look] = []
    for variant in variants:
        turn = sum(mate.loss == variant.loss for mate, _ in found)
        look = {"marker": _MARKERS[turn % 5], "linestyle": _LINES[turn % len(_LINES)]}
        found.append((variant, {"label": shorten(variant.label), "color": variant.colour, **look}))
    for (title, variant), line in zip(references, cycle(_LINES[1:]), strict=False):
        found.append((variant, {"label": shorten(title), "color": "#7f7f7f", "linewidth": 1.2, "linestyle": line}))
    return found


def _heatmap(axes: Axes, matrix: np.ndarray, norm: Normalize) -> AxesImage:
    rows, columns = matrix.shape
    axes.grid(visible=False)
    box = (0, columns, rows, 0)
    return axes.imshow(matrix, cmap="cividis", norm=norm, interpolation="none", extent=box, aspect="auto")


def _percent_cells(axes: Axes, matrix: np.ndarray) -> None:
    """A matrix of percents as a heatmap, with the numbers where there is room; rows and columns count from 1."""
    _heatmap(axes, matrix, Normalize(0, 100))
    for row, column in np.argwhere(~np.isnan(matrix)) if max(matrix.shape) <= _NUMBERED_UP_TO else ():
        value, ink = matrix[row, column], "#000000" if matrix[row, column] > 55 else "#ffffff"
        axes.text(column + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=10)
    for axis, count in zip((axes.yaxis, axes.xaxis), matrix.shape, strict=True):
        step = 1 if count <= 20 else 5
        axis.set_ticks(np.arange(count)[::step] + 0.5, np.arange(1, count + 1)[::step])


def _shade_tail(axes: Axes, classes: Classes, named: bool = True) -> None:
    """Shade the tail; the classes are at 1 … n from many to few images."""
    total, tail = len(classes.order), int(classes.tail.sum())
    axes.set_xlim(0.5, total + 0.5)
    axes.axvspan(total - tail + 0.5, total + 0.5, color=INK, alpha=0.07, linewidth=0, zorder=0)
    _whole_numbers(axes.xaxis)
    for name, place in (("head", (total - tail) / 2), ("tail", total - tail / 2)) if named else ():
        axes.text(place + 0.5, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", alpha=0.75)


def _whole_numbers(*axes: Any) -> None:
    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True))
