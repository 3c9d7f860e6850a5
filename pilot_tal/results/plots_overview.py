"""Plots over groups: A_Mean against A_Tail, and changes against the baseline."""

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pilot_tal.metrics import DEFINITIONS, mean_interval
from pilot_tal.results.display import shorten, slug
from pilot_tal.results.drawing import INK, Plot, figure, legend
from pilot_tal.results.groups import Group, Variant
from pilot_tal.results.study import Study

_MOST_ROWS, _MOST_PLACES = 40, 6
_MARKERS = "os^DvP*X<>hp"


def study_plots(study: Study) -> Iterator[Plot]:
    """The trade-off of all methods on each dataset and its tasks, and the changes in all groups."""
    places: dict[tuple, list[Group]] = {}
    for group in study.finished:
        places.setdefault((group.dataset_title, group.tasks_title, group.task_sizes), []).append(group)
    for turn, ((dataset, tasks, _), groups) in enumerate(places.items()):
        if turn < _MOST_PLACES and len(groups) > 1:
            yield _methods_tradeoff(f"tradeoff-{turn + 1}", f"{dataset}, {tasks}", groups)
    for metric in ("a_tail", "a_mean"):
        yield from _changes(study, metric)


def group_tradeoff(group: Group) -> Plot:
    """A_Mean against A_Tail of the variants and references of one group."""
    shown, (axes,) = figure(3.4)
    for turn, variant in enumerate(group.finished_variants()):
        _point(axes, variant, _MARKERS[turn % len(_MARKERS)], shorten(variant.label, 36))
    for turn, reference in enumerate(group.references):
        _point(axes, reference.variant, "XP*hp8"[turn % 6], shorten(reference.title, 36))
    return _tradeoff("tradeoff", "A_Mean against A_Tail", shown, axes)


def _methods_tradeoff(name: str, where: str, groups: Sequence[Group]) -> Plot:
    shown, (axes,) = figure(4.2)
    methods = list(dict.fromkeys(group.method_title for group in groups))
    for group in groups:
        for variant in (variant for variant in group.finished_variants() if variant.counts):
            _point(axes, variant, _MARKERS[methods.index(group.method_title) % len(_MARKERS)])
    variants = [variant for group in groups for variant in group.finished_variants() if variant.counts]
    for title, colour in dict.fromkeys((variant.loss_title, variant.colour) for variant in variants):
        axes.plot([], [], "s", color=colour, label=shorten(title, 24))
    for turn, method in enumerate(methods):
        axes.plot([], [], _MARKERS[turn % len(_MARKERS)], color=INK, fillstyle="none", label=shorten(method, 24))
    return _tradeoff(name, f"A_Mean against A_Tail: {where}", shown, axes)


def _tradeoff(name: str, title: str, shown: Figure, axes: Axes) -> Plot:
    axes.set(xlabel="A_Mean, %", ylabel="A_Tail, %")
    axes.grid(axis="x", visible=True)
    legend(shown, axes)
    caption = "Means over seeds; bars are 95 % intervals of the means (none with one seed). Up and right is better."
    return Plot(name, title, caption, shown)


def _point(axes: Axes, variant: Variant, marker: str, label: str | None = None) -> None:
    """A variant's means, with a bar for the interval of each."""
    found = [mean_interval([*values.values()]) for key in ("a_mean", "a_tail") if (values := variant.values(key))]
    if len(found) < 2:
        return
    across, along = found
    for place, bar in (("x", across), ("y", along)):
        if bar.low is not None and bar.high is not None:
            ends = [100 * bar.low, 100 * bar.high]
            line = (ends, [100 * along.mean] * 2) if place == "x" else ([100 * across.mean] * 2, ends)
            axes.plot(*line, color=variant.colour, linewidth=1, alpha=0.6)
    axes.plot(
        100 * across.mean,
        100 * along.mean,
        marker=marker,
        linestyle="",
        color=variant.colour,
        markersize=7,
        label=label,
    )


def _changes(study: Study, metric: str) -> Iterator[Plot]:
    """Change against the baseline with its interval, a row per variant; none where nothing is compared."""
    cases = [
        (group, variant, difference)
        for group in study.finished
        for variant in group.compared_variants()
        if variant.counts and (difference := group.difference(variant, metric)) is not None
    ]
    if not 0 < len(cases) <= _MOST_ROWS:
        return
    base = cases[0][0].baseline_title
    shown, (axes,) = figure(1.0 + 0.5 * len(cases))
    for row, (_, variant, found) in enumerate(cases):
        if found.low is not None and found.high is not None:
            axes.plot([100 * found.low, 100 * found.high], [row, row], color=variant.colour, linewidth=2.5)
        axes.plot(100 * found.mean, row, "o", color=variant.colour, markersize=6)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(cases)), [_row_name(group, variant.label) for group, variant, _ in cases], fontsize=9)
    axes.set(ylim=(len(cases) - 0.5, -0.5), xlabel=f"points against {base}")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    caption = f"Mean over shared seeds, 95 % interval (none with one seed). Right of 0: better than {base}."
    yield Plot(f"changes-{slug(metric)}", f"Change of {DEFINITIONS[metric][0]} against {base}", caption, shown)


def _row_name(group: Group, label: str) -> str:
    """Two lines; the method is in the second where a note on the data fills the first."""
    rest = " · ".join((group.tasks_title, group.fidelity, label))
    if group.data_note:
        return f"{shorten(group.dataset_title, 36)}\n{shorten(f'{group.method_title} · {rest}', 40)}"
    return f"{shorten(f'{group.dataset_title} · {group.method_title}', 32)}\n{shorten(rest, 40)}"
