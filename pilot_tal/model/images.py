"""Images that a user names: to predict, or to learn, where they are compared with those learned before and split."""

import glob
import hashlib
import math
import os
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL import Image

from data_lt import CARDS
from data_lt.errors import UserError
from data_lt.files import check_regular, checksum, given_path, os_errors
from data_lt.pictures import read_picture, to_rgb
from data_lt.pools import EXTENSIONS, official_pools
from data_lt.prepare import OWN, find_pool

LARGEST_IMAGE, LARGEST_WEIGHTS = 1 << 30, 64 << 30  # bytes
TRAIN, HELD_OUT = "train", "held out"
Photos = str | Path | Mapping[str, Iterable[str | Path | Image.Image]]


def find_images(names: Iterable[str | Path]) -> list[Path]:
    """List the files that the names stand for, each once, in their order.

    A file is taken whatever its suffix; a folder is searched recursively for image suffixes.

    Raises:
        UserError: a name matches nothing, or a folder has no images.
    """
    found: dict[Path, None] = {}
    for name in names:
        path = given_path(name, "the image")
        with os_errors(f"cannot read {str(path)[:200]}"):
            places = (
                [path] if path.exists() else [Path(place) for place in sorted(glob.glob(str(path), recursive=True))]
            )
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
        UserError: it is not a regular file, is too large or cannot be decoded.
    """
    check_regular(path, "the image", LARGEST_IMAGE)
    return read_picture(path)


def folder_name(file: Path) -> str:
    """Name of the folder that a file is in, normalised as class names are."""
    return unicodedata.normalize("NFC", Path(os.path.abspath(file)).parent.name)


def _below(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.suffix.lower() in EXTENSIONS and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file())


@dataclass(frozen=True)
class Photo:
    """One image: `name` is shown, `split` is empty until it is decided."""

    file: Path = field(compare=False)
    name: str
    label: str
    checksum: str
    split: str = ""


def find_photos(photos: Photos, scratch: Path) -> list[Photo]:
    """Lists the images of a session, by class and name.

    Args:
        photos: A folder with one folder per class, or with train/ and test/ of them; or images by class.
        scratch: Where PIL images are written as files.
    """
    if isinstance(photos, Mapping):
        return [
            _photo(file, file.name, _class_name(label), "")
            for number, (label, images) in enumerate(photos.items())
            for file in _files(images, scratch / str(number))
        ]
    pool = find_pool(CARDS[OWN], given_path(photos, "PHOTOS"))
    train, test = official_pools(CARDS[OWN], pool)
    parts = [("" if test is None else TRAIN, train), (HELD_OUT, test or {})]
    return [
        _photo(pool.root / pool.files[label][name], pool.files[label][name], label, split)
        for label in pool.files
        for split, names in parts
        for name in sorted(names.get(label, ()))
    ]


def without_repeated(photos: list[Photo], before: Iterable[Photo], again: bool) -> list[Photo]:
    """Leaves out images whose bytes were learned before or come twice.

    Args:
        photos: The images of this session.
        before: All images of earlier sessions.
        again: Train on those that were trained on before once more; they are never held out, nor the reverse.

    Raises:
        UserError: an image is in two classes.
    """
    learned = {photo.checksum: photo for photo in before}
    kept: dict[str, Photo] = {}
    for photo in photos:
        old = learned.get(photo.checksum)
        first = old or kept.get(photo.checksum) or photo
        if first.label != photo.label:
            other = f"learned as {first.label!r}" if old else f"in {first.label!r} ({first.name})"
            raise UserError(f"{photo.name} in {photo.label!r} is also {other}; remove one of the two")
        if old is None:
            kept.setdefault(photo.checksum, photo)
        elif again and old.split == TRAIN and photo.split != HELD_OUT:
            kept.setdefault(photo.checksum, replace(photo, split=TRAIN))
    return list(kept.values())


def split_photos(photos: list[Photo], hold_out: float, seed: int) -> list[Photo]:
    """Decides which images are held out, where train/ and test/ have not: a share of each class.

    At least one image per class is held out and one is trained on; a class of one image has none held out. The choice
    depends on the images' bytes and the seed alone.
    """
    if not 0 <= hold_out < 1:
        raise UserError(f"hold_out must be at least 0 and below 1, got {hold_out:g}")
    undecided: dict[str, list[Photo]] = {}
    for photo in photos:
        if not photo.split:
            undecided.setdefault(photo.label, []).append(photo)
    held: set[Photo] = set()
    for own in undecided.values():
        number = min(max(1, math.floor(hold_out * len(own) + 0.5)), len(own) - 1) if hold_out else 0
        ranked = sorted(own, key=lambda one: hashlib.sha256(f"{seed} {one.checksum}".encode()).digest())
        held.update(ranked[:number])
    return [photo if photo.split else replace(photo, split=HELD_OUT if photo in held else TRAIN) for photo in photos]


def _photo(file: Path, name: str, label: str, split: str) -> Photo:
    check_regular(file, "the image", LARGEST_IMAGE)
    return Photo(file, name, label, checksum(file), split)


def _class_name(label: object) -> str:
    name = unicodedata.normalize("NFC", str(label).strip())
    if not name or any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise UserError(f"a class needs a name of printable letters, got {label!r}")
    return name


def _files(images: Iterable[str | Path | Image.Image], scratch: Path) -> list[Path]:
    """Paths as they are; PIL images as PNG files in `scratch`, which keep every pixel."""
    if isinstance(images, (str, Path, Image.Image)):
        images = [images]
    files = []
    scratch.mkdir(parents=True)
    for number, image in enumerate(images):
        if isinstance(image, Image.Image):
            file = scratch / f"image{number:05d}.png"
            to_rgb(image).save(file)
        elif isinstance(image, (str, Path)):
            file = given_path(image, "the image").absolute()
        else:
            raise UserError(f"an image must be a path or a PIL image, got {type(image).__name__}")
        files.append(file)
    return files
