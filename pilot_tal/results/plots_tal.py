"""TAL's state over the steps of a run."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pilot_tal.metrics import tail_classes
from pilot_tal.record.run_dir import Run
from pilot_tal.results.study import Variant
from pilot_tal.results.svg import INK, Plot, figure, legend, to_svg
from pilot_tal.results.tal_state import TaskState, over_steps, read_states


def tal_over_steps(variants: list[Variant]) -> Iterator[Plot]:
    """Q and α·w for head and tail classes, a plot for each variant that logged them."""
    for variant in variants:
        seed = variant.seeds[0]
        run = variant.runs[seed]
        states = read_states(run)
        if not states:
            continue
        ends = [state.weights[-1].mean() for state in states]
        caption = (
            f"Seed {seed}. Lines are means over the classes of a part, bands reach from the smallest to the "
            "largest; the state starts anew with each task (dotted). At α·w = 1 negatives weigh as in CE. "
            f"Mean α·w over all classes at the end of a task: {', '.join(f'{end:.2f}' for end in ends)}."
        )
        title = f"Q and α·w over the steps: {variant.label}"
        yield Plot(f"tal-state-{variant.slug}", title, caption, _draw(run, states, variant.colour))


def _draw(run: Run, states: list[TaskState], tail_colour: str) -> str:
    in_tail = np.zeros(run.record.num_classes, dtype=bool)
    in_tail[tail_classes(run.record.stream.train_counts, run.record.stream.class_order)] = True
    shown, panels = figure(4.6, rows=2, sharex=True)
    for axes, what in zip(panels, ("q", "weights"), strict=True):
        for name, wanted, ink, line in (("head", False, INK, "-"), ("tail", True, tail_colour, "--")):
            _curve(axes, states, what, in_tail == wanted, label=f"{name} classes", color=ink, linestyle=line)
        for before, _ in over_steps(states):
            axes.axvline(before, color=INK, alpha=0.35, linewidth=0.8, linestyle=":")
    panels[0].set_ylabel("Q")
    panels[1].set_ylabel("α·w")
    panels[1].set_xlabel("step")
    panels[1].axhline(1, color=INK, linewidth=1, alpha=0.6, label="α·w = 1")
    for axes in panels:  # after all is drawn: the upper end must leave room for the line
        axes.set_ylim(bottom=0)
    legend(shown, panels[1])
    return to_svg(shown)


def _curve(axes: Axes, states: list[TaskState], what: str, part: np.ndarray, label: str, **look: Any) -> None:
    """One part's mean and range, with a gap between tasks and where a task has no class of the part."""
    steps, mean, low, high = [], [], [], []
    for before, state in over_steps(states):
        values = getattr(state, what)[:, part[state.labels]]
        if not values.shape[1]:
            continue
        steps += [*(before + state.steps + 1), before + state.steps[-1] + 1]
        mean += [*values.mean(axis=1), np.nan]
        low += [*values.min(axis=1), np.nan]
        high += [*values.max(axis=1), np.nan]
    if steps:
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(steps, mean, label=label, marker="o", markersize=3, markevery=_alone(mean), **look)


def _alone(values: list[float]) -> list[int]:
    """Places of values between gaps: the whole of a task with one step, where no line would show it."""
    gaps = np.isnan([np.nan, *values, np.nan])
    return np.flatnonzero(gaps[:-2] & ~gaps[1:-1] & gaps[2:]).tolist()
