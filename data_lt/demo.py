"""`demo_lt`: a long-tailed set of 50 characters, drawn by the program, so that nothing is downloaded.

Its sizes follow CUB-LT (docs/development/demo.md); it is not one of the paper's benchmarks. Training and test images
use different fonts (see `data_lt.glyphs`).
"""

import hashlib
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data_lt.errors import UserError
from data_lt.files import os_errors, read_json, staged_folder, write_json
from data_lt.glyphs import TEST_FONTS, TRAIN_FONTS, draw
from data_lt.laws import pareto_counts
from data_lt.pictures import read_picture
from data_lt.progress import progress

VERSION = 2  # of the pictures: raised whenever another picture would come out
DEMO_SEED = 1993
N_MAX, N_MIN, TEST_PER_CLASS = 100, 5, 20
FOLDER = "demo_lt"
SPLITS = ("train", "test")

# In every font of both groups, and no two alike: no O beside 0 and Θ, no I beside l and 1, one case of K.
CHARACTERS = "".join(
    sorted("ABEGHKMQRSTX" + "abdefgmrty" + "2347" + "ΓΔΘΞΠΣΦΨΩδλξω" + "БДЖИЦЩЭЮЯ" + "&?")  # code point order
)


def class_name(char: str) -> str:
    """A folder name that any file system keeps apart from the others, even one that ignores case."""
    if char.isascii() and char.isalnum():
        return f"U{ord(char):04X}_{char}"
    words = [word for word in unicodedata.name(char).split() if word not in ("CAPITAL", "SMALL", "LETTER")]
    words = [word.title() if char.isupper() else word.lower() for word in words]
    return f"U{ord(char):04X}_{'_'.join(words)}"


def demo_counts() -> dict[str, int]:
    """Training images of each class, in class order; which class gets which count is random."""
    counts = np.array(pareto_counts(len(CHARACTERS), N_MAX, N_MIN))
    shuffled = counts[_rng(0).permutation(len(counts))]
    return {class_name(char): int(count) for char, count in zip(CHARACTERS, shuffled, strict=True)}


def demo_picture(split: str, char: str, number: int) -> np.ndarray:
    """Picture `number` of a class, 32 × 32 × 3 unsigned bytes; it does not depend on any other."""
    stream = 1 + SPLITS.index(split)
    fonts = TRAIN_FONTS if split == "train" else TEST_FONTS
    # Every class goes through all fonts in an order of its own: three pictures show three fonts.
    order = _rng(stream, ord(char)).permutation(len(fonts))
    return draw(char, fonts[order[number % len(fonts)]], _rng(stream, ord(char), number))


def demo_list(split: str) -> list[tuple[str, int]]:
    """(character, number) of every picture of a split, class by class."""
    counts = demo_counts()
    return [
        (char, number)
        for char in CHARACTERS
        for number in range(counts[class_name(char)] if split == "train" else TEST_PER_CLASS)
    ]


def build_demo(root: str | Path) -> Path:
    """Draws the demo's images below `root` unless all of them are there, and returns their folder.

    The layout is `demo_lt/{train,test}/<class>/<number>.png` with `demo_lt/info.json`. The folder appears whole or not
    at all. Where an image is missing, all are drawn again; unmodified images of an earlier version are replaced.
    """
    folder = Path(root) / FOLDER
    jobs = [(split, char, number) for split in SPLITS for char, number in demo_list(split)]
    info: dict[str, Any] = {
        "dataset": FOLDER,
        "version": VERSION,
        "seed": DEMO_SEED,
        "classes": {class_name(char): char for char in CHARACTERS},
        "train_counts": demo_counts(),
        "test_per_class": TEST_PER_CLASS,
        "train_fonts": TRAIN_FONTS,
        "test_fonts": TEST_FONTS,
    }
    if folder.exists():
        if _is_current(folder):
            if all((folder / path).exists() for path in _paths(info)):
                return folder
        else:
            with os_errors(f"cannot replace {folder}"):
                shutil.rmtree(folder)
    pixels = hashlib.sha256()
    with staged_folder(folder) as temporary, progress(f"drawing {FOLDER}", len(jobs)) as bar:
        for job, path in zip(jobs, _paths(info), strict=True):
            picture = demo_picture(*job)
            pixels.update(picture.tobytes())
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(temporary / path)
            bar.update(1)
        write_json(temporary / "info.json", {**info, "pixels_sha256": pixels.hexdigest()})
    return folder


def is_demo(folder: str | Path) -> bool:
    """Whether a folder holds the demo's pictures, which may have been drawn among somebody's own."""
    return Path(folder).name == FOLDER and (Path(folder) / "info.json").is_file()


def _is_current(folder: Path) -> bool:
    """Whether a folder is of this version; False for unmodified pictures of an earlier one.

    Raises:
        UserError: it holds anything else.
    """
    try:
        info = read_json(folder / "info.json")
        if (info["dataset"], info["version"], info["seed"]) == (FOLDER, VERSION, DEMO_SEED):
            return True
        pixels, paths = hashlib.sha256(), _paths(info)
        for path in paths:
            pixels.update(read_picture(folder / path).tobytes())
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
        unmodified = found == {"info.json", *paths} and info["pixels_sha256"] == pixels.hexdigest()
    except (UserError, KeyError, TypeError, AttributeError):
        unmodified = False
    if not unmodified:
        raise UserError(f"{folder} holds other images than the demo's: remove the folder, or give another data root")
    return False


def _paths(info: dict[str, Any]) -> list[str]:
    """The pictures of a demo, in the order in which they are drawn."""
    return [
        f"{split}/{name}/{number:03d}.png"
        for split in SPLITS
        for name in info["classes"]
        for number in range(info["train_counts"][name] if split == "train" else info["test_per_class"])
    ]


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng((DEMO_SEED, *key))
