"""Plots over all settings: levels under every loss, and differences to CE."""

from matplotlib.axes import Axes

from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results.display import shorten, slug
from pilot_tal.results.study import Setting, Study
from pilot_tal.results.svg import INK, Plot, arm_style, figure, legend, to_svg


def levels(study: Study, metric: str) -> Plot:
    """The metric of every arm that counts, a row for each setting, with what it is to be measured against."""
    settings = [s for s in study.finished if any(arm.counts for arm in s.finished_arms())]
    # Those that stand in other rows as what these are to be measured against need no row of their own.
    settings = [s for s in settings if not s.is_bound and any(a.trains for a in s.finished_arms())] or settings
    name = DEFINITIONS[metric][0]
    shown, (axes,) = figure(1.0 + 0.42 * len(settings))
    labelled: set[str] = set()
    for row, setting in enumerate(settings):
        arms = [arm for arm in setting.finished_arms() if arm.counts]
        marks = [(arm, arm.loss_title, {"marker": arm_style(arm, arms)["marker"], "alpha": 0.85}) for arm in arms]
        for reference in setting.references:
            title = f"Joint: {reference.arm.loss_title}" if reference.joint else reference.title
            marks.append((reference.arm, title, {"marker": "|" if reference.joint else "d", "fillstyle": "none"}))
        for arm, title, look in marks:
            if spread := arm.spread(metric):
                label = shorten(title, 24) if title not in labelled else None
                labelled.add(title)
                axes.plot(100 * spread.mean, row, linestyle="", markersize=7, color=arm.colour, label=label, **look)
    axes.set_yticks(range(len(settings)), [_row_name(setting) for setting in settings], fontsize=9)
    _rows(axes, len(settings), f"{name}, %")
    legend(shown, axes)
    caption = "Means over seeds. Hollow: nothing trained. Bars: all classes in one task, the method's upper bound."
    return Plot(f"levels-{slug(metric)}", f"{name} in all settings", caption, to_svg(shown))


def differences(study: Study, metric: str) -> Plot | None:
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
        if found.low is not None and found.high is not None:
            axes.plot([100 * found.low, 100 * found.high], [row, row], color=arm.colour, linewidth=2.5)
        axes.plot(100 * found.mean, row, "o", color=arm.colour, markersize=6)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(cases)), [_row_name(setting, arm.label) for setting, arm, _ in cases], fontsize=9)
    _rows(axes, len(cases), "points against CE")
    svg = to_svg(shown)
    caption = "Mean over shared seeds, 95 % interval (none with one seed). Right of 0: better than CE."
    return Plot(f"differences-{slug(metric)}", f"Change of {DEFINITIONS[metric][0]} against CE", caption, svg)


def _rows(axes: Axes, count: int, label: str) -> None:
    """Rows from above, and a grid for the values."""
    axes.set(ylim=(count - 0.5, -0.5), xlabel=label)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)


def _row_name(setting: Setting, *more: str) -> str:
    """Two lines; the method is in the second line where the first says which data it is."""
    rest = " · ".join((setting.tasks_title, setting.fidelity, *more))
    if setting.data_note:
        return f"{shorten(setting.dataset_title, 36)}\n{shorten(f'{setting.method_title} · {rest}', 40)}"
    return f"{shorten(f'{setting.dataset_title} · {setting.method_title}', 32)}\n{shorten(rest, 40)}"
