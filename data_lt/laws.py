"""How many training images each class gets: pure functions of the classes, n_max, n_min and the shape."""

import math

import numpy as np

from pilot_tal.errors import PilotTalError, unknown_name

LAWS = {
    "profile": "Pareto, its deterministic median-rank profile (default)",
    "draw": "Pareto, a seeded random draw as in Places-LT and ImageNet-LT",
    "exponential": "geometric from n_max down to n_min, as in CIFAR-LT",
    "none": "n_max images in every class",
}


def pareto_counts(
    num_classes: int, n_max: int, n_min: int, shape: float = 6.0, draw_seed: int | None = None
) -> list[int]:
    """Pareto (Lomax) quotas, largest first, scaled so that the largest is exactly `n_max`.

    Args:
        num_classes: Number of classes C.
        n_max: Quota of the largest class.
        n_min: Lower bound of all quotas; on all but very small C it is met exactly.
        shape: Shape parameter of the law; the paper and ImageNet-LT use 6.
        draw_seed: None gives the law's profile at the median ranks p_k = (k - 0.3175) / (C + 0.365). A seed
            draws from `RandomState(seed).pareto` instead, whose stream NumPy has frozen: shape 1.35, seed 10
            and 5…4980 give Places-LT's published counts.
    """
    _check(num_classes, n_max, n_min, shape)
    span = n_max - n_min
    if draw_seed is not None:
        check_seed(draw_seed)
        x = np.random.RandomState(draw_seed).pareto(shape, num_classes)
        return sorted((n_min + math.floor(span * value) for value in x / x.max()), reverse=True)
    ranks = [(k - 0.3175) / (num_classes + 0.365) for k in range(1, num_classes + 1)]
    x = [p ** (-1 / shape) - 1 for p in ranks]
    # 1e-9 keeps a whole number whole where the last bit of the power differs between platforms.
    return [n_min + math.floor(span * value / x[0] + 1e-9) for value in x]


def exponential_counts(num_classes: int, n_max: int, n_min: int) -> list[int]:
    """CIFAR-LT's quotas n_k = n_max · (n_min / n_max)^(k / (C - 1)), k = 0…C-1, largest first."""
    _check(num_classes, n_max, n_min, 1.0)
    last = max(num_classes - 1, 1)
    return [math.floor(n_max * (n_min / n_max) ** (k / last) + 1e-9) for k in range(num_classes)]


def quotas(law: str, num_classes: int, n_max: int, n_min: int, shape: float = 6.0, seed: int = 0) -> list[int]:
    """The quotas of the law named `law` (see `LAWS`), largest first; only `draw` looks at the seed."""
    if law == "profile":
        return pareto_counts(num_classes, n_max, n_min, shape)
    if law == "draw":
        return pareto_counts(num_classes, n_max, n_min, shape, draw_seed=seed)
    if law == "exponential":
        return exponential_counts(num_classes, n_max, n_min)
    if law == "none":
        _check(num_classes, n_max, min(n_min, n_max), shape)
        return [n_max] * num_classes
    raise unknown_name("law", law, LAWS)


def check_seed(seed: int) -> None:
    """A seed is a whole number that NumPy's RandomState takes."""
    if not is_whole(seed) or not 0 <= seed < 2**32:
        raise PilotTalError(f"seed must be a whole number from 0 to 2^32 - 1, got {seed!r}")


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, Python's or NumPy's."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check(num_classes: int, n_max: int, n_min: int, shape: float) -> None:
    for name, value in (("num_classes", num_classes), ("n_max", n_max), ("n_min", n_min)):
        if not is_whole(value) or value < 1:
            raise PilotTalError(f"{name} must be a whole number of at least 1, got {value!r}")
    if n_min > n_max:
        raise PilotTalError(f"n_min must not exceed n_max, got n_min={n_min}, n_max={n_max}")
    if not (isinstance(shape, int | float | np.number) and math.isfinite(shape) and shape > 0):
        raise PilotTalError(f"shape must be a positive number, got {shape!r}")
