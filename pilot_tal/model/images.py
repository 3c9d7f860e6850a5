"""The images that a user means: files, folders and patterns."""

import glob
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from data_lt.errors import UserError
from data_lt.files import given_path
from data_lt.pools import EXTENSIONS


def find_images(names: Iterable[str | Path]) -> list[Path]:
    """The files that the names mean, each once, in their order.

    A file is taken whatever its name ends in; of a folder, and of those in it, all that end like images.

    Raises:
        UserError: a name means nothing, or a folder has no images.
    """
    found: dict[Path, None] = {}
    for name in names:
        path = given_path(name, "the image")
        places = [path] if path.exists() else [Path(place) for place in sorted(glob.glob(str(path), recursive=True))]
        if not places:
            raise UserError(f"{path} does not exist, and as a pattern it fits no file")
        files = [file for place in places for file in (_below(place) if place.is_dir() else [place])]
        if not files:
            raise UserError(f"there are no images in {path} (looked for {', '.join(EXTENSIONS)})")
        found.update(dict.fromkeys(files))
    return list(found)


def folder_name(file: Path) -> str:
    """The name of the folder that a file is in, spelt as names of classes are."""
    return unicodedata.normalize("NFC", Path(os.path.abspath(file)).parent.name)


def _below(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in EXTENSIONS and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file())
