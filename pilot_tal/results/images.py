"""What a report shows of the images themselves: thumbnails, and on request a map of the frozen features."""

import base64
import importlib
import io
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from data_lt.errors import UserError
from data_lt.pictures import read_picture
from pilot_tal.metrics import rank_classes
from pilot_tal.record.run_dir import Run
from pilot_tal.results.drawing import Plot, figure, legend
from pilot_tal.results.formats import clean
from pilot_tal.results.study import Group, Study, Variant
from pilot_tal.version import install_hint

CLASSES, WRONG, SIDE = 3, 4, 96  # of the head and of the tail; images per class; pixels
_MOST_IMAGES = 3000


@dataclass(frozen=True)
class Thumbnails:
    """A class: its name, training images, accuracy, and images as (data URL, class that it is taken for)."""

    name: str
    part: str
    count: int
    accuracy: float
    images: list[tuple[str, str]]


def thumbnails(group: Group) -> tuple[Variant, list[Thumbnails]]:
    """A right image and confused ones of some classes, under the first compared variant (or the first) and seed.

    No class is returned where the files of the images are gone.
    """
    variant = next(iter(group.compared_variants() or group.finished_variants()))
    run = variant.runs[variant.seeds[0]]
    stream, (true, pred), folder = run.record.stream, run.labels[-1], run.image_folder
    if folder is None:
        return variant, []
    files, rank = run.images(run.tasks_done - 1), rank_classes(stream.train_counts, stream.class_order)
    found, chosen = [], dict.fromkeys([*rank[::-1][:CLASSES], *rank[:CLASSES][::-1]])
    for label in chosen:
        places = np.flatnonzero(true == label)
        right, wrong = places[pred[places] == label][:1], places[pred[places] != label]
        wrong = wrong[np.sort(np.unique(pred[wrong], return_index=True)[1])[:WRONG]]  # one for each other class
        try:
            images = [(_jpeg(folder / files[i]), clean(stream.class_names[pred[i]])) for i in (*right, *wrong)]
        except UserError:
            return variant, []
        if images:
            part = "tail" if label in run.metrics["tail_classes"] else "head"
            name, accuracy = clean(stream.class_names[label]), float(np.mean(pred[places] == label))
            found.append(Thumbnails(name, part, stream.train_counts[label], accuracy, images))
    return variant, found


def _jpeg(path: Path) -> str:
    image, buffer = read_picture(path), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


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
    return [_feature_map(run, umap, f"features-{turn}") for turn, run in enumerate(runs.values(), 1)]


def _feature_map(run: Run, umap: ModuleType, name: str) -> Plot:
    record, folder = run.record, run.image_folder
    if folder is None:
        raise UserError(f"--features needs the images of {run.path.name}, which are not where they were; restore them")
    step = -(-len(run.labels[-1][0]) // _MOST_IMAGES)
    labels, files = run.labels[-1][0][::step], run.images(run.tasks_done - 1)[::step]
    features = run.model().features(folder / file for file in files)
    places = umap.UMAP(n_neighbors=min(15, len(labels) - 1), random_state=0).fit_transform(features)
    tail = np.isin(labels, run.metrics["tail_classes"])
    tasks = np.searchsorted(np.cumsum(record.stream.task_sizes), labels, side="right") + 1
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
        f"Features of the frozen {record.backbone.name}, before any training, for {len(labels)} test images, by UMAP "
        f"(15 neighbours). Above: by part; below: by task in {run.path.name}. Far distances mean nothing."
    )
    return Plot(name, f"Frozen features: {record.data.title}", caption, shown)
