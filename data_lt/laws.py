"""Imbalance profiles: class counts as pure functions of the number of classes, n_max, n_min and the shape."""

import math
import numbers
from typing import Any

import numpy as np

from data_lt.errors import UserError, unknown_name

LAWS = {
    "profile": "Pareto, its deterministic median-rank profile",
    "draw": "Pareto, a seeded random draw as in Places-LT and ImageNet-LT",
    "density": "Pareto density on a grid up to its 99 % quantile, from n_max and the shape alone",
    "exponential": "geometric from n_max down to n_min, as in CIFAR-LT",
    "none": "n_max images in every class",
    "natural": "all images that are not test images",
}
_SIZES = {"n_max", "n_min", "rho"}
USES = {  # the options of each law
    "profile": {"shape", *_SIZES},
    "draw": {"shape", *_SIZES},
    "density": {"shape", "n_max"},
    "exponential": _SIZES,
    "none": {"n_max"},
    "natural": set(),
}
SHAPES = (0.1, 1000)  # below, the draw overflows; above, the profile no longer changes
MOST_CLASSES, MOST_IMAGES, LARGEST_SEED = 10**6, 10**9, 2**32 - 1


def pareto_counts(
    num_classes: int, n_max: int, n_min: int, shape: float = 6.0, draw_seed: int | None = None
) -> list[int]:
    """Pareto (Lomax) class counts, largest first, scaled so that the largest is exactly `n_max`.

    Args:
        num_classes: Number of classes C.
        n_max: Images of the largest class.
        n_min: Lower bound; met exactly except for very small C.
        shape: Shape parameter of the law; the paper and ImageNet-LT use 6.
        draw_seed: None gives the law's profile at the median ranks p_k = (k - 0.3175) / (C + 0.365). A seed
            draws from `RandomState(seed).pareto` instead, whose stream NumPy has frozen: shape 1.35, seed 10
            and 5…4980 give Places-LT's published counts.
    """
    _check(num_classes, n_max, n_min, shape)
    span = n_max - n_min
    if draw_seed is not None:
        check_number("seed", draw_seed, 0, LARGEST_SEED)
        drawn = np.random.RandomState(draw_seed).pareto(shape, num_classes)
        return sorted((n_min + math.floor(span * value) for value in drawn / drawn.max()), reverse=True)
    ranks = [(k - 0.3175) / (num_classes + 0.365) for k in range(1, num_classes + 1)]
    x = [p ** (-1 / shape) - 1 for p in ranks]
    # 1e-9 keeps a whole number whole where the last bit of the power differs between platforms.
    return [n_min + math.floor(span * value / x[0] + 1e-9) for value in x]


def density_counts(num_classes: int, n_max: int, shape: float = 6.0) -> list[int]:
    """Class counts ⌈n_max · x^-(shape + 1)⌉ for x on a grid from 1 to 100^(1 / shape), largest first.

    Shape 6, 101 classes and 750 images give the counts of a published list of Food101-LT (11,153 images).
    """
    _check(num_classes, n_max, 1, shape)
    step = (100 ** (1 / shape) - 1) / max(num_classes - 1, 1)
    # 1e-9 as above; a count below it is that of a density that vanishes
    return [max(1, math.ceil(n_max * (1 + k * step) ** -(shape + 1) - 1e-9)) for k in range(num_classes)]


def exponential_counts(num_classes: int, n_max: int, n_min: int) -> list[int]:
    """CIFAR-LT's class counts n_k = n_max · (n_min / n_max)^(k / (C - 1)), k = 0…C-1, largest first."""
    _check(num_classes, n_max, n_min, 1.0)
    last = max(num_classes - 1, 1)
    return [math.floor(n_max * (n_min / n_max) ** (k / last) + 1e-9) for k in range(num_classes)]


def class_counts(
    law: str, num_classes: int, n_max: int | None, n_min: int, shape: float = 6.0, seed: int = 0
) -> list[int]:
    """The class counts of a profile (see `LAWS`), largest first; only `draw` depends on the seed."""
    if law not in LAWS:
        raise unknown_name("law", law, LAWS)
    if law == "natural" or n_max is None:
        raise UserError(f"the class counts of law={law} need n_max, and law=natural takes them from the images")
    if law == "density":
        return density_counts(num_classes, n_max, shape)
    if law == "exponential":
        return exponential_counts(num_classes, n_max, n_min)
    if law == "none":
        _check(num_classes, n_max, min(n_min, n_max), shape)
        return [n_max] * num_classes
    return pareto_counts(num_classes, n_max, n_min, shape, draw_seed=seed if law == "draw" else None)


def smallest_class(n_max: int, rho: float) -> int:
    """n_min for an imbalance of ρ = n_max / n_min, rounded down as the LDAM paper's code does.

    Raises:
        UserError: ρ is below 1, or so large that the smallest class would be empty.
    """
    check_number("rho", rho, 1, n_max, whole=False)
    return math.floor(n_max / rho + 1e-9)


def check_number(name: str, value: Any, low: float, high: float, whole: bool = True) -> None:
    """Raises a UserError for anything but a number, Python's or NumPy's, from `low` to `high`."""
    kind: Any = numbers.Integral if whole else numbers.Real
    if not isinstance(value, kind) or isinstance(value, bool) or not low <= value <= high:
        number = "whole number" if whole else "number"
        raise UserError(f"{name} must be a {number} from {low:,} to {high:,}, got {value!r}")


def _check(num_classes: int, n_max: int, n_min: int, shape: float) -> None:
    check_number("num_classes", num_classes, 1, MOST_CLASSES)
    check_number("n_max", n_max, 1, MOST_IMAGES)
    check_number("n_min", n_min, 1, MOST_IMAGES)
    check_number("shape", shape, *SHAPES, whole=False)
    if n_min > n_max:
        raise UserError(f"n_min must not exceed n_max, got n_min={n_min}, n_max={n_max}")
