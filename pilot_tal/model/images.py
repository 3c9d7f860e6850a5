"""Images that a user names: files, folders and patterns, checked before they are opened."""

import glob
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from data_lt.errors import UserError, printable
from data_lt.files import check_regular, given_path
from data_lt.pictures import read_picture
from data_lt.pools import EXTENSIONS

LARGEST_IMAGE, LARGEST_WEIGHTS = 1 << 30, 64 << 30  # bytes


def find_images(names: Iterable[str | Path]) -> list[Path]:
    """List the files that the names stand for, each once, in their order.

    A file is taken whatever its suffix; a folder is searched recursively for image suffixes.

    Raises:
        UserError: a name matches nothing, or a folder has no images.
    """
    found: dict[Path, None] = {}
    for name in names:
        path = given_path(name, "the image")
        try:
            places = (
                [path] if path.exists() else [Path(place) for place in sorted(glob.glob(str(path), recursive=True))]
            )
        except OSError as error:
            raise UserError(f"cannot read {str(path)[:200]}: {error.strerror or error}") from error
        if not places:
            raise UserError(f"{path} does not exist, and as a pattern it matches no file")
        files = [file for place in places for file in (_below(place) if place.is_dir() else [place])]
        if not files:
            raise UserError(f"there are no images in {path} (looked for {', '.join(EXTENSIONS)})")
        found.update(dict.fromkeys(files))
    return list(found)


def read_image(path: Path) -> Image.Image:
    """Read an image file as RGB.

    Raises:
        UserError: it is not a regular file, its name is not UTF-8, it is too large or cannot be decoded.
    """
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"cannot read the image {printable(str(path))}: its name is not valid UTF-8") from error
    check_regular(path, "the image", LARGEST_IMAGE)
    return read_picture(path)


def folder_name(file: Path) -> str:
    """Name of the folder that a file is in, normalised as class names are."""
    return unicodedata.normalize("NFC", Path(os.path.abspath(file)).parent.name)


def _below(folder: Path) -> list[Path]:
    if folder.resolve() == Path(folder.resolve().anchor):
        raise UserError(f"{folder} is the root of the file system; give a folder of images")
    files = (file for file in folder.rglob("*") if file.suffix.lower() in EXTENSIONS and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file())
