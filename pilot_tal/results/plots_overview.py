"""Plots over all groups: levels under every loss, and differences to CE."""

from matplotlib.axes import Axes

from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results.display import shorten, slug
from pilot_tal.results.study import Group, Study
from pilot_tal.results.svg import INK, Plot, figure, legend, to_svg, variant_style


def levels(study: Study, metric: str) -> Plot:
    """The metric of every variant that counts, a row for each group, with what it is to be measured against."""
    groups = [s for s in study.finished if any(variant.counts for variant in s.finished_variants())]
    # Those that stand in other rows as what these are to be measured against need no row of their own.
    groups = [s for s in groups if not s.is_bound and any(a.trains for a in s.finished_variants())] or groups
    name = DEFINITIONS[metric][0]
    shown, (axes,) = figure(1.0 + 0.42 * len(groups))
    labelled: set[str] = set()
    for row, group in enumerate(groups):
        variants = [variant for variant in group.finished_variants() if variant.counts]
        marks = [
            (variant, variant.loss_title, {"marker": variant_style(variant, variants)["marker"], "alpha": 0.85})
            for variant in variants
        ]
        for reference in group.references:
            title = f"Joint: {reference.variant.loss_title}" if reference.joint else reference.title
            marks.append((reference.variant, title, {"marker": "|" if reference.joint else "d", "fillstyle": "none"}))
        for variant, title, look in marks:
            if spread := variant.spread(metric):
                label = shorten(title, 24) if title not in labelled else None
                labelled.add(title)
                axes.plot(100 * spread.mean, row, linestyle="", markersize=7, color=variant.colour, label=label, **look)
    axes.set_yticks(range(len(groups)), [_row_name(group) for group in groups], fontsize=9)
    _rows(axes, len(groups), f"{name}, %")
    legend(shown, axes)
    caption = "Means over seeds. Hollow: nothing trained. Bars: all classes in one task, the method's upper bound."
    return Plot(f"levels-{slug(metric)}", f"{name} in all groups", caption, to_svg(shown))


def differences(study: Study, metric: str) -> Plot | None:
    """Difference to CE with its interval in every group; None when there is nothing to compare."""
    cases = [
        (group, variant, difference)
        for group in study.finished
        for variant in group.compared_variants()
        if variant.counts and (difference := group.difference(variant, metric)) is not None
    ]
    if not cases:
        return None
    shown, (axes,) = figure(1.0 + 0.5 * len(cases))
    for row, (_, variant, found) in enumerate(cases):
        if found.low is not None and found.high is not None:
            axes.plot([100 * found.low, 100 * found.high], [row, row], color=variant.colour, linewidth=2.5)
        axes.plot(100 * found.mean, row, "o", color=variant.colour, markersize=6)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(cases)), [_row_name(group, variant.label) for group, variant, _ in cases], fontsize=9)
    _rows(axes, len(cases), f"points against {study.baseline_title}")
    svg = to_svg(shown)
    base = study.baseline_title
    caption = f"Mean over shared seeds, 95 % interval (none with one seed). Right of 0: better than {base}."
    return Plot(f"differences-{slug(metric)}", f"Change of {DEFINITIONS[metric][0]} against {base}", caption, svg)


def _rows(axes: Axes, count: int, label: str) -> None:
    """Rows from above, and a grid for the values."""
    axes.set(ylim=(count - 0.5, -0.5), xlabel=label)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)


def _row_name(group: Group, *more: str) -> str:
    """Two lines; the method is in the second line where the first says which data it is."""
    rest = " · ".join((group.tasks_title, group.fidelity, *more))
    if group.data_note:
        return f"{shorten(group.dataset_title, 36)}\n{shorten(f'{group.method_title} · {rest}', 40)}"
    return f"{shorten(f'{group.dataset_title} · {group.method_title}', 32)}\n{shorten(rest, 40)}"
