"""Test images of the commonest and the rarest classes, right and confused, as small JPEGs for the page."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_lt.errors import UserError
from data_lt.pictures import read_picture
from pilot_tal.metrics import rank_classes
from pilot_tal.results.formats import clean
from pilot_tal.results.groups import Group, Variant

CLASSES, WRONG, SIDE = 3, 4, 96  # of the head and of the tail; images per class; pixels


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
    stream, (true, pred) = run.record.stream, run.labels[-1]
    folder = run.image_folder
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
        part = "tail" if label in rank[: len(rank) // 2] else "head"
        if images:
            name, accuracy = clean(stream.class_names[label]), float(np.mean(pred[places] == label))
            found.append(Thumbnails(name, part, stream.train_counts[label], accuracy, images))
    return variant, found


def _jpeg(path: Path) -> str:
    image, buffer = read_picture(path), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
