"""Which classes are taken for which after the last task."""

import numpy as np
from matplotlib.colors import to_rgb

from pilot_tal.results.display import percent
from pilot_tal.results.study import Group, Variant
from pilot_tal.results.svg import INK, Plot, figure, panel, to_svg


def confusion(group: Group, variant: Variant) -> Plot:
    """The confusion matrix of a variant twice: its classes by task, with the first seed, and by training images."""
    by_count = group.classes().rank[::-1]
    seed = variant.seeds[0]
    order = variant.runs[seed].record.stream.class_order
    places = {original: place for place, original in enumerate(group.classes().originals.tolist())}
    by_task = np.array([places[original] for original in order])
    shown, panels = figure(3.1, columns=2)
    matrices = (variant.only([seed]).confusion(), variant.confusion())
    for axes, matrix, classes in zip(panels, matrices, (by_task, by_count), strict=True):
        values = np.nan_to_num(matrix[np.ix_(classes, classes)])
        # Only the opacity tells the share, so that it reads on a light and on a dark page; its root shows small ones.
        image = np.dstack([*np.broadcast_arrays(*to_rgb(variant.colour), values)[:3], np.sqrt(values)])
        axes.imshow(image, interpolation="none", extent=(0, len(classes), len(classes), 0), aspect="equal")
        axes.grid(visible=False)
        axes.set_xlabel("taken for")
    panels[0].set(title=f"by task (seed {seed})", ylabel="class")
    panels[1].set(title="from many to few images")
    for bound in np.cumsum(group.task_sizes)[:-1]:
        panels[0].axhline(bound, color=INK, linewidth=0.4, alpha=0.4)
        panels[0].axvline(bound, color=INK, linewidth=0.4, alpha=0.4)
    half = len(by_count) - len(by_count) // 2
    panels[1].axhline(half, color=INK, linewidth=0.4, alpha=0.4)
    panels[1].axvline(half, color=INK, linewidth=0.4, alpha=0.4)
    svg = to_svg(shown)
    place_of = np.argsort(by_count)
    spots = (
        panel("cells", axes, order=place_of[classes].tolist())
        for axes, classes in zip(panels, (by_task, by_count), strict=True)
    )
    caption = _caption(variant, group.classes().tail)
    return Plot(f"confusion-{variant.slug}", f"Confusion matrix: {variant.label}", caption, svg, tuple(spots))


def _caption(variant: Variant, tail: np.ndarray) -> str:
    told = (
        "After the last task; the stronger the colour, the larger the share of a class's images. Lines part tasks, and "
        "head from tail."
    )
    wrong = np.nan_to_num(variant.confusion())
    np.fill_diagonal(wrong, 0)
    if not wrong[tail].sum():
        return told
    to_head = wrong[tail][:, ~tail].sum() / wrong[tail].sum()
    return f"{told} Of the tail's wrong images, {percent(to_head, 0)} % are taken for classes of the head."
