"""What happens to an image before the ViT sees it."""

from collections.abc import Callable, Sequence

import pilot_tal._torchvision  # noqa: F401
from data_lt.errors import unknown_name

TRANSFORMS = ("pilot", "coda", "characters")


def build_transforms(
    name: str, size: int, statistics: tuple[Sequence[float], Sequence[float]] | None = None
) -> tuple[Callable, Callable]:
    """Training and test transform for images of `size` pixels; pixels are in [0, 1], then normalised if asked for.

    `pilot` is LAMDA-PILOT's for all learners, `coda` its own for CODA-Prompt on ImageNet-R, and `characters`
    keeps whole, unmirrored characters.
    """
    from torchvision import transforms as T
    from torchvision.transforms import InterpolationMode as Mode

    larger = int(256 / 224 * size)
    crop, middle = T.RandomResizedCrop, T.CenterCrop(size)
    known = {
        "pilot": ([crop(size, (0.05, 1.0)), T.RandomHorizontalFlip()], T.Resize(larger, Mode.BICUBIC)),
        "coda": ([crop(size), T.RandomHorizontalFlip()], T.Resize(larger)),
        "characters": ([crop(size, (0.7, 1.0))], T.Resize(size)),
    }
    if name not in TRANSFORMS:
        raise unknown_name("transform", name, TRANSFORMS)
    train, resize = known[name]
    after = [T.ToTensor()] if statistics is None else [T.ToTensor(), T.Normalize(*statistics)]
    return T.Compose([*train, *after]), T.Compose([resize, middle, *after])
