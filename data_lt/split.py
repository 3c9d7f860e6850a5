"""From pools of file names to class counts, a long-tailed training set and a test set.

Pure functions of names, numbers and a seed. Random choices come from SHA-256 and `random.Random.random`, whose stream
Python documents as stable: the result depends neither on the platform nor on the order in which names are given.
"""

import bisect
import hashlib
import math
import numbers
import operator
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from data_lt.errors import UserError, unknown_name

LAWS = {  # the imbalance profiles and the options of each
    "profile": {"shape", "n_max", "n_min", "rho"},  # Pareto, its deterministic median-rank profile
    "draw": {"shape", "n_max", "n_min", "rho"},  # Pareto, a seeded random draw as in Places-LT and ImageNet-LT
    "density": {"shape", "n_max"},  # Pareto density on a grid up to its 99 % quantile
    "exponential": {"n_max", "n_min", "rho"},  # geometric from n_max down to n_min, as in CIFAR-LT
    "none": {"n_max"},  # n_max images in every class
    "natural": set(),  # all images that are not test images
}
SHAPES = (0.1, 1000)  # below, the draw overflows; above, the profile no longer changes
MOST_CLASSES, MOST_IMAGES, LARGEST_SEED = 10**6, 10**9, 2**32 - 1
ALL = "all"  # every image of the test folder or list
_EPS = 1e-9  # keeps a whole number whole where the last bit of a power differs between platforms


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
    x = [((k - 0.3175) / (num_classes + 0.365)) ** (-1 / shape) - 1 for k in range(1, num_classes + 1)]
    return [n_min + math.floor(span * value / x[0] + _EPS) for value in x]


def density_counts(num_classes: int, n_max: int, shape: float = 6.0) -> list[int]:
    """Class counts ⌈n_max · x^-(shape + 1)⌉ for x on a grid from 1 to 100^(1 / shape), largest first.

    Shape 6, 101 classes and 750 images give the counts of a published list of Food101-LT (11,153 images).
    """
    _check(num_classes, n_max, 1, shape)
    step = (100 ** (1 / shape) - 1) / max(num_classes - 1, 1)
    return [max(1, math.ceil(n_max * (1 + k * step) ** -(shape + 1) - _EPS)) for k in range(num_classes)]


def exponential_counts(num_classes: int, n_max: int, n_min: int) -> list[int]:
    """CIFAR-LT's class counts n_k = n_max · (n_min / n_max)^(k / (C - 1)), k = 0…C-1, largest first."""
    _check(num_classes, n_max, n_min, 1.0)
    last = max(num_classes - 1, 1)
    return [math.floor(n_max * (n_min / n_max) ** (k / last) + _EPS) for k in range(num_classes)]


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
    """n_min for an imbalance of ρ = n_max / n_min (from 1 to n_max), rounded down as the LDAM paper's code does."""
    check_number("rho", rho, 1, n_max, whole=False)
    return math.floor(n_max / rho + _EPS)


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


@dataclass(frozen=True)
class Recipe:
    """Everything a split depends on besides the images.

    `n_max=None` means the largest that the pools allow. `rho`, the imbalance n_max / n_min, sets `n_min` and is gone
    as soon as n_max is known. With the laws `natural` and `density`, n_min is what comes out.
    """

    law: str = "profile"
    shape: float = 6.0
    n_max: int | None = None
    n_min: int = 2
    test_per_class: int | str = 10  # or ALL
    seed: int = 0
    rho: float | None = None

    def __post_init__(self):
        check_number("seed", self.seed, 0, LARGEST_SEED)
        if self.test_per_class != ALL:
            check_number("test_per_class", self.test_per_class, 1, MOST_IMAGES)
        values = asdict(self)
        if self.rho is not None:
            n_min = smallest_class(MOST_IMAGES if self.n_max is None else self.n_max, self.rho)
            values |= {} if self.n_max is None else {"n_min": n_min, "rho": None}
        if self.law == "density" and self.n_max is not None:
            values["n_min"] = density_counts(2, self.n_max, self.shape)[-1]
        law, n_min = "none" if self.law == "natural" else self.law, values["n_min"]
        class_counts(law, 1, n_min if self.n_max is None else self.n_max, n_min, self.shape)  # checks them
        values["shape"] = float(self.shape)
        for name, value in values.items():  # one spelling of a number, Python's: equal recipes give equal manifests
            object.__setattr__(self, name, int(value) if isinstance(value, numbers.Integral) else value)

    @property
    def header(self) -> dict[str, Any]:
        """What a manifest says of it; `rho` stands there as n_min."""
        return {name: value for name, value in asdict(self).items() if name != "rho"}

    def class_counts(self, num_classes: int) -> list[int]:
        """Training images per class, largest first."""
        return class_counts(self.law, num_classes, self.n_max, self.n_min, self.shape, self.seed)


@dataclass(frozen=True)
class Split:
    """File names by class (classes and names sorted), and the size of each class's pool."""

    recipe: Recipe
    train: dict[str, list[str]]
    test: dict[str, list[str]]
    pool: dict[str, int]


def split_pools(
    pools: Mapping[str, Iterable[str]], recipe: Recipe, test_pools: Mapping[str, Iterable[str]] | None = None
) -> Split:
    """Draws the test images, assigns a count to every class and draws the training images.

    Pools are file names by class. Test images come from `test_pools` if given, else out of `pools`.
    """
    if not pools:
        raise UserError("a long-tailed set needs at least one class, got none")
    if recipe.test_per_class == ALL and test_pools is None:
        raise UserError("test_per_class=all needs a test folder or a test list; give a number")
    names = {label: set(pools[label]) for label in sorted(pools)}
    held = names if test_pools is None else {label: set(test_pools.get(label, ())) for label in names}
    test = {}
    for label in names:
        wanted = max(1, len(held[label])) if recipe.test_per_class == ALL else int(recipe.test_per_class)
        if len(held[label]) < wanted:
            raise UserError(
                f"class {label!r} has {len(held[label])} images to test on, fewer than test_per_class={wanted}; "
                "add images, ask for fewer, or leave the class out"
            )
        test[label] = _sample(held[label], wanted, recipe.seed, "test", label)
    rest = {label: names[label] - set(test[label]) for label in names}
    recipe, assigned = _assign_counts(recipe, {label: len(rest[label]) for label in names})
    train = {label: _sample(rest[label], assigned[label], recipe.seed, "train", label) for label in names}
    return Split(recipe, train, test, pool={label: len(names[label] | held[label]) for label in names})


def _assign_counts(recipe: Recipe, sizes: Mapping[str, int]) -> tuple[Recipe, Mapping[str, int]]:
    """The recipe with its n_max, and the training images of each class, given how many it has."""
    best = largest_n_max(sizes, recipe)
    if best is None:
        label = min(sizes, key=lambda key: (sizes[key], key))
        raise UserError(
            f"too few images to train on: beside its test images, class {label!r} has {sizes[label]} and the largest "
            f"class has {max(sizes.values())}; add images, or change n_min, rho or test_per_class"
        )
    if recipe.law == "natural":
        return replace(recipe, n_max=best, n_min=min(sizes.values())), sizes
    if recipe.n_max is not None and recipe.n_max > best:
        raise UserError(
            f"n_max={recipe.n_max} needs more images than the classes have beside their test images; "
            f"the largest n_max that fits is {best}"
        )
    recipe = replace(recipe, n_max=recipe.n_max or best)
    return recipe, assign(recipe.class_counts(len(sizes)), sizes, recipe.seed)


def assign(counts: list[int], pools: Mapping[str, int], seed: int) -> dict[str, int]:
    """Assigns each count, from the largest, to a random class among those left whose pool is large enough.

    This succeeds exactly when no sorted count exceeds the sorted pool of the same rank.
    """
    ranked = sorted(pools, key=lambda label: (-pools[label], label))
    stream = random.Random(seed)
    eligible: list[str] = []
    reached = 0
    result = {}
    for count in sorted(counts, reverse=True):
        while reached < len(ranked) and pools[ranked[reached]] >= count:
            eligible.append(ranked[reached])
            reached += 1
        result[eligible.pop(int(stream.random() * len(eligible)))] = count
    return result


def largest_n_max(pools: Mapping[str, int], recipe: Recipe) -> int | None:
    """The largest n_max whose class counts these pools can meet, or None where even the smallest does not fit."""
    ranked = sorted(pools.values(), reverse=True)
    if recipe.law == "natural":
        return ranked[0] if ranked[-1] else None

    def exceeds(n_max: int) -> bool:
        wanted = replace(recipe, n_max=n_max).class_counts(len(ranked))
        return any(map(operator.gt, wanted, ranked))

    least = recipe.n_min if recipe.rho is None else math.ceil(recipe.rho)
    tried = range(1 if recipe.law in ("none", "density") else least, ranked[0] + 1)
    fitting = bisect.bisect_left(tried, True, key=exceeds)  # every law's counts grow with n_max
    return tried[fitting - 1] if fitting else None


def _sample(names: Iterable[str], count: int, *key: Any) -> list[str]:
    """`count` of `names`, sorted, by a seeded uniform choice: those whose hash with the key is smallest."""
    prefix = "".join(f"{part}\0" for part in key)
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"{prefix}{name}".encode()).digest())
    return sorted(ranked[:count])
