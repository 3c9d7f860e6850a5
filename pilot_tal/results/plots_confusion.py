"""Which classes are taken for which after the last task."""

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator

from pilot_tal.results.display import percent
from pilot_tal.results.drawing import INK, Panel, Plot, figure
from pilot_tal.results.groups import Group, Variant

NAMED_UP_TO = 30  # classes


def confusion(group: Group, variant: Variant) -> Plot:
    """The confusion matrix of a variant, classes from many to few training images."""
    classes, matrix = group.classes(), variant.confusion()
    order, count = classes.order, len(classes.rank)
    shown, (axes,) = figure(4.6 if count > NAMED_UP_TO else 5.4)
    # The root of the share as colour shows small shares.
    values = 100 * np.nan_to_num(matrix[np.ix_(order, order)])
    image = axes.imshow(
        values, cmap="cividis", norm=PowerNorm(0.5, 0, 100), interpolation="none", extent=(0, count, count, 0)
    )
    shown.colorbar(image, ax=axes, shrink=0.8, label="% of the images of a class")
    axes.grid(visible=False)
    if count <= NAMED_UP_TO:
        names = [name if len(name := classes.names[k]) <= 18 else f"{name[:9]}…{name[-8:]}" for k in order]
        axes.set_xticks(np.arange(count) + 0.5, names, rotation=90, fontsize=8)
        axes.set_yticks(np.arange(count) + 0.5, names, fontsize=8)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="taken for", ylabel="class, from many to few training images")
    half = count - count // 2
    for line in (axes.axhline, axes.axvline):
        line(half, color=INK if count <= 1 else "#ffffff", linewidth=0.6, alpha=0.7)
    wrong = np.nan_to_num(matrix)
    np.fill_diagonal(wrong, 0)
    caption = "After the last task, mean over seeds. Lines separate head and tail."
    if wrong[classes.tail].sum():
        to_head = wrong[classes.tail][:, ~classes.tail].sum() / wrong[classes.tail].sum()
        caption += f" Of the tail's wrong images, {percent(to_head, 0)} % are taken for head classes."
    title, panels = f"Confusion matrix: {variant.label}", [Panel("cells", axes)]
    return Plot(f"confusion-{variant.slug}", title, caption, shown, panels)
