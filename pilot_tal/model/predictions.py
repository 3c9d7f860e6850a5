"""Predictions of many image files: the files that names stand for, and one table for a terminal or as CSV."""

import glob
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from data_lt.errors import UserError, printable
from data_lt.files import given_path, guarded, os_errors
from data_lt.pools import EXTENSIONS
from pilot_tal.model.model import Prediction


def find_images(names: Iterable[str | Path]) -> list[Path]:
    """Lists the files that the names stand for, each once, in their order.

    A file is taken whatever its suffix; a folder is searched recursively for image suffixes.

    Raises:
        UserError: a name matches nothing, or a folder has no images.
    """
    found: dict[Path, None] = {}
    for name in names:
        path = given_path(name, "the image")
        with os_errors(f"cannot read {str(path)[:200]}"):
            places = [path] if path.exists() else list(map(Path, sorted(glob.glob(str(path), recursive=True))))
        if not places:
            raise UserError(f"{path} does not exist, and as a pattern it matches no file")
        files = [file for place in places for file in (_below(place) if place.is_dir() else [place])]
        if not files:
            raise UserError(f"there are no images in {path} (looked for {', '.join(EXTENSIONS)})")
        found.update(dict.fromkeys(files))
    return list(found)


def _below(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in EXTENSIONS and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file())


def prediction_table(files: Sequence[Path], predictions: Sequence[Prediction]) -> pd.DataFrame:
    """One row per image: image, label, score, rejected (if asked), then label_2, score_2 and so on."""
    rows = []
    for file, found in zip(files, predictions, strict=True):
        path = str(file).encode("utf-8", "backslashreplace").decode()  # a name need not be valid UTF-8
        row: dict[str, Any] = {"image": path, "label": found.label, "score": found.score}
        if found.rejected is not None:
            row["rejected"] = found.rejected
        for place, (label, score) in enumerate(found.top[1:], 2):
            row |= {f"label_{place}": label, f"score_{place}": score}
        rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["image", "label", "score"])


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
