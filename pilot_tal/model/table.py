"""Predictions of many images as one table: for a terminal, CSV or JSON, and scored where the class is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from data_lt.errors import printable
from data_lt.files import guarded
from pilot_tal.metrics import tail_classes
from pilot_tal.model.images import folder_name
from pilot_tal.model.model import Model, Prediction

FORMATS = (".csv", ".json")


def prediction_table(model: Model, files: Sequence[Path], predictions: Sequence[Prediction]) -> pd.DataFrame:
    """One row per image: image, label, score, true, rejected (if asked), then label_2, score_2 and so on.

    `true` is the class that the image's folder is named after, learned yet or not; None for other folders.
    """
    rows = []
    for file, found in zip(files, predictions, strict=True):
        name = folder_name(file)
        true = name if name in model.record.stream.class_names else None
        path = str(file).encode("utf-8", "backslashreplace").decode()  # a name need not be valid UTF-8
        row: dict[str, Any] = {"image": path, "label": found.label, "score": found.score, "true": true}
        if found.rejected is not None:
            row["rejected"] = found.rejected
        for place, (label, score) in enumerate(found.top[1:], 2):
            row |= {f"label_{place}": label, f"score_{place}": score}
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["image", "label", "score", "true"])


def score(model: Model, table: pd.DataFrame) -> dict[str, Any]:
    """Accuracy over the images whose class the model knows, and its means over classes: all, head and tail.

    Empty if there is no such image; None where no class of a part has one. `unlearned` are images of later classes.
    """
    known = table[table["true"].isin(model.classes)]
    if known.empty:
        return {}
    right, stream = known["label"] == known["true"], model.record.stream
    recall = right.groupby(known["true"]).mean()
    in_tail = recall.index.isin([stream.class_names[i] for i in tail_classes(stream.train_counts, stream.class_order)])
    means = {"accuracy": right, "a_mean": recall, "a_head": recall[~in_tail], "a_tail": recall[in_tail]}
    return {
        "images": len(known),
        "unlearned": int(table["true"].notna().sum()) - len(known),
        **{key: float(values.mean()) if len(values) else None for key, values in means.items()},
    }


def score_text(scores: dict[str, Any]) -> str:
    """One line for a terminal."""
    shown = {key: "–" if value is None else f"{100 * value:.2f} %" for key, value in scores.items()}
    later = f"; {scores['unlearned']} of classes that are not learned yet are not counted" * bool(scores["unlearned"])
    return (
        f"accuracy {shown['accuracy']} on {scores['images']} images in folders that are named after classes; mean over "
        f"classes {shown['a_mean']}, head {shown['a_head']}, tail {shown['a_tail']}{later}"
    )


def table_text(table: pd.DataFrame) -> str:
    """Aligned columns: the image, then the best classes with their scores."""
    columns = [table["image"].map(printable)]
    if "rejected" in table:
        columns.append(table["rejected"].map({True: "none of these", False: ""}))
    for label, share in zip(table.filter(regex="^label"), table.filter(regex="^score"), strict=True):
        columns.append(table[share].map("{:.3f} ".format) + table[label].map(printable))
    padded = [column.str.ljust(column.str.len().max()) for column in columns]
    return "\n".join("  ".join(row).rstrip() for row in zip(*padded, strict=True))


def csv_text(table: pd.DataFrame) -> str:
    """The table as CSV; names are `guarded`, for spreadsheets run some."""
    safe = table.map(lambda value: guarded(value) if isinstance(value, str) else value)
    return safe.to_csv(index=False, lineterminator="\n", float_format="%.6g")


def json_text(model: Model, table: pd.DataFrame, unreadable: dict[Path, str], scores: dict[str, Any]) -> str:
    """Everything, the images that could not be read included."""
    content = {
        "run": model.record.name,
        "after_task": model.tasks_done,
        "images": table.to_dict("records"),
        "unreadable": [{"image": printable(str(file)), "problem": problem} for file, problem in unreadable.items()],
        "scores": scores,
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
