"""Opens images to the last byte, to find those that are unreadable or cut short."""

import os
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_lt.pools import shortened
from data_lt.progress import progress
from pilot_tal.errors import PilotTalError


def verify_images(root: Path, paths: Iterable[str]) -> int:
    """Decodes every image and returns how many there were; broken ones are an error that names them."""
    todo = list(paths)
    broken = []
    workers = ThreadPoolExecutor(os.cpu_count())
    try:
        with progress("opening images", len(todo)) as advance:
            for path, problem in zip(todo, workers.map(lambda path: _problem(root / path), todo), strict=True):
                advance(1)
                if problem:
                    broken.append(f"{path} ({problem})")
    finally:
        workers.shutdown(cancel_futures=True)  # Ctrl-C is not to wait for thousands of images
    if broken:
        raise PilotTalError(
            f"{len(broken):,} of {len(todo):,} images below {root} cannot be read: {shortened(broken, 10)}"
        )
    return len(todo)


def _problem(path: Path) -> str | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata is no reason to refuse pixels
            with Image.open(path) as image:
                image.load()
    except UnidentifiedImageError:
        return "not an image" if path.stat().st_size else "empty file"
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        return str(error) or type(error).__name__
    return None
