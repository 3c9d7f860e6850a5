"""Plots over the classes of a group: training images, accuracy, differences, precision and recall."""

import numpy as np
from matplotlib.axes import Axes

from pilot_tal.results.display import number, points, shorten
from pilot_tal.results.study import Classes, Group, Variant
from pilot_tal.results.svg import INK, Plot, figure, legend, panel, to_svg, variant_style
from pilot_tal.results.tables import class_differences


def class_distribution(group: Group) -> Plot:
    """Training images of each class, the tail shaded."""
    classes = group.classes()
    counts = classes.counts[classes.rank[::-1]]
    shown, (axes,) = figure(2.9)
    axes.stairs(counts, np.arange(len(counts) + 1) + 0.5, fill=True, color=INK, alpha=0.55, linewidth=0)
    _shade_tail(axes, classes)
    axes.set(xlabel="class, from many to few training images", ylabel="training images", ylim=(0, None))
    tail = int(classes.counts[classes.tail].sum())
    caption = (
        f"{number(len(counts), 'class', 'classes')} with {counts[0]} to {counts[-1]} training images "
        f"(ratio {counts[0] / max(counts[-1], 1):.1f}). The shaded tail, "
        f"{number(int(classes.tail.sum()), 'class', 'classes')}, has {tail} of {int(counts.sum())} images."
    )
    svg = to_svg(shown)
    return Plot("class-distribution", "Training images of each class", caption, svg, (panel("columns", axes),))


def accuracy_by_class(group: Group, variants: list[Variant]) -> Plot:
    """Accuracy of each class in the order of its training images, all variants."""
    classes = group.classes()
    shown, (axes,) = figure(3.0)
    _shade_tail(axes, classes)
    window = 2 * (max(3, len(classes.rank) // 10) // 2) + 1 if len(classes.rank) > 2 else 1
    x = np.arange(1, len(classes.rank) + 1)
    crowded = len(variants) > 3  # then points hide each other, and the lines tell more
    for variant in variants:
        values = 100 * variant.by_class("accuracy")[classes.rank[::-1]]
        look = variant_style(variant, variants)
        if not crowded:
            axes.plot(x, values, marker=look["marker"], color=look["color"], linestyle="", markersize=3, alpha=0.5)
        mean = _running_mean(values, window)
        axes.plot(x, mean, color=look["color"], linestyle=look["linestyle"], label=shorten(variant.label, 36))
    axes.set(xlabel="class, from many to few training images", ylabel="accuracy, %", ylim=(-3, 103))
    legend(shown, axes)
    caption = (
        f"{'Lines are' if crowded else 'Points are classes, lines'} running means over {window} neighbouring "
        "classes; all are means over seeds. The tail is shaded."
    )
    svg, title = to_svg(shown), "Accuracy of each class, by training images"
    return Plot("accuracy-by-class", title, caption, svg, (panel("columns", axes),))


def difference_by_class(group: Group, variant: Variant) -> Plot:
    """The variant minus CE, class by class."""
    classes = group.classes()
    values = 100 * class_differences(group, variant)
    ordered = values[classes.rank[::-1]]
    shown, (axes,) = figure(3.1)
    _shade_tail(axes, classes)
    x = np.arange(1, len(ordered) + 1)
    edges = np.arange(len(ordered) + 1) + 0.5
    axes.stairs(np.nan_to_num(ordered), edges, fill=True, color=variant.colour, alpha=0.75, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.8)
    in_tail = classes.tail[classes.rank[::-1]]
    means = {}
    for name, part in (("head", ~in_tail), ("tail", in_tail)):
        if (~np.isnan(ordered[part])).any():
            means[name] = float(np.nanmean(ordered[part]))
            ends = [x[part][0] - 0.5, x[part][-1] + 0.5]
            axes.plot(ends, [means[name]] * 2, color=INK, linestyle="--", linewidth=1.4)
    limit = max(5.0, 1.1 * float(np.nanmax(np.abs(ordered))))
    name = f"{variant.label} − {group.baseline_title}"
    axes.set(xlabel="class, from many to few training images", ylabel="change of accuracy, points")
    axes.set_ylim(-limit, limit)
    parts = ", ".join(f"{key} {points(mean / 100, 1)}" for key, mean in means.items())
    caption = (
        f"Classes that gain: {(values > 0).sum()}, lose: {(values < 0).sum()}, stay: {(values == 0).sum()}. "
        f"Dashed: mean of a part ({parts} points). {_extremes(classes, values)}"
    )
    svg, title = to_svg(shown), f"{name}, class by class"
    return Plot(f"difference-by-class-{variant.slug}", title, caption, svg, (panel("columns", axes),))


def precision_recall(group: Group, variants: list[Variant]) -> Plot:
    """Precision against recall of each class, a panel for each variant."""
    classes = group.classes()
    columns = min(2, len(variants))
    rows = -(-len(variants) // columns)
    shown, panels = figure(0.5 + 2.45 * rows if columns > 1 else 4.0, rows, columns, sharex=True, sharey=True)
    told = []
    for axes, variant in zip(panels, variants, strict=False):
        recall, precision = 100 * variant.by_class("accuracy"), 100 * variant.by_class("precision")
        axes.plot([0, 100], [0, 100], color=INK, linewidth=0.8, linestyle=":")
        for name, part, fill in (("head", ~classes.tail, variant.colour), ("tail", classes.tail, "none")):
            axes.scatter(recall[part], precision[part], s=16, facecolor=fill, edgecolor=variant.colour, alpha=0.8)
            gap = precision[part] - recall[part]
            if (~np.isnan(gap)).any():
                told.append(f"{variant.label} {name} {points(np.nanmean(gap) / 100, 1)}")
        axes.set(title=shorten(variant.label, 22), xlim=(-4, 104), ylim=(-4, 104), aspect="equal")
    for axes in panels[len(variants) :]:
        axes.set_visible(False)
    for name, fill in (("head", INK), ("tail", "none")):
        panels[0].scatter([], [], s=16, facecolor=fill, edgecolor=INK, label=f"{name} class")
    legend(shown, panels[0])
    shown.supxlabel("recall, %", fontsize=11)
    shown.supylabel("precision, %", fontsize=11)
    caption = (
        "Above the dotted line a class is predicted too rarely, below it too often. Mean of precision minus "
        f"recall, in points: {'; '.join(told)}. A class that is never predicted has no precision: not drawn."
    )
    svg = to_svg(shown)
    spots = (panel("points", axes, variant=i, low=-4, high=104) for i, axes in enumerate(panels[: len(variants)]))
    return Plot("precision-recall", "Precision against recall of each class", caption, svg, tuple(spots))


def precision_recall_by_task(group: Group, variants: list[Variant]) -> Plot:
    """Mean precision and recall of the classes of each task after the last one."""
    tasks = np.arange(1, len(group.task_sizes) + 1)
    shown, (axes,) = figure(2.9)
    for variant in variants:
        look = variant_style(variant, variants)
        gap = np.mean([_gap_by_task(group, run.metrics) for run in variant.runs.values()], axis=0)
        axes.plot(tasks, gap, label=shorten(variant.label, 36), **look)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(xlabel="task in which the class was learnt", ylabel="precision − recall, points", xticks=tasks)
    legend(shown, axes)
    caption = (
        "After the last task, mean over the classes of a task. Above 0 its classes are predicted too rarely, "
        "below 0 too often. The paper sees old classes above and new ones below."
    )
    return Plot("precision-recall-by-task", "Precision minus recall, by task", caption, to_svg(shown))


def _gap_by_task(group: Group, metrics: dict) -> list[float]:
    precision, recall = (np.array(metrics["per_class"][k], dtype=float) for k in ("precision", "accuracy"))
    parts = np.split(100 * (precision - recall), np.cumsum(group.task_sizes)[:-1])
    return [float(np.nanmean(part)) if (~np.isnan(part)).any() else np.nan for part in parts]


def _shade_tail(axes: Axes, classes: Classes) -> None:
    """Shades the tail and says so; the classes stand at 1 … n from many to few images."""
    total, tail = len(classes.rank), int(classes.tail.sum())
    axes.set_xlim(0.5, total + 0.5)
    axes.axvspan(total - tail + 0.5, total + 0.5, color=INK, alpha=0.07, linewidth=0, zorder=0)
    for name, place in (("head", (total - tail) / 2), ("tail", total - tail / 2)):
        axes.text(place + 0.5, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", alpha=0.75)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Centred mean over `window` neighbours, fewer at the ends; classes without a value do not count."""
    known, kernel = ~np.isnan(values), np.ones(window)
    total = np.convolve(np.where(known, values, 0), kernel, mode="same")
    count = np.convolve(known, kernel, mode="same")
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)


def _extremes(classes: Classes, values: np.ndarray) -> str:
    """The classes with the largest gain and the largest loss."""
    known = [k for k in classes.rank if not np.isnan(values[k])]
    found = []
    for word, k in (
        ("gain", max(known, key=lambda k: values[k])),
        ("loss", min(known, key=lambda k: values[k])),
    ):
        if values[k] * (1 if word == "gain" else -1) > 0:
            images = number(int(classes.counts[k]), "training image")
            found.append(f"Largest {word}: {shorten(classes.names[k])} ({points(values[k] / 100, 1)}, {images}).")
    return " ".join(found)
