"""Plots of the training: the loss over the epochs, and TAL's state over the steps."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pilot_tal.metrics import tail_classes
from pilot_tal.record.run_dir import Run
from pilot_tal.results.display import shorten
from pilot_tal.results.drawing import INK, Plot, figure, legend, variant_style
from pilot_tal.results.groups import Variant
from pilot_tal.results.training import TaskState, epoch_losses, over_steps, read_states


def loss_curves(variants: Sequence[Variant]) -> Iterator[Plot]:
    """Training loss per epoch, all tasks in a row; none where no run logged its steps."""
    curves = []
    for variant in variants:
        runs = [losses for run in variant.runs.values() if (losses := epoch_losses(run))]
        lengths = [tuple(map(len, run)) for run in runs]
        same = [run for run, length in zip(runs, lengths, strict=True) if length == lengths[0]]
        if same:
            curves.append((variant, [np.mean(task, axis=0) for task in zip(*same, strict=True)]))
    if not curves:
        return
    shown, (axes,) = figure(2.9)
    for variant, tasks in curves:
        start, look = 0, variant_style(variant, [variant for variant, _ in curves])
        for turn, losses in enumerate(tasks):
            epochs = np.arange(start + 1, start + len(losses) + 1)
            label = None if turn else shorten(variant.label, 36)
            axes.plot(epochs, losses, label=label, markersize=3, **look)
            start += len(losses)
    for bound in np.cumsum([len(losses) for losses in curves[0][1]])[:-1]:
        axes.axvline(bound + 0.5, color=INK, alpha=0.35, linewidth=0.8, linestyle=":")
    axes.set(xlabel="epoch", ylabel="training loss", ylim=(min(0, axes.get_ylim()[0]), None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(shown, axes)
    caption = "Mean over the steps of an epoch and over seeds; dotted lines separate tasks. Losses differ in scale."
    yield Plot("training-loss", "Training loss", caption, shown)


def tal_over_steps(variants: Sequence[Variant]) -> Iterator[Plot]:
    """Q and α·w for head and tail classes, a plot for each TAL variant that logged them."""
    for variant in (variant for variant in variants if variant.loss.startswith("tal")):
        seed = variant.seeds[0]
        states = read_states(variant.runs[seed])
        if states:
            ends = ", ".join(f"{state.weights[-1].mean():.2f}" for state in states)
            caption = (
                f"Seed {seed}. Lines are means over the classes of a part, bands reach from the smallest to the "
                "largest; dotted lines start a task. At α·w = 1 negatives weigh as in CE. Mean α·w over all classes "
                f"at the end of each task: {ends}."
            )
            yield _draw(variant, variant.runs[seed], states, caption)


def _draw(variant: Variant, run: Run, states: list[TaskState], caption: str) -> Plot:
    in_tail = np.zeros(run.record.num_classes, dtype=bool)
    in_tail[tail_classes(run.record.stream.train_counts, run.record.stream.class_order)] = True
    shown, panels = figure(4.6, rows=2, sharex=True)
    for axes, what in zip(panels, ("q", "weights"), strict=True):
        for name, wanted, ink, line in (("head", False, INK, "-"), ("tail", True, variant.colour, "--")):
            _curve(axes, states, what, in_tail == wanted, label=f"{name} classes", color=ink, linestyle=line)
        for before, _ in over_steps(states):
            axes.axvline(before, color=INK, alpha=0.35, linewidth=0.8, linestyle=":")
    panels[0].set_ylabel("Q")
    panels[1].set(ylabel="α·w", xlabel="step")
    panels[1].axhline(1, color=INK, linewidth=1, alpha=0.6, label="α·w = 1")
    for axes in panels:  # after all is drawn, so that the upper end includes the line
        axes.set_ylim(bottom=0)
    legend(shown, panels[1])
    return Plot(f"tal-state-{variant.slug}", f"Q and α·w over the steps: {variant.label}", caption, shown)


def _curve(axes: Axes, states: list[TaskState], what: str, part: np.ndarray, label: str, **look: Any) -> None:
    """One part's mean and range, with a gap between tasks and where a task has no class of the part."""
    steps, mean, low, high = [], [], [], []
    for before, state in over_steps(states):
        values = getattr(state, what)[:, part[state.labels]]
        if values.shape[1]:
            steps += [*(before + state.steps + 1), before + state.steps[-1] + 1]
            mean += [*values.mean(axis=1), np.nan]
            low += [*values.min(axis=1), np.nan]
            high += [*values.max(axis=1), np.nan]
    if steps:
        gaps = np.isnan([np.nan, *mean, np.nan])
        alone = np.flatnonzero(gaps[:-2] & ~gaps[1:-1] & gaps[2:]).tolist()  # tasks of one step: no line shows them
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(steps, mean, label=label, marker="o", markersize=3, markevery=alone, **look)
