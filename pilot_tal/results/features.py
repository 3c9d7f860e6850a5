"""Maps of the frozen features of the test images in two dimensions, by UMAP."""

import importlib
from types import ModuleType

import numpy as np

from data_lt.errors import UserError
from pilot_tal.metrics import tail_classes
from pilot_tal.record.run_dir import Run
from pilot_tal.results.drawing import Plot, figure, legend, style
from pilot_tal.results.formats import number
from pilot_tal.results.study import Study
from pilot_tal.version import install_hint

MOST_IMAGES = 3000
_PARTS = {"head": "#0072b2", "tail": "#d55e00"}


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
        return [_map(run, umap, f"features-{turn}") for turn, run in enumerate(runs.values(), 1)]


def _map(run: Run, umap: ModuleType, name: str) -> Plot:
    record, stream = run.record, run.record.stream
    folder = run.image_folder
    if folder is None:
        raise UserError(f"--features needs the images of {run.path.name}, which are not where they were; restore them")
    step = -(-len(run.labels[-1][0]) // MOST_IMAGES)
    labels, files = run.labels[-1][0][::step], run.images(run.tasks_done - 1)[::step]
    if len(labels) < 3:
        raise UserError(f"--features needs at least 3 test images, and {run.path.name} has {len(labels)}")
    features = run.model().features(folder / file for file in files)
    places = umap.UMAP(n_neighbors=min(15, len(labels) - 1), random_state=0).fit_transform(features)
    tail = np.isin(labels, tail_classes(stream.train_counts, stream.class_order))
    tasks = np.searchsorted(np.cumsum(stream.task_sizes), labels, side="right") + 1
    shown, panels = figure(8.4, rows=2)
    for part, colour in _PARTS.items():
        own = places[tail == (part == "tail")]
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
