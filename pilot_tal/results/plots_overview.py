"""Plots of a whole study: A_Mean against A_Tail, changes against the baseline, maps of the frozen features."""

import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np

from data_lt.errors import UserError
from pilot_tal.metrics import DEFINITIONS, Difference, mean_interval, tail_classes
from pilot_tal.record.run_dir import Run
from pilot_tal.results.drawing import INK, MARKERS, Plot, figure, legend, style
from pilot_tal.results.formats import number, shorten, slug
from pilot_tal.results.groups import Group, Variant
from pilot_tal.results.study import Study
from pilot_tal.version import install_hint

_MOST_ROWS, _MOST_PLACES, _MOST_IMAGES = 40, 6, 3000
_Point = tuple[Variant, str, str | None]
"""A variant with its marker and its label in the legend."""


def study_plots(study: Study) -> Iterator[Plot]:
    """The trade-off of all methods on each dataset and its tasks, and the changes in all groups."""
    places: dict[tuple, list[Group]] = {}
    for group in study.finished:
        places.setdefault((group.dataset_title, group.tasks_title, group.task_sizes), []).append(group)
    for turn, ((dataset, tasks, _), groups) in enumerate(places.items()):
        if turn < _MOST_PLACES and len(groups) > 1:
            markers = dict(zip(dict.fromkeys(group.method_title for group in groups), 10 * MARKERS, strict=False))
            found = [(markers[g.method_title], v) for g in groups for v in g.finished_variants()]
            colours = dict.fromkeys((variant.loss_title, variant.colour) for _, variant in found)
            keys = [(title, "s", colour) for title, colour in colours]
            keys += [(title, marker, INK) for title, marker in markers.items()]
            points: list[_Point] = [(variant, marker, None) for marker, variant in found]
            yield _tradeoff(f"tradeoff-{turn + 1}", f"A_Mean against A_Tail: {dataset}, {tasks}", points, keys)
    for metric in ("a_tail", "a_mean"):
        yield from _changes(study, metric)


def group_tradeoff(group: Group) -> Plot:
    """A_Mean against A_Tail of the variants and references of one group."""
    own = len(group.finished_variants())
    markers = [(MARKERS * 10)[i] if i < own else ("XP*hp8" * 10)[i - own] for i in range(len(group.rows()))]
    points = [(variant, marker, label) for (label, variant), marker in zip(group.rows(), markers, strict=True)]
    return _tradeoff("tradeoff", "A_Mean against A_Tail", points)


def _tradeoff(name: str, title: str, points: Sequence[_Point], keys: Sequence[tuple[str, str, str]] = ()) -> Plot:
    """The means of every variant, with a bar for the interval of each; `keys` are further entries of the legend."""
    shown, (axes,) = figure(4.2 if keys else 3.4)
    for variant, marker, label in points:
        (x, left, right), (y, low, high) = (_interval(variant, key) for key in ("a_mean", "a_tail"))
        axes.plot([left, right], [y, y], color=variant.colour, linewidth=1, alpha=0.6)
        axes.plot([x, x], [low, high], color=variant.colour, linewidth=1, alpha=0.6)
        axes.plot(x, y, marker, color=variant.colour, markersize=7, label=label and shorten(label))
    for text, marker, colour in keys:
        axes.plot([], [], marker, color=colour, fillstyle="none" if colour == INK else "full", label=shorten(text, 24))
    axes.set(xlabel="A_Mean, %", ylabel="A_Tail, %")
    axes.grid(axis="x", visible=True)
    legend(shown, axes)
    caption = "Means over seeds; bars are 95 % intervals of the means (none with one seed). Up and right is better."
    return Plot(name, title, caption, shown)


def _interval(variant: Variant, metric: str) -> np.ndarray:
    values = [*variant.values(metric).values()]
    return _percents(mean_interval(values) if values else None)


def _percents(found: Difference | None) -> np.ndarray:
    """Mean and ends of its interval in percent; NaN where there is none."""
    return 100 * np.array([found.mean, found.low, found.high] if found else [None] * 3, dtype=float)


def _changes(study: Study, metric: str) -> Iterator[Plot]:
    """Change against the baseline with its interval, a row per variant; none where nothing is compared."""
    cases = [
        (group, variant, _percents(found))
        for group in study.finished
        for variant in group.compared_variants()
        if (found := group.difference(variant, metric)) is not None
    ]
    if not 0 < len(cases) <= _MOST_ROWS:
        return
    base = cases[0][0].baseline_title
    shown, (axes,) = figure(1.0 + 0.5 * len(cases))
    for row, (_, variant, (mean, low, high)) in enumerate(cases):
        axes.plot([low, high], [row, row], color=variant.colour, linewidth=2.5)
        axes.plot(mean, row, "o", color=variant.colour, markersize=6)
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_yticks(range(len(cases)), [_row_name(group, variant.label) for group, variant, _ in cases], fontsize=9)
    axes.set(ylim=(len(cases) - 0.5, -0.5), xlabel=f"points against {base}")
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    caption = f"Mean over shared seeds, 95 % interval (none with one seed). Right of 0: better than {base}."
    yield Plot(f"changes-{slug(metric)}", f"Change of {DEFINITIONS[metric][0]} against {base}", caption, shown)


def _row_name(group: Group, label: str) -> str:
    """Two lines; the method is in the second where a note on the data fills the first."""
    names = [group.dataset_title, group.method_title, group.tasks_title, group.fidelity, label]
    first = 1 if group.data_note else 2
    return f"{shorten(' · '.join(names[:first]))}\n{shorten(' · '.join(names[first:]), 40)}"


def feature_maps(study: Study) -> list[Plot]:
    """A map for each dataset and ViT of the study, from its first run.

    Raises:
        UserError: umap-learn is not installed, or the images or weights of a run are not where they were.
    """
    try:
        umap = importlib.import_module("umap")
    except ImportError as error:
        hint = install_hint("figures")
        raise UserError(f"--features needs the package umap-learn; install it {hint}") from error
    runs: dict[tuple, Run] = {}
    for run in study.runs:
        vit = run.record.backbone
        runs.setdefault((run.record.data.checksum, run.record.data.name, vit.name, vit.weights, vit.img_size), run)
    with style():
        return [_feature_map(run, umap, f"features-{turn}") for turn, run in enumerate(runs.values(), 1)]


def _feature_map(run: Run, umap: ModuleType, name: str) -> Plot:
    record, stream = run.record, run.record.stream
    folder = run.image_folder
    if folder is None:
        raise UserError(f"--features needs the images of {run.path.name}, which are not where they were; restore them")
    step = -(-len(run.labels[-1][0]) // _MOST_IMAGES)
    labels, files = run.labels[-1][0][::step], run.images(run.tasks_done - 1)[::step]
    if len(labels) < 3:
        raise UserError(f"--features needs at least 3 test images, and {run.path.name} has {len(labels)}")
    features = run.model().features(folder / file for file in files)
    places = umap.UMAP(n_neighbors=min(15, len(labels) - 1), random_state=0).fit_transform(features)
    tail = np.isin(labels, tail_classes(stream.train_counts, stream.class_order))
    tasks = np.searchsorted(np.cumsum(stream.task_sizes), labels, side="right") + 1
    shown, panels = figure(8.4, rows=2)
    for part, colour, own in (("head", "#0072b2", places[~tail]), ("tail", "#d55e00", places[tail])):
        panels[0].plot(*own.T, ".", color=colour, markersize=3, alpha=0.6, label=f"{part} classes")
    points = panels[1].scatter(places[:, 0], places[:, 1], c=tasks, s=5, cmap="viridis", linewidths=0, alpha=0.7)
    shown.colorbar(points, ax=panels[1], label="task", ticks=np.unique(tasks))
    for axes in panels:
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
    legend(shown, panels[0])
    caption = (
        f"Features of the frozen {record.backbone.name}, before any training, for {number(len(labels), 'test image')}, "
        f"by UMAP (15 neighbours). Above: by part; below: by the task of the class in {run.path.name}. Distances "
        "between far groups mean nothing."
    )
    return Plot(name, f"Frozen features: {record.data.title}", caption, shown)
