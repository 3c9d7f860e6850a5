"""`demo_lt`: a long-tailed set of 50 characters, drawn by the program, so that nothing is downloaded.

Its sizes follow CUB-LT (docs/development/demo.md); it is not one of the paper's benchmarks. A picture is one glyph in
random pose and colour on a random background. It depends on its split, character and number alone, so any picture can
be drawn again without the others. Training and test pictures use different fonts of those that come with matplotlib.
"""

import functools
import hashlib
import unicodedata
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data_lt.errors import UserError
from data_lt.files import progress, read_json, staged_folder, write_json
from data_lt.split import pareto_counts

VERSION, DEMO_SEED = 2, 1993  # the version is raised whenever another picture would come out
N_MAX, N_MIN, TEST_PER_CLASS = 100, 5, 20
FOLDER = "demo_lt"

# In every font of both groups, and no two alike: no O beside 0 and Θ, no I beside l and 1, one case of K.
CHARACTERS = "".join(sorted("ABEGHKMQRSTXabdefgmrty2347ΓΔΘΞΠΣΦΨΩδλξωБДЖИЦЩЭЮЯ&?"))  # by code point
TRAIN_FONTS = tuple(
    f"DejaVu{family}{style}"
    for family, slanted in (("Sans", "Oblique"), ("SansMono", "Oblique"), ("Serif", "Italic"))
    for style in ("", "-Bold", f"-{slanted}", f"-Bold{slanted}")
)
TEST_FONTS = ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta")

SIZE = 32  # pixels a side
_POINTS = 56  # glyphs are drawn near their final size on a canvas of twice SIZE, then halved: smooth edges
_MIN_CONTRAST = 0.35  # least difference in brightness between the glyph's colour and the background's


def class_name(char: str) -> str:
    """A folder name that any file system keeps apart from the others, even one that ignores case."""
    if char.isascii() and char.isalnum():
        return f"U{ord(char):04X}_{char}"
    words = "_".join(word for word in unicodedata.name(char).split() if word not in ("CAPITAL", "SMALL", "LETTER"))
    return f"U{ord(char):04X}_{words.title() if char.isupper() else words.lower()}"


def demo_counts() -> dict[str, int]:
    """Training images of each class, in class order; which class gets which count is random."""
    counts = np.array(pareto_counts(len(CHARACTERS), N_MAX, N_MIN))
    shuffled = counts[_rng(0).permutation(len(counts))]
    return {class_name(char): int(count) for char, count in zip(CHARACTERS, shuffled, strict=True)}


def demo_list(split: str) -> list[tuple[str, int]]:
    """(character, number) of every picture of a split, class by class."""
    sizes = demo_counts().values() if split == "train" else [TEST_PER_CLASS] * len(CHARACTERS)
    return [(char, number) for char, size in zip(CHARACTERS, sizes, strict=True) for number in range(size)]


def demo_picture(split: str, char: str, number: int) -> np.ndarray:
    """Picture `number` of a class, 32 × 32 × 3 unsigned bytes; it does not depend on any other."""
    stream, fonts = (1, TRAIN_FONTS) if split == "train" else (2, TEST_FONTS)
    # Every class goes through all fonts in an order of its own: three pictures show three fonts.
    order = _rng(stream, ord(char)).permutation(len(fonts))
    return draw(char, fonts[order[number % len(fonts)]], _rng(stream, ord(char), number))


def build_demo(root: str | Path) -> Path:
    """Draws the demo's images below `root` unless all of them are there, and returns their folder.

    The layout is `demo_lt/{train,test}/<class>/<number>.png` with `demo_lt/info.json`. The folder appears whole or not
    at all. Where an image is missing, all are drawn again; pictures of another version are refused.
    """
    folder = Path(root) / FOLDER
    identity = {"dataset": FOLDER, "version": VERSION, "seed": DEMO_SEED}
    jobs = {
        f"{split}/{class_name(char)}/{number:03d}.png": (split, char, number)
        for split in ("train", "test")
        for char, number in demo_list(split)
    }
    if folder.exists():
        try:
            ours = identity.items() <= read_json(folder / "info.json").items()
        except (UserError, AttributeError):
            ours = False
        if not ours:
            raise UserError(f"{folder} holds other images than the demo's: remove the folder or give another data root")
        if all((folder / path).exists() for path in jobs):
            return folder
    pixels = hashlib.sha256()
    with staged_folder(folder) as temporary, progress(f"drawing {FOLDER}", len(jobs)) as bar:
        for path, job in jobs.items():
            picture = demo_picture(*job)
            pixels.update(picture.tobytes())
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(temporary / path)
            bar.update(1)
        info = {**identity, "train_counts": demo_counts(), "pixels_sha256": pixels.hexdigest()}
        write_json(temporary / "info.json", info)
    return folder


def font_path(font: str) -> Path:
    """The file of one of matplotlib's fonts."""
    import matplotlib

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{font}.ttf")
    if not path.is_file():
        raise UserError(f"the font {font!r} is missing: matplotlib should bring {path}, install it again")
    return path


@functools.cache
def covered(font: str) -> frozenset[int]:
    """Code points the font has a glyph for; any other would be drawn as an empty box."""
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(font_path(font))).get_charmap())


@functools.cache
def glyph(char: str, font: str) -> Image.Image:
    """The glyph in white on black, cropped to its ink."""
    if ord(char) not in covered(font):
        raise UserError(f"the font {font!r} has no glyph for {char!r} (U+{ord(char):04X})")
    # The basic layout: the other one depends on a library that Pillow may or may not find.
    face = ImageFont.truetype(str(font_path(font)), _POINTS, layout_engine=ImageFont.Layout.BASIC)
    left, top, right, bottom = face.getbbox(char)
    image = Image.new("L", (max(1, int(right - left) + 2), max(1, int(bottom - top) + 2)))
    ImageDraw.Draw(image).text((1 - left, 1 - top), char, fill=255, font=face)
    return image.crop(image.getbbox())


def draw(char: str, font: str, rng: np.random.Generator) -> np.ndarray:
    """One picture of the character, SIZE × SIZE × 3, unsigned bytes."""
    return np.rint(paint(pose(char, font, rng), rng) * 255).astype(np.uint8)


def pose(char: str, font: str, rng: np.random.Generator, strength: float = 1.0) -> np.ndarray:
    """How much of each pixel (0 to 1) the glyph covers when rotated, scaled, sheared and shifted at random.

    Strength 0 leaves it upright in the middle.
    """
    image = glyph(char, font)
    angle, shear, length, aspect, *shift = strength * rng.uniform(-1, 1, 6) * (0.35, 0.2, 3.5, 0.15, 2.5, 2.5)
    scale = 2 * (22.5 + length) / max(image.size)
    cos, sin = np.cos(angle), np.sin(angle)
    forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, shear], [0, 1]])
    forward = forward @ np.diag([scale * (1 + aspect) ** 0.5, scale / (1 + aspect) ** 0.5])
    inverse = np.linalg.inv(forward)  # Pillow wants the way from the canvas to the glyph
    offset = np.array(image.size) / 2 - inverse @ (SIZE + 2 * np.array(shift))
    rows = (*inverse[0], offset[0], *inverse[1], offset[1])
    canvas = image.transform((2 * SIZE, 2 * SIZE), Image.Transform.AFFINE, rows, Image.Resampling.BILINEAR, fillcolor=0)
    return np.asarray(canvas.reduce(2), dtype=np.float32) / 255


def paint(coverage: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The glyph in a random colour on a random, noisy background, SIZE × SIZE × 3, from 0 to 1."""
    contrast = 0.0
    while contrast < _MIN_CONTRAST:  # as different in brightness as reading needs
        paper, ink = rng.random((2, 3), dtype=np.float32)
        contrast = abs(float((paper - ink) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)))
    picture = _background(paper, rng) * (1 - coverage[..., None]) + ink * coverage[..., None]
    picture += rng.standard_normal(picture.shape, dtype=np.float32) * rng.uniform(0.01, 0.06)
    return np.clip(picture, 0, 1)


def _background(colour: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The colour, varied by a gradient, by stripes or by soft blotches."""
    kind = rng.integers(3)
    strength = rng.uniform(-0.2, 0.2, 3).astype(np.float32)
    if kind == 2:
        blotches = Image.fromarray(rng.integers(0, 256, (5, 5), dtype=np.uint8))
        pattern = np.asarray(blotches.resize((SIZE, SIZE), Image.Resampling.BICUBIC), dtype=np.float32) / 127.5 - 1
    else:
        direction, phase, waves = rng.uniform(0, 2 * np.pi), rng.uniform(0, 2 * np.pi), rng.uniform(1.5, 5)
        axis = np.linspace(-1, 1, SIZE, dtype=np.float32)
        along = np.float32(np.cos(direction)) * axis + np.float32(np.sin(direction)) * axis[:, None]
        pattern = along if kind == 0 else np.sin(along * np.float32(np.pi * waves) + np.float32(phase))
    return colour + pattern[..., None] * strength


def _rng(*key: int) -> np.random.Generator:
    return np.random.default_rng((DEMO_SEED, *key))
