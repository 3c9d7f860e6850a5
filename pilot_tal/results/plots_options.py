"""A loss over the values of one of its options."""

from collections.abc import Iterator

import numpy as np

from pilot_tal.metrics import DEFINITIONS
from pilot_tal.results.display import percent, slug
from pilot_tal.results.drawing import Plot, figure, legend
from pilot_tal.results.groups import Group, Variant
from pilot_tal.results.options import Grid, grids

_METRICS = ("a_mean", "a_tail")


def options_plots(group: Group) -> Iterator[Plot]:
    """The grids of a group over one option; for more there is the table."""
    for index, grid in enumerate(grids(group), 1):
        if len(grid.values) == 1:
            yield _curve(group, grid, slug(f"options-{grid.variants[0].loss}-{index}"))


def _curve(group: Group, grid: Grid, name: str) -> Plot:
    """The metrics over the values of one option, with the baseline as a line."""
    ((option, values),) = grid.values.items()
    variants = [grid.variant(**{option: value}) for value in values]
    title, base = grid.variants[0].loss_title, group.baseline(grid.variants[0])
    shown, panels = figure(4.4, rows=len(_METRICS), sharex=True)
    for axes, metric in zip(panels, _METRICS, strict=True):
        levels = [_level(variant, metric) for variant in variants]
        bars = np.transpose([_reach(group, variant, metric) for variant in variants])
        label, colour = f"{title}, 95 % interval of the change", grid.variants[0].colour
        axes.errorbar(range(len(values)), levels, bars, color=colour, marker="o", capsize=3, label=label)
        if base is not None and base.runs:
            axes.axhline(_level(base, metric), color=base.colour, linestyle="--", label=group.baseline_title)
        axes.set_ylabel(f"{DEFINITIONS[metric][0]}, %")
    panels[-1].set(xlabel=option, xticks=range(len(values)), xlim=(-0.5, len(values) - 0.5))
    panels[-1].set_xticklabels(values)
    legend(shown, panels[0])
    caption = f"Means over seeds; bars are the interval of the change against {group.baseline_title}, paired by seed."
    return Plot(name, f"{title} over {option}", f"{caption} {_chosen(grid)}", shown)


def _chosen(grid: Grid) -> str:
    """The best of a grid, which is chosen after the fact."""
    best = [
        f"{DEFINITIONS[metric][0]} {percent(found.mean, 1)} with {variant.own_options_label}"
        for metric in _METRICS
        if (variant := grid.best(metric)) and (found := variant.spread(metric))
    ]
    return (
        f"Highest of {len(grid.variants)}: {'; '.join(best)}; chosen on the test images, so part of its lead is luck."
    )


def _level(variant: Variant | None, metric: str) -> float:
    found = variant.spread(metric) if variant else None
    return 100 * found.mean if found else np.nan


def _reach(group: Group, variant: Variant | None, metric: str) -> tuple[float, float]:
    """How far the interval of the change reaches below and above; 0 without one."""
    found = group.difference(variant, metric) if variant else None
    if found is None or found.low is None or found.high is None:
        return (0.0, 0.0)
    return (100 * (found.mean - found.low), 100 * (found.high - found.mean))
