"""Predictions of many images: as a table for a terminal, as CSV or JSON, and counted where the truth is known."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_lt.errors import printable
from data_lt.files import guarded
from pilot_tal.metrics import accuracy, class_recall, confusion_matrix, tail_classes
from pilot_tal.model.images import folder_name
from pilot_tal.model.model import Model, Prediction

FORMATS = (".csv", ".json")


@dataclass(frozen=True)
class Labelled:
    """One image with what the model says of it; `true` is the class that its folder is named after, if any."""

    file: Path
    prediction: Prediction
    true: str | None


def labelled(model: Model, file: Path, prediction: Prediction) -> Labelled:
    """Adds what the image's folder tells; a class that the model has not learned yet is a truth as well."""
    name = folder_name(file)
    return Labelled(file, prediction, name if name in model.record.stream.class_names else None)


def score(model: Model, found: Sequence[Labelled]) -> dict[str, Any]:
    """Accuracy over the images whose class the model knows, and its means over classes: all, head and tail.

    Empty if there is no such image; None where no class of a part has one. `unlearned` are images of later classes.
    """
    place = {name: index for index, name in enumerate(model.classes)}
    known = [(place[one.true], place[one.prediction.label]) for one in found if one.true in place]
    if not known:
        return {}
    true, pred = np.array(known).T
    confusion = confusion_matrix(true, pred, len(place))
    recall = class_recall(confusion)
    stream = model.record.stream
    in_tail = np.isin(np.arange(len(place)), tail_classes(stream.train_counts, stream.class_order))
    return {
        "images": len(known),
        "unlearned": sum(one.true is not None and one.true not in place for one in found),
        "accuracy": accuracy(confusion),
        **{name: _mean(recall[part]) for name, part in (("a_mean", slice(None)), ("a_head", ~in_tail))},
        "a_tail": _mean(recall[in_tail]),
    }


def score_text(scores: dict[str, Any]) -> str:
    """One line for a terminal."""
    shown = {key: "–" if scores[key] is None else f"{100 * scores[key]:.2f} %" for key in _SHARES}
    later = f"; {scores['unlearned']} of classes that are not learned yet are not counted" * bool(scores["unlearned"])
    return (
        f"accuracy {shown['accuracy']} on {scores['images']} images in folders that are named after classes; mean over "
        f"classes {shown['a_mean']}, head {shown['a_head']}, tail {shown['a_tail']}{later}"
    )


def table_text(found: Sequence[Labelled]) -> str:
    """Aligned columns: the image, then the best classes with their scores."""
    rows = [[printable(str(one.file)), *_cells(one.prediction)] for one in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def csv_text(found: Sequence[Labelled]) -> str:
    """A line per image: image, label, score, true (empty if unknown), rejected (if asked), then the further classes.

    Names are `guarded`, for spreadsheets run some.
    """
    rows = []
    for one in found:
        (label, share), *further = one.prediction.top
        row: dict[str, object] = {"image": guarded(str(one.file)), "label": guarded(label), "score": f"{share:.6g}"}
        row["true"] = guarded(one.true or "")
        if one.prediction.rejected is not None:
            row["rejected"] = int(one.prediction.rejected)
        for place, (label, share) in enumerate(further, 2):
            row |= {f"label_{place}": guarded(label), f"score_{place}": f"{share:.6g}"}
        rows.append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, max(rows, key=len, default=_NO_IMAGE), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_text(model: Model, found: Sequence[Labelled], unreadable: dict[Path, str], scores: dict[str, Any]) -> str:
    """Everything, the images that could not be read included."""
    content = {
        "run": model.record.name,
        "after_task": model.tasks_done,
        "images": [_plain(one) for one in found],
        "unreadable": [{"image": printable(str(file)), "problem": problem} for file, problem in unreadable.items()],
        "scores": scores,
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


_NO_IMAGE = dict.fromkeys(("image", "label", "score", "true"))
_SHARES = ("accuracy", "a_mean", "a_head", "a_tail")


def _plain(one: Labelled) -> dict[str, Any]:
    best = [{"label": label, "score": float(f"{share:.6g}")} for label, share in one.prediction.top]
    rejected = {} if one.prediction.rejected is None else {"rejected": one.prediction.rejected}
    return {"image": str(one.file), **best[0], "true": one.true, **rejected, "top": best}


def _cells(prediction: Prediction) -> list[str]:
    cells = [f"{share:.3f} {printable(label)}" for label, share in prediction.top]
    return cells if prediction.rejected is None else ["none of these" if prediction.rejected else "", *cells]


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else None
