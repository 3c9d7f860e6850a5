"""A loss over the values of its options: a curve over one, heat maps over two."""

from collections.abc import Iterator

import numpy as np
from matplotlib.patches import Rectangle

from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results.ablation import Grid, grids
from pilot_tal.results.display import interval, percent, points, slug
from pilot_tal.results.study import Group, Variant
from pilot_tal.results.svg import INK, Plot, draw_cells, figure, legend, to_svg

_METRICS = ("a_mean", "a_tail")
_ROOM_FOR_INTERVALS, _ROOM_FOR_CHANGES = 4, 6  # columns


def ablation_plots(group: Group) -> Iterator[Plot]:
    """The grids of a group, over all classes and over the tail."""
    for index, grid in enumerate(grids(group), 1):
        place = f"{grid.variants[0].loss}-{index}"
        if len(grid.values) == 1:
            yield _curve(group, grid, place)
            continue
        for metric in _METRICS:
            for name, plane in grid.planes():
                yield _heat_map(group, grid, metric, name, plane, place)


def _curve(group: Group, grid: Grid, place: str) -> Plot:
    """The metrics over the values of one option, with CE as a line and the intervals of the differences to it."""
    (option,) = grid.values
    variants = grid.curve()
    shown, panels = figure(4.4, rows=len(_METRICS), sharex=True)
    for axes, metric in zip(panels, _METRICS, strict=True):
        means = [_level(variant, metric) for variant in variants]
        bars = [_reach(group, variant, metric) for variant in variants]
        axes.errorbar(
            range(len(variants)), means, np.transpose(bars), color=variants[0].colour, marker="o", capsize=3,
            label=f"{variants[0].loss_title}, 95 % interval of the change",
        )  # fmt: skip
        base = group.baseline(variants[0])
        if base is not None and base.runs:
            axes.axhline(_level(base, metric), color=base.colour, linestyle="--", label=group.baseline_title)
        best = grid.best(metric)
        if best is not None:
            axes.plot(variants.index(best), _level(best, metric), "o", markersize=13, fillstyle="none", color=INK)
        axes.set_ylabel(f"{DEFINITIONS[metric][0]}, %")
    panels[-1].set(xlabel=option, xticks=range(len(variants)), xlim=(-0.5, len(variants) - 0.5))
    panels[-1].set_xticklabels(grid.values[option])
    legend(shown, panels[0])
    caption = (
        f"Means over seeds; bars are the 95 % interval of the difference to {group.baseline_title}, paired by seed, "
        f"around them. {_chosen(grid, 'Ringed', _METRICS)}"
    )
    return Plot(f"ablation-{slug(place)}", f"{variants[0].loss_title} over {option}", caption, to_svg(shown))


def _heat_map(group: Group, grid: Grid, metric: str, name: str, plane: list[list[Variant | None]], place: str) -> Plot:
    """A cell for each pair of values: the level, and below it the change against CE with its interval."""
    across, down = list(grid.values)[-2:]
    levels = np.array([[_level(variant, metric) for variant in row] for row in plane])
    texts = [[_cell_text(group, variant, metric, len(plane[0])) for variant in row] for row in plane]
    shown, (axes,) = figure(0.9 + 0.65 * len(plane))
    limits = (float(np.nanmin(levels)), float(np.nanmax(levels)))
    draw_cells(axes, levels, "cividis", limits if limits[0] < limits[1] else (limits[0] - 1, limits[1] + 1), texts)
    best = grid.best(metric)
    for row, column in (
        (y, x) for y, variants in enumerate(plane) for x, variant in enumerate(variants) if variant and variant is best
    ):
        frame = Rectangle((column + 0.03, row + 0.03), 0.94, 0.94, fill=False, edgecolor="#d81b60", linewidth=3)
        axes.add_patch(frame)
    axes.set_xticks(np.arange(len(grid.values[across])) + 0.5, grid.values[across])
    axes.set_yticks(np.arange(len(grid.values[down])) + 0.5, grid.values[down])
    axes.set(xlabel=across, ylabel=down)
    title = f"{DEFINITIONS[metric][0]} of {grid.variants[0].loss_title} over {across} × {down}"
    title += f" ({name})" if name else ""
    caption = (
        f"In percent, mean over seeds; below it the change against {group.baseline_title} in points with its 95 % "
        f"interval, paired by seed{'' if len(plane[0]) <= _ROOM_FOR_INTERVALS else ' (intervals: in the table)'}. "
        f"{_chosen(grid, 'Framed', (metric,))}"
    )
    return Plot(f"ablation-{slug(f'{place} {metric} {name}')}", title, caption, to_svg(shown))


def _chosen(grid: Grid, mark: str, metrics: tuple[str, ...]) -> str:
    """What the best cell is: chosen after the fact."""
    told = [
        f"{DEFINITIONS[metric][0]} {percent(found.mean, 1)} with {best.own_options_label}"
        for metric in metrics
        if (best := grid.best(metric)) and (found := best.spread(metric))
    ]
    return (
        f"{mark}: the highest of {len(grid.variants)} ({'; '.join(told)}). It was chosen after the fact, by the test "
        "images that judge it, so part of its lead is luck."
    )


def _level(variant: Variant | None, metric: str) -> float:
    found = variant.spread(metric) if variant else None
    return 100 * found.mean if found else np.nan


def _reach(group: Group, variant: Variant, metric: str) -> tuple[float, float]:
    """How far the interval of the difference reaches below and above; 0 without one."""
    found = group.difference(variant, metric)
    if found is None or found.low is None or found.high is None:
        return (0.0, 0.0)
    return (100 * (found.mean - found.low), 100 * (found.high - found.mean))


def _cell_text(group: Group, variant: Variant | None, metric: str, columns: int) -> str:
    level = _level(variant, metric)
    if variant is None or np.isnan(level):
        return ""
    lines = [percent(level / 100, 1)]
    found = group.difference(variant, metric)
    if found is not None and columns <= _ROOM_FOR_CHANGES:
        lines.append(points(found.mean, 1))
        lines += [interval(found, 1)] if found.low is not None and columns <= _ROOM_FOR_INTERVALS else []
    return "\n".join(lines)
