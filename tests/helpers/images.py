"""Small image folders."""

from pathlib import Path

import numpy as np
from PIL import Image


def make_images(root: Path, classes: int = 6, images: int = 9, size: tuple[int, int] = (36, 40)) -> Path:
    """Noise around a colour of the class; names with a space and a letter that is not ASCII."""
    generator = np.random.RandomState(0)
    for label in range(classes):
        folder = root / f"class {label} é"
        folder.mkdir(parents=True)
        colour = generator.uniform(40, 215, 3)
        for number in range(images):
            pixels = np.clip(colour + generator.normal(0, 25, (*size, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return root


def make_numbered_images(root: Path, classes: int, images: int) -> Path:
    """Images that carry their own number: red + 256 · green; blue rises from left to right by 5 a pixel."""
    for label in range(classes):
        folder = root / f"c{label}"
        folder.mkdir(parents=True)
        for place in range(images):
            number = label * images + place
            pixels = np.zeros((40, 40, 3), dtype=np.uint8)
            pixels[..., 0], pixels[..., 1] = number % 256, number // 256
            pixels[..., 2] = 5 * np.arange(40)
            Image.fromarray(pixels).save(folder / f"{place:02d}.png")
    return root
