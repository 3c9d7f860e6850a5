"""Plots over the classes of a group: training images, accuracy, changes, confusions."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator

from pilot_tal.results.drawing import INK, Plot, figure, heatmap, legend, reference_style, variant_style
from pilot_tal.results.formats import number, percent, points
from pilot_tal.results.groups import Classes, Group, Variant

_CROWDED = 3  # variants; with more, points hide each other and only the running means are drawn
NAMED_UP_TO = 30  # classes of a confusion matrix


def accuracy_by_class(group: Group, variants: Sequence[Variant]) -> Plot:
    """Training images, and below them the accuracy under every variant, classes from many to few images."""
    classes = group.classes()
    total = len(classes.order)
    counts, x = classes.counts[classes.order], np.arange(1, total + 1)
    shown, panels = figure(4.2, rows=2, sharex=True, height_ratios=(1, 2))
    panels[0].stairs(counts, np.arange(total + 1) + 0.5, fill=True, color=INK, alpha=0.55, linewidth=0)
    panels[0].set(ylabel="training images", ylim=(0, None))
    window = 2 * (max(3, total // 10) // 2) + 1 if total > 2 else 1
    looks = [(variant, variant_style(variant, variants)) for variant in variants]
    free = [reference for reference in group.references if not reference.joint]
    looks += [(reference.variant, reference_style(reference, turn)) for turn, reference in enumerate(free)]
    for variant, look in looks:
        values, marker = 100 * variant.by_class("accuracy")[classes.order], look.pop("marker", None)
        if marker and len(variants) <= _CROWDED:
            panels[1].plot(x, values, marker, color=look["color"], markersize=3, alpha=0.5)
        panels[1].plot(x, pd.Series(values).rolling(window, center=True, min_periods=1).mean(), **look)
    panels[1].set(xlabel="class, from many to few training images", ylabel="accuracy, %", ylim=(-3, 103))
    for axes in panels:
        _shade_tail(axes, classes, named=axes is panels[0])
    legend(shown, panels[1])
    caption = (
        f"{number(total, 'class', 'classes')} with {counts[0]} to {counts[-1]} training images (ratio "
        f"{counts[0] / max(counts[-1], 1):.1f}); the shaded tail, {number(int(classes.tail.sum()), 'class', 'classes')}"
        f", has {int(classes.counts[classes.tail].sum())} of {int(counts.sum())}. Lines are running means over "
        f"{window} classes, of means over seeds."
    )
    return Plot("accuracy-by-class", "Training images and accuracy of each class", caption, shown)


def difference_by_class(group: Group, variant: Variant) -> Plot:
    """The variant minus the baseline, class by class."""
    classes, values = group.classes(), 100 * group.class_differences(variant)
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
    title = f"{variant.label} − {group.baseline_title}, class by class"
    return Plot(f"difference-by-class-{variant.slug}", title, caption, shown)


def confusion(group: Group, variant: Variant) -> Plot:
    """The confusion matrix of a variant, classes from many to few training images."""
    classes, matrix = group.classes(), np.nan_to_num(variant.confusion())
    order, count = classes.order, len(classes.order)
    shown, (axes,) = figure(4.6 if count > NAMED_UP_TO else 5.4)
    # The root of the share as colour shows small shares.
    image = heatmap(axes, 100 * matrix[np.ix_(order, order)], PowerNorm(0.5, 0, 100))
    axes.set_aspect("equal")
    shown.colorbar(image, ax=axes, shrink=0.8, label="% of the images of a class")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    if count <= NAMED_UP_TO:
        names = [name if len(name := classes.names[k]) <= 18 else f"{name[:9]}…{name[-8:]}" for k in order]
        axes.set_xticks(np.arange(count) + 0.5, names, rotation=90, fontsize=8)
        axes.set_yticks(np.arange(count) + 0.5, names, fontsize=8)
    axes.set(xlabel="taken for", ylabel="class, from many to few training images")
    for line in (axes.axhline, axes.axvline):
        line(count - count // 2, color=INK if count <= 1 else "#ffffff", linewidth=0.6, alpha=0.7)
    np.fill_diagonal(matrix, 0)
    wrong = matrix[classes.tail]
    caption = "After the last task, mean over seeds. Lines separate head and tail."
    if wrong.sum():
        to_head = wrong[:, ~classes.tail].sum() / wrong.sum()
        caption += f" Of the tail's wrong images, {percent(to_head, 0)} % are taken for head classes."
    return Plot(f"confusion-{variant.slug}", f"Confusion matrix: {variant.label}", caption, shown)


def _shade_tail(axes: Axes, classes: Classes, named: bool = True) -> None:
    """Shade the tail; the classes are at 1 … n from many to few images."""
    total, tail = len(classes.order), int(classes.tail.sum())
    axes.set_xlim(0.5, total + 0.5)
    axes.axvspan(total - tail + 0.5, total + 0.5, color=INK, alpha=0.07, linewidth=0, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for name, place in (("head", (total - tail) / 2), ("tail", total - tail / 2)) if named else ():
        axes.text(place + 0.5, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", alpha=0.75)
