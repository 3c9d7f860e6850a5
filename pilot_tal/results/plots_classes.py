"""Plots over the classes of a group: training images, accuracy, changes, precision and recall."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pilot_tal.results.display import number, points, shorten
from pilot_tal.results.drawing import INK, Panel, Plot, figure, legend, reference_style, variant_style
from pilot_tal.results.groups import Classes, Group, Variant

_CROWDED = 3  # variants; with more, points hide each other and only the running means are drawn


def accuracy_by_class(group: Group, variants: Sequence[Variant]) -> Plot:
    """Training images, and below them the accuracy under every variant, classes from many to few images."""
    classes = group.classes()
    total = len(classes.rank)
    counts, x = classes.counts[classes.order], np.arange(1, total + 1)
    shown, panels = figure(4.2, rows=2, sharex=True, height_ratios=(1, 2))
    panels[0].stairs(counts, np.arange(total + 1) + 0.5, fill=True, color=INK, alpha=0.55, linewidth=0)
    panels[0].set(ylabel="training images", ylim=(0, None))
    window = 2 * (max(3, total // 10) // 2) + 1 if total > 2 else 1
    for variant in variants:
        values = 100 * variant.by_class("accuracy")[classes.order]
        look = variant_style(variant, variants)
        if len(variants) <= _CROWDED:
            panels[1].plot(x, values, look["marker"], color=look["color"], markersize=3, alpha=0.5)
        line = {"color": look["color"], "linestyle": look["linestyle"], "label": shorten(variant.label, 36)}
        panels[1].plot(x, _running_mean(values, window), **line)
    for turn, reference in enumerate(r for r in group.references if not r.joint):
        values = _running_mean(100 * reference.variant.by_class("accuracy")[classes.order], window)
        panels[1].plot(x, values, label=shorten(reference.title, 36), **reference_style(turn))
    panels[1].set(xlabel="class, from many to few training images", ylabel="accuracy, %", ylim=(-3, 103))
    for axes in panels:
        _shade_tail(axes, classes, named=axes is panels[0])
    legend(shown, panels[1])
    tail = int(classes.counts[classes.tail].sum())
    caption = (
        f"{number(total, 'class', 'classes')} with {counts[0]} to {counts[-1]} training images (ratio "
        f"{counts[0] / max(counts[-1], 1):.1f}); the shaded tail, {number(int(classes.tail.sum()), 'class', 'classes')}"
        f", has {tail} of {int(counts.sum())}. Lines are running means over {window} classes, of means over seeds."
    )
    spots = [Panel("columns", axes) for axes in panels]
    return Plot("accuracy-by-class", "Training images and accuracy of each class", caption, shown, spots)


def difference_by_class(group: Group, variant: Variant) -> Plot:
    """The variant minus the baseline, class by class."""
    classes = group.classes()
    values = 100 * group.class_differences(variant)
    ordered, in_tail = values[classes.order], classes.tail[classes.order]
    shown, (axes,) = figure(3.1)
    _shade_tail(axes, classes)
    edges = np.arange(len(ordered) + 1) + 0.5
    axes.stairs(np.nan_to_num(ordered), edges, fill=True, color=variant.colour, alpha=0.75, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.8)
    means = {}
    for name, part in (("head", ~in_tail), ("tail", in_tail)):
        if (~np.isnan(ordered[part])).any():
            means[name] = float(np.nanmean(ordered[part]))
            ends = [edges[:-1][part][0], edges[1:][part][-1]]
            axes.plot(ends, [means[name]] * 2, color=INK, linestyle="--", linewidth=1.4)
    limit = max(5.0, 1.1 * float(np.nanmax(np.abs(ordered))))
    axes.set(xlabel="class, from many to few training images", ylabel="change of accuracy, points")
    axes.set_ylim(-limit, limit)
    parts = ", ".join(f"{key} {points(mean / 100, 1)}" for key, mean in means.items())
    caption = (
        f"Over the shared seeds. Classes that gain: {(values > 0).sum()}, lose: {(values < 0).sum()}, stay: "
        f"{(values == 0).sum()}. Dashed: mean of a part ({parts} points)."
    )
    title, spots = f"{variant.label} − {group.baseline_title}, class by class", [Panel("columns", axes)]
    return Plot(f"difference-by-class-{variant.slug}", title, caption, shown, spots)


def precision_recall_by_task(group: Group, variants: Sequence[Variant]) -> Plot:
    """Mean precision minus recall of the classes of each task after the last one."""
    tasks = np.arange(1, len(group.task_sizes) + 1)
    shown, (axes,) = figure(2.9)
    for variant in variants:
        gaps = np.mean([_gap_by_task(group, run.metrics) for run in variant.runs.values()], axis=0)
        axes.plot(tasks, gaps, label=shorten(variant.label, 36), **variant_style(variant, variants))
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="task in which the class was learned", ylabel="precision − recall, points")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(shown, axes)
    caption = (
        "After the last task, mean over the classes of a task. Above 0 its classes are predicted too rarely, "
        "below 0 too often. The paper sees old classes above and new ones below."
    )
    return Plot("precision-recall-by-task", "Precision minus recall, by task", caption, shown)


def _gap_by_task(group: Group, metrics: dict) -> list[float]:
    precision, recall = (np.array(metrics["per_class"][k], dtype=float) for k in ("precision", "accuracy"))
    parts = np.split(100 * (precision - recall), np.cumsum(group.task_sizes)[:-1])
    return [float(np.nanmean(part)) if (~np.isnan(part)).any() else np.nan for part in parts]


def _shade_tail(axes: Axes, classes: Classes, named: bool = True) -> None:
    """Shade the tail; the classes are at 1 … n from many to few images."""
    total, tail = len(classes.rank), int(classes.tail.sum())
    axes.set_xlim(0.5, total + 0.5)
    axes.axvspan(total - tail + 0.5, total + 0.5, color=INK, alpha=0.07, linewidth=0, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for name, place in (("head", (total - tail) / 2), ("tail", total - tail / 2)) if named else ():
        axes.text(place + 0.5, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", alpha=0.75)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` neighbours, fewer at the ends; NaN does not count."""
    known, kernel = ~np.isnan(values), np.ones(window)
    total = np.convolve(np.where(known, values, 0), kernel, mode="same")
    count = np.convolve(known, kernel, mode="same")
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
