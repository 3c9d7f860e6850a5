"""Reads JPEG, PNG, WebP, GIF and BMP images, by content and not by name.

Pixels become 8-bit RGB as in LAMDA-PILOT: transparency is dropped and the EXIF orientation is ignored. Only what Pillow
would clip is scaled: 16-bit grey and floats.
"""

import os
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from data_lt.errors import UserError
from data_lt.files import progress

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")  # others may start foreign programs, as PostScript does
ORIENTATION, UPRIGHT = 0x0112, 1  # the EXIF tag, and its value for "as stored"


def read_picture(path: Path) -> Image.Image:
    """The image in a file as RGB; raises `UserError` with the reason if it cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unusual metadata does not matter
        try:
            with Image.open(path, formats=FORMATS) as image:
                return to_rgb(image)
        except Exception as error:  # on damaged bytes a decoder may raise anything
            raise UserError(
                f"cannot read the image {path}: {_problem(path, error)}; replace it by an intact copy "
                "(build with --verify names every broken one)"
            ) from error


def picture_size(path: Path) -> tuple[int, int] | None:
    """Width and height in pixels, without decoding the image; None where it cannot be read."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.size
    except Exception:
        return None


def verify_images(root: Path, paths: Iterable[str]) -> tuple[int, int]:
    """Decodes every image and raises `UserError` that names the broken ones.

    Returns:
        The number of images, and how many have an EXIF orientation, which runs ignore.
    """
    todo = list(paths)
    broken, turned = [], 0
    workers = ThreadPoolExecutor(os.cpu_count())
    try:
        with warnings.catch_warnings(), progress("opening images", len(todo)) as bar:
            warnings.simplefilter("ignore")
            found = workers.map(lambda path: _inspect(root / path), todo)
            for path, (problem, is_turned) in zip(todo, found, strict=True):
                bar.update(1)
                turned += is_turned
                if problem:
                    broken.append(f"{path} ({problem})")
    finally:
        workers.shutdown(cancel_futures=True)  # Ctrl-C must not wait for thousands of images
    if broken:
        raise UserError(
            f"{len(broken):,} of {len(todo):,} images below {root} cannot be read: {shortened(broken, 10)}; "
            "replace them by intact copies"
        )
    return len(todo), turned


def shortened(names: list[str], limit: int = 5) -> str:
    """The first few names and how many more there are."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _inspect(path: Path) -> tuple[str | None, bool]:
    """What is wrong with an image, if anything, and whether its EXIF orientation is not upright."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            to_rgb(image)
            return None, image.getexif().get(ORIENTATION, UPRIGHT) != UPRIGHT
    except Exception as error:
        return _problem(path, error), False


def to_rgb(image: Image.Image) -> Image.Image:
    """Any photograph as 8-bit RGB.

    16-bit grey (modes `I;16` and `I`) keeps its upper 8 bits, as Pillow itself does for 16-bit colour. Floats (`F`)
    are taken as 0 to 1 if none exceeds 1, else as 0 to 255. What lies outside is refused rather than clipped.
    """
    if image.mode != "F" and not image.mode.startswith("I"):
        return image.convert("RGB")
    grey = np.asarray(image, dtype=np.float64)
    top = 65535.0 if image.mode != "F" else 1.0 if grey.max() <= 1 else 255.0
    if not (grey.min() >= 0 and grey.max() <= top):  # NaN too
        raise UserError(f"values go from {grey.min():g} to {grey.max():g}, those of an image from 0 to {top:g}")
    levels = grey // 256 if image.mode != "F" else np.round(grey * (255 / top))
    return Image.fromarray(levels.astype(np.uint8)).convert("RGB")


def _problem(path: Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "empty file" if not path.stat().st_size else f"not an image of the kinds {', '.join(FORMATS)}"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
