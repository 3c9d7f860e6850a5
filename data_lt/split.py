"""From pools of file names to a long-tailed training set and a balanced test set.

Everything here is a pure function of names and a seed. The random choices come from SHA-256 and from
`random.Random.random`, whose stream Python documents as stable, so the result is the same on every platform
and with every NumPy, and the order in which names are given does not matter.
"""

import dataclasses
import hashlib
import math
import numbers
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from data_lt.errors import UserError
from data_lt.laws import LARGEST_SEED, MOST_IMAGES, check_number, class_counts, smallest_class

ALL = "all"


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
    test_per_class: int | str = 10  # or "all": every image of the test folder or list
    seed: int = 0
    rho: float | None = None

    def __post_init__(self):
        check_number("seed", self.seed, 0, LARGEST_SEED)
        if self.test_per_class != ALL:
            check_number("test_per_class", self.test_per_class, 1, MOST_IMAGES)
        if self.rho is not None:
            n_min = smallest_class(MOST_IMAGES if self.n_max is None else self.n_max, self.rho)
            if self.n_max is not None:
                object.__setattr__(self, "n_min", n_min)
                object.__setattr__(self, "rho", None)
        if self.law == "density" and self.n_max is not None:
            object.__setattr__(self, "n_min", class_counts("density", 2, self.n_max, 1, self.shape)[-1])
        law = "none" if self.law == "natural" else self.law
        class_counts(law, 1, self.n_min if self.n_max is None else self.n_max, self.n_min, self.shape)  # checks them
        # One spelling of a number (6 and 6.0, NumPy's and Python's): equal recipes give equal manifests.
        object.__setattr__(self, "shape", float(self.shape))
        for name in ("n_max", "n_min", "test_per_class", "seed"):
            if isinstance(value := getattr(self, name), numbers.Integral):
                object.__setattr__(self, name, int(value))

    @property
    def header(self) -> dict[str, Any]:
        """What a manifest says of it; `rho` stands there as n_min."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "rho"}

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
    pools: Mapping[str, Iterable[str]],
    recipe: Recipe,
    test_pools: Mapping[str, Iterable[str]] | None = None,
) -> Split:
    """Draws the test images, assigns a count to every class and draws the training images.

    Args:
        pools: File names by class.
        recipe: Law, sizes and seed.
        test_pools: Where test images have lists of their own; else they are taken out of `pools` first.
    """
    if not pools:
        raise UserError("a long-tailed set needs at least one class, got none")
    if recipe.test_per_class == ALL and test_pools is None:
        raise UserError("test_per_class=all needs a test folder or a test list; give a number")
    classes = sorted(pools)
    names = {label: set(pools[label]) for label in classes}
    held = names if test_pools is None else {label: set(test_pools.get(label, ())) for label in classes}
    test, rest = {}, {}
    for label in classes:
        wanted = max(1, len(held[label])) if recipe.test_per_class == ALL else int(recipe.test_per_class)
        if len(held[label]) < wanted:
            raise UserError(
                f"class {label!r} has {len(held[label])} images to test on, fewer than test_per_class={wanted}; "
                "add images, ask for fewer, or leave the class out"
            )
        test[label] = _sample(held[label], wanted, recipe.seed, "test", label)
        rest[label] = names[label] - set(test[label])
    recipe, assigned = _assign_counts(recipe, {label: len(rest[label]) for label in classes})
    return Split(
        recipe=recipe,
        train={k: sorted(_sample(rest[k], assigned[k], recipe.seed, "train", k)) for k in classes},
        test={k: sorted(test[k]) for k in classes},
        pool={k: len(names[k] | held[k]) for k in classes},
    )


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
        return dataclasses.replace(recipe, n_max=best, n_min=min(sizes.values())), sizes
    if recipe.n_max is not None and recipe.n_max > best:
        raise UserError(
            f"n_max={recipe.n_max} needs more images than the classes have beside their test images; "
            f"the largest n_max that fits is {best}"
        )
    recipe = dataclasses.replace(recipe, n_max=recipe.n_max or best)
    return recipe, assign(recipe.class_counts(len(sizes)), sizes, recipe.seed)


def assign(counts: list[int], pools: Mapping[str, int], seed: int) -> dict[str, int]:
    """Constrained random assignment of counts to classes.

    Walks the counts from the largest; each goes to a uniformly random class among those not yet assigned
    whose pool is large enough. This succeeds exactly when no sorted count exceeds the sorted pool of the same
    rank.
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

    def fits(n_max: int) -> bool:
        wanted = dataclasses.replace(recipe, n_max=n_max).class_counts(len(ranked))
        return all(count <= size for count, size in zip(wanted, ranked, strict=True))

    least = recipe.n_min if recipe.rho is None else math.ceil(recipe.rho)
    low, high = (1 if recipe.law in ("none", "density") else least), ranked[0]
    if low > high or not fits(low):
        return None
    while low < high:  # every law's counts grow with n_max, so what fits is an interval
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _sample(names: Iterable[str], count: int, *key: Any) -> list[str]:
    """`count` of `names` by a seeded uniform choice: those whose hash with the key is smallest."""
    prefix = hashlib.sha256("\0".join(map(str, key)).encode("utf-8") + b"\0")

    def rank(name: str) -> bytes:
        digest = prefix.copy()
        digest.update(name.encode("utf-8"))
        return digest.digest()

    return sorted(names, key=rank)[:count]
