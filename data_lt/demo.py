"""`demo_lt`: a long-tailed set of 50 characters, drawn by the program, so that nothing is downloaded.

Its sizes follow CUB-LT (docs/development/demo.md); it is not one of the paper's benchmarks. Training and test images
use different fonts (see `data_lt.glyphs`).
"""

import hashlib
import unicodedata
from pathlib import Path

import numpy as np
from PIL import Image

from data_lt.errors import UserError
from data_lt.files import read_json, staged_folder, write_json
from data_lt.glyphs import TEST_FONTS, TRAIN_FONTS, draw
from data_lt.laws import check_seed, pareto_counts
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


def demo_counts(seed: int = DEMO_SEED) -> dict[str, int]:
    """Training images of each class, in class order; which class gets which count is random."""
    quotas = np.array(pareto_counts(len(CHARACTERS), N_MAX, N_MIN))
    shuffled = quotas[_rng(seed, 0).permutation(len(quotas))]
    return {class_name(char): int(count) for char, count in zip(CHARACTERS, shuffled, strict=True)}


def demo_picture(split: str, char: str, number: int, seed: int = DEMO_SEED) -> np.ndarray:
    """Picture `number` of a class, 32 × 32 × 3 unsigned bytes; it does not depend on any other."""
    stream = 1 + SPLITS.index(split)
    fonts = TRAIN_FONTS if split == "train" else TEST_FONTS
    # Every class goes through all fonts in an order of its own: three pictures show three fonts.
    order = _rng(seed, stream, ord(char)).permutation(len(fonts))
    return draw(char, fonts[order[number % len(fonts)]], _rng(seed, stream, ord(char), number))


def demo_list(split: str, seed: int = DEMO_SEED) -> list[tuple[str, int]]:
    """(character, number) of every picture of a split, class by class."""
    counts = demo_counts(seed)
    return [
        (char, number)
        for char in CHARACTERS
        for number in range(counts[class_name(char)] if split == "train" else TEST_PER_CLASS)
    ]


def build_demo(root: str | Path, seed: int = DEMO_SEED) -> Path:
    """Draws the demo's images below `root` unless all of them are there, and returns their folder.

    The layout is `demo_lt/{train,test}/<class>/<number>.png` with `demo_lt/info.json`. The folder appears whole or not
    at all; where an image is missing, all are drawn again.
    """
    check_seed(seed)
    folder = Path(root) / FOLDER
    jobs = [
        (split, char, number, f"{split}/{class_name(char)}/{number:03d}.png")
        for split in SPLITS
        for char, number in demo_list(split, seed)
    ]
    if folder.exists():
        _check_info(folder, seed)
        if all((folder / path).exists() for *_, path in jobs):
            return folder
    pixels = hashlib.sha256()
    with staged_folder(folder) as temporary, progress(f"drawing {FOLDER}", len(jobs)) as bar:
        for split, char, number, path in jobs:
            picture = demo_picture(split, char, number, seed)
            pixels.update(picture.tobytes())
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(temporary / path)
            bar.update(1)
        info = {
            **_identity(seed),
            "classes": {class_name(char): char for char in CHARACTERS},
            "train_counts": demo_counts(seed),
            "test_per_class": TEST_PER_CLASS,
            "train_fonts": TRAIN_FONTS,
            "test_fonts": TEST_FONTS,
            "pixels_sha256": pixels.hexdigest(),
        }
        write_json(temporary / "info.json", info)
    return folder


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def is_demo(folder: str | Path) -> bool:
    """Whether a folder holds the demo's pictures, which may have been drawn among somebody's own."""
    return Path(folder).name == FOLDER and (Path(folder) / "info.json").is_file()


def _identity(seed: int) -> dict[str, str | int]:
    return {"dataset": FOLDER, "version": VERSION, "seed": seed}


def _check_info(folder: Path, seed: int) -> None:
    """Refuses a folder that holds other pictures than those asked for."""
    try:
        info, wanted = read_json(folder / "info.json"), _identity(seed)
    except UserError as error:
        raise UserError(f"{error}; remove the folder {folder} to draw it again") from error
    found = {key: info.get(key) for key in wanted} if isinstance(info, dict) else info
    if found != wanted:
        raise UserError(
            f"{folder} holds other images ({found}) than those wanted ({wanted}): remove the folder, "
            "or give another data root"
        )
