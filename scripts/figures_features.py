"""Test images of the last task's classes in two dimensions, under two runs that differ in the loss."""

from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from results_evidence import write_table
from torch import Tensor

from data_lt.errors import UserError
from data_lt.files import write_text
from data_lt.pictures import read_picture
from pilot_tal import load_model
from pilot_tal.learners import LEARNERS
from pilot_tal.losses import LOSSES
from pilot_tal.model.model import Model
from pilot_tal.record.run_dir import Run, load_run
from pilot_tal.results.svg import INK, figure, standalone, style, to_svg

NAME = "results_features"
COLUMNS = ("dataset", "method", "loss", "seed", "image", "class", "images", "x", "y")
_CLASSES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#525252")
_MARKERS = "os^Dv"


def draw_features(runs: list[str], table: Path, images: Path) -> None:
    """Writes the places of the test images into a table, and the picture of it."""
    if len(runs) != 2:
        raise UserError(f"features compares two runs: give their directories, got {len(runs)}")
    try:
        from umap import UMAP
    except ImportError as error:
        raise UserError(
            "features needs the package umap-learn; install it with: pip install 'pilot-tal[figures]'"
        ) from error
    stored = [load_run(path) for path in runs]
    check_pair(*stored)
    rows = [row for run in stored for row in placed(run, UMAP)]
    write_table(table, rows, COLUMNS)
    with style():
        picture = standalone(to_svg(features_figure(pd.read_csv(table))[0]))
    write_text(images / f"{NAME}.svg", picture)
    print(f"{table}\n{images / f'{NAME}.svg'}")


def check_pair(one: Run, other: Run) -> None:
    """Refuses runs that are not finished, or that differ in more than the loss."""
    for run in (one, other):
        if not run.finished:
            raise UserError(f"{run.path} is not finished; the same command goes on with it")
    a, b = one.record, other.record
    same = (a.data.name, a.method, a.seed, a.stream, a.backbone) == (
        b.data.name,
        b.method,
        b.seed,
        b.stream,
        b.backbone,
    )
    if not same or a.loss.name == b.loss.name:
        raise UserError(
            f"{one.path.name} and {other.path.name} must be of two losses and the same in all else: dataset, "
            "method with its settings, seed and ViT"
        )


def placed(run: Run, umap: type) -> list[dict]:
    """The test images of the last task's classes and their places."""
    record = run.record
    true, names = run.predictions[-1][0], run.images(record.num_tasks - 1)
    chosen = np.flatnonzero(true >= record.num_classes - record.stream.task_sizes[-1])
    model = load_model(run.path)
    features = features_of(model, found_images(run, [names[i] for i in chosen]))
    neighbours = min(15, len(chosen) - 1)
    places = umap(n_neighbors=neighbours, random_state=0, n_jobs=1).fit_transform(features)
    return [
        {
            "dataset": record.data.title,
            "method": record.method.name,
            "loss": record.loss.name,
            "seed": record.seed,
            "image": names[i],
            "class": record.stream.class_names[true[i]],
            "images": record.stream.train_counts[true[i]],
            "x": round(float(x), 3),
            "y": round(float(y), 3),
        }
        for i, (x, y) in zip(chosen, places, strict=True)
    ]


def found_images(run: Run, names: list[str]) -> list[Path]:
    """The images where one of the run's processes had them."""
    for environment in reversed(run.record.environment):
        files = [Path(str(environment.get("images"))) / name for name in names]
        if all(file.is_file() for file in files):
            return files
    raise UserError(f"the test images of {run.path} are not where the run had them")


def features_of(model: Model, files: list[Path], batch: int = 32) -> np.ndarray:
    """What the classifier sees of each image [images, dim]: the one that scores all classes seen with one layer.

    That is so in L2P, DualPrompt, CODA-Prompt and LAE (of its two modules the one in training). MOS looks at an image
    under every adapter, and the baselines compare with prototypes.
    """
    learner, seen = model.learner, []
    score = learner.seen_logits

    def noted(features: Tensor, head: torch.nn.Linear) -> Tensor:
        seen.append(features.float())
        return score(features, head)

    found = []
    for start in range(0, len(files), batch):
        seen.clear()
        images = torch.stack([model.transform(read_picture(file)) for file in files[start : start + batch]])
        with mock.patch.object(learner, "seen_logits", noted):
            model.scores(images)
        if not seen or seen[0].ndim != 2:
            raise UserError(
                f"{model.record.method.title} has no one feature of an image: features works for learners that score "
                "all classes with one linear layer (l2p, dualprompt, coda_prompt, lae)"
            )
        found.append(seen[0].cpu())
    return torch.cat(found).numpy()


def features_figure(table: pd.DataFrame) -> tuple[Figure, str]:
    """A panel for each loss, a colour and mark for each class from many to few images; and the caption."""
    losses = [loss for loss in LOSSES if loss in set(table["loss"])]
    sizes = table.groupby("class")["images"].first().sort_values(ascending=False, kind="stable")
    shown, panels = figure(2.7, columns=len(losses))
    for axes, loss in zip(panels, losses, strict=True):
        for turn, name in enumerate(sizes.index):
            own = table[(table["loss"] == loss) & (table["class"] == name)]
            look = {"color": _CLASSES[turn % len(_CLASSES)], "marker": _MARKERS[turn // len(_CLASSES) % len(_MARKERS)]}
            axes.scatter(own["x"], own["y"], s=11, alpha=0.8, linewidth=0, label=f"{sizes[name]}", **look)
        axes.set(title=LOSSES[loss].title, xticks=[], yticks=[])
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color(INK)
    handles, labels = panels[0].get_legend_handles_labels()
    rows = -(-len(labels) // 8)
    shown.set_figheight(shown.get_figheight() + 0.24 * rows)
    shown.legend(
        handles, labels, title="training images of the class", loc="outside lower center",
        ncols=-(-len(labels) // rows), handletextpad=0, columnspacing=0.8, markerscale=1.6,
    )  # fmt: skip
    first = table.iloc[0]
    caption = (
        f"Features of the test images of the last task's {len(sizes)} classes in two dimensions (UMAP, each loss for "
        f"itself, {LEARNERS[first['method']].title} on {first['dataset']}, seed {first['seed']}). Distances between "
        "groups and their sizes mean little; what can be seen is which classes run into one another."
    )
    return shown, caption
