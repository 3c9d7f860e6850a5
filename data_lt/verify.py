"""Opens images to the last byte, to find those that are unreadable or cut short."""

import os
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data_lt.errors import UserError
from data_lt.pictures import inspect_picture
from data_lt.pools import shortened
from data_lt.progress import progress


def verify_images(root: Path, paths: Iterable[str]) -> tuple[int, int]:
    """Decodes every image; broken ones are an error that names them.

    Returns:
        The number of images, and how many have an EXIF orientation, which runs ignore.
    """
    todo = list(paths)
    broken, turned = [], 0
    workers = ThreadPoolExecutor(os.cpu_count())
    try:
        with warnings.catch_warnings(), progress("opening images", len(todo)) as advance:
            warnings.simplefilter("ignore")  # odd metadata is no reason to refuse pixels
            found = workers.map(lambda path: inspect_picture(root / path), todo)
            for path, (problem, is_turned) in zip(todo, found, strict=True):
                advance(1)
                turned += is_turned
                if problem:
                    broken.append(f"{path} ({problem})")
    finally:
        workers.shutdown(cancel_futures=True)  # Ctrl-C is not to wait for thousands of images
    if broken:
        raise UserError(
            f"{len(broken):,} of {len(todo):,} images below {root} cannot be read: {shortened(broken, 10)}; "
            "put sound copies in their place"
        )
    return len(todo), turned
