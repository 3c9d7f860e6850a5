"""Small pictures of characters: one glyph in random pose and colour on a random background.

The fonts are those that matplotlib brings along. A picture depends on its character, font and random
generator alone, so any picture can be drawn again without the others.
"""

import functools
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from data_lt.errors import UserError

SIZE = 32  # pixels a side
_POINTS = 56  # glyphs are drawn near their final size on a canvas of twice SIZE, then halved: smooth edges
_MIN_CONTRAST = 0.35  # least difference in brightness between the glyph's colour and the background's

# Two families of fonts that share nothing: whoever learns from the first is tested on the second.
TRAIN_FONTS = tuple(
    f"DejaVu{family}{style}"
    for family, styles in (
        ("Sans", ("", "-Bold", "-Oblique", "-BoldOblique")),
        ("SansMono", ("", "-Bold", "-Oblique", "-BoldOblique")),
        ("Serif", ("", "-Bold", "-Italic", "-BoldItalic")),
    )
    for style in styles
)
TEST_FONTS = ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta")


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
def _truetype(font: str) -> ImageFont.FreeTypeFont:
    # The basic layout: the other one depends on a library that Pillow may or may not find.
    return ImageFont.truetype(str(font_path(font)), _POINTS, layout_engine=ImageFont.Layout.BASIC)


@functools.cache
def glyph(char: str, font: str) -> Image.Image:
    """The glyph in white on black, cropped to its ink."""
    if ord(char) not in covered(font):
        raise UserError(f"the font {font!r} has no glyph for {char!r} (U+{ord(char):04X})")
    left, top, right, bottom = _truetype(font).getbbox(char)
    image = Image.new("L", (max(1, int(right - left) + 2), max(1, int(bottom - top) + 2)))
    ImageDraw.Draw(image).text((1 - left, 1 - top), char, fill=255, font=_truetype(font))
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
    paper, ink = _colours(rng)
    picture = _background(paper, rng) * (1 - coverage[..., None]) + ink * coverage[..., None]
    picture += rng.standard_normal(picture.shape, dtype=np.float32) * rng.uniform(0.01, 0.06)
    return np.clip(picture, 0, 1)


def _colours(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A colour for the background and one for the glyph, as different in brightness as reading needs."""
    while True:
        paper, ink = rng.random((2, 3), dtype=np.float32)
        if abs(float((paper - ink) @ np.array([0.299, 0.587, 0.114], dtype=np.float32))) >= _MIN_CONTRAST:
            return paper, ink


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
