"""From pools of file names to a long-tailed training set and a balanced test set.

Everything here is a pure function of names and a seed. The random choices come from SHA-256 and from
`random.Random.random`, whose stream Python documents as stable, so the result is the same on every platform
and with every NumPy, and the order in which names are given does not matter.
"""

import dataclasses
import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import filterfalse, pairwise
from typing import Any

from data_lt.errors import UserError
from data_lt.laws import MOST_IMAGES, check_count, check_seed, is_whole, quotas, smallest_class

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
        check_seed(self.seed)
        if self.test_per_class != ALL:
            check_count("test_per_class", self.test_per_class)
        if self.rho is not None:
            if self.law in ("none", "natural", "density"):
                raise UserError(f"law={self.law} does not use rho; leave rho out")
            n_min = smallest_class(MOST_IMAGES if self.n_max is None else self.n_max, self.rho)
            if self.n_max is not None:
                object.__setattr__(self, "n_min", n_min)
                object.__setattr__(self, "rho", None)
        if self.law == "density" and self.n_max is not None:
            object.__setattr__(self, "n_min", quotas("density", 2, self.n_max, 1, self.shape)[-1])
        law = "none" if self.law == "natural" else self.law
        quotas(law, 1, self.n_min if self.n_max is None else self.n_max, self.n_min, self.shape)
        # One spelling of a number (6 and 6.0, NumPy's and Python's): equal recipes give equal manifests.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if is_whole(value) or field.name == "shape":
                object.__setattr__(self, field.name, float(value) if field.name == "shape" else int(value))

    @property
    def header(self) -> dict[str, Any]:
        """What a manifest says of it; `rho` stands there as n_min."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "rho"}

    def quotas(self, num_classes: int) -> list[int]:
        """Training images per class, largest first."""
        return quotas(self.law, num_classes, self.n_max, self.n_min, self.shape, self.seed)


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
    classes = sorted(pools)
    names = {label: _unique(label, pools[label]) for label in classes}
    held = names if test_pools is None else {k: _unique(k, test_pools.get(k, ())) for k in classes}
    if recipe.test_per_class == ALL and test_pools is None:
        raise UserError("test_per_class=all needs a test folder or a test list; give a number")
    test, rest = {}, {}
    for label in classes:
        wanted = len(held[label]) if recipe.test_per_class == ALL else int(recipe.test_per_class)
        if not held[label] or len(held[label]) < wanted:
            raise UserError(
                f"class {label!r} has {len(held[label])} test images, fewer than test_per_class={max(wanted, 1)}; "
                "add images or leave the class out"
                if recipe.test_per_class == ALL
                else f"class {label!r} has {len(held[label])} images to test on, fewer than "
                f"test_per_class={recipe.test_per_class}; add images or ask for fewer"
            )
        test[label] = _sample(held[label], wanted, recipe.seed, "test", label)
        rest[label] = sorted(set(names[label]) - set(test[label]))
    sizes = {label: len(rest[label]) for label in classes}
    if recipe.law == "natural":
        recipe, assigned = _natural(sizes, recipe), sizes
    else:
        recipe = dataclasses.replace(recipe, n_max=_fit_n_max(sizes, recipe))
        assigned = assign(recipe.quotas(len(classes)), sizes, recipe.seed)
    return Split(
        recipe=recipe,
        train={k: sorted(_sample(rest[k], assigned[k], recipe.seed, "train", k)) for k in classes},
        test={k: sorted(test[k]) for k in classes},
        pool={k: len(set(names[k]) | set(held[k])) for k in classes},
    )


def problem_of(split: Split, paths: bool = False) -> str | None:
    """What contradicts the recipe, or itself, in a split that was read from a file; None if nothing does.

    Args:
        split: The split.
        paths: Images are named by paths, which may occur once in all classes together.
    """
    sides: dict[str, str] = {}
    for label in sorted(split.train):
        train, test = split.train[label], split.test[label]
        names = [*train, *test]
        if paths:
            plain = [part for name in names for part in name.split("/")]
            wrong = next((name for name in names if sides.setdefault(name, label) != label), None)
            if wrong is not None:
                return f"the image {wrong[:60]!r} is in the classes {sides[wrong]!r} and {label!r}"
            wrong = label if not label.strip() or not label.isprintable() else None
        else:
            plain = [label, *(name.removeprefix("train/").removeprefix("test/") for name in names)]  # as in `Pool`
            wrong = None
        if (wrong := next(filterfalse(_is_file_name, plain), wrong)) is not None:
            return f"{wrong[:60]!r} cannot be the name of a class or an image"
        if not train or not test:
            return f"class {label!r} has no {'test' if train else 'training'} images"
        if twice := next((name for name, times in Counter(names).items() if times > 1), None):
            both = "both to train and to test on" if twice in train and twice in test else "twice"
            return f"class {label!r} has the image {twice!r} {both}"
        if split.recipe.test_per_class not in (ALL, len(test)):
            return f"class {label!r} has {len(test)} test images, not test_per_class={split.recipe.test_per_class}"
        if len(names) > split.pool[label]:
            return f"class {label!r} has {len(names)} images of a pool of {split.pool[label]}"
    counts = sorted(map(len, split.train.values()), reverse=True)
    recipe = split.recipe
    if recipe.law == "natural":
        follows = (recipe.n_max, recipe.n_min) == (counts[0], counts[-1])
    else:
        follows = recipe.n_max is not None and counts == recipe.quotas(len(counts))
    return None if follows else f"its numbers of training images are not those of law={recipe.law}"


def _is_file_name(name: str) -> bool:
    return name not in ("", ".", "..") and not any(letter in "/\\" or ord(letter) < 32 for letter in name)


def assign(sizes: list[int], pools: Mapping[str, int], seed: int) -> dict[str, int]:
    """Constrained random assignment of quotas to classes.

    Walks the quotas from the largest; each goes to a uniformly random class among those not yet assigned
    whose pool is large enough. This succeeds exactly when no sorted quota exceeds the sorted pool of the same
    rank.
    """
    if problem := misfit(sizes, pools):
        raise UserError(problem)
    wanted = sorted(sizes, reverse=True)
    ranked = sorted(pools, key=lambda label: (-pools[label], label))
    stream = random.Random(seed)
    eligible: list[str] = []
    reached = 0
    result = {}
    for quota in wanted:
        while reached < len(ranked) and pools[ranked[reached]] >= quota:
            eligible.append(ranked[reached])
            reached += 1
        result[eligible.pop(int(stream.random() * len(eligible)))] = quota
    return result


def misfit(sizes: list[int], pools: Mapping[str, int]) -> str | None:
    """A sentence naming the first rank at which the sorted quotas exceed the sorted pools, if any."""
    ranked = sorted(pools, key=lambda label: (-pools[label], label))
    for rank, (quota, label) in enumerate(zip(sorted(sizes, reverse=True), ranked, strict=True), start=1):
        if quota > pools[label]:
            return (
                f"no class can take the quota of rank {rank}: it asks for {quota} training images, but the "
                f"class of that rank by size, {label!r}, has {pools[label]} beside its test images"
            )
    return None


def largest_n_max(pools: Mapping[str, int], recipe: Recipe) -> int | None:
    """The largest n_max whose quotas these pools can meet, or None where even n_max = n_min does not fit."""
    ranked = sorted(pools.values(), reverse=True)

    def fits(n_max: int) -> bool:
        wanted = dataclasses.replace(recipe, n_max=n_max).quotas(len(ranked))
        return all(quota <= size for quota, size in zip(wanted, ranked, strict=True))

    least = recipe.n_min if recipe.rho is None else math.ceil(recipe.rho)
    low, high = (1 if recipe.law in ("none", "density") else least), ranked[0]
    if low > high or not fits(low):
        return None
    while low < high:  # every law's quotas grow with n_max, so what fits is an interval
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _natural(sizes: Mapping[str, int], recipe: Recipe) -> Recipe:
    """The recipe with the largest and smallest class that the images give."""
    label = min(sizes, key=lambda key: (sizes[key], key))
    if not sizes[label]:
        raise UserError(
            f"class {label!r} has no images to train on beside its test images; add images, or lower test_per_class"
        )
    return dataclasses.replace(recipe, n_max=max(sizes.values()), n_min=sizes[label])


def _fit_n_max(sizes: Mapping[str, int], recipe: Recipe) -> int:
    """The recipe's n_max if the pools can meet its quotas; the largest that fits where it names none."""
    if recipe.n_max is None:
        best = largest_n_max(sizes, recipe)
        if best is None and recipe.rho is not None:
            raise UserError(f"no n_max gives rho={recipe.rho:g} with these images; lower rho or test_per_class")
        if best is None:
            label = min(sizes, key=lambda key: (sizes[key], key))
            raise UserError(
                f"class {label!r} has {sizes[label]} images beside its {recipe.test_per_class} test images, "
                f"fewer than n_min={recipe.n_min}; add images, or lower n_min (raise rho) or test_per_class"
            )
        return best
    if problem := misfit(recipe.quotas(len(sizes)), sizes):
        best = largest_n_max(sizes, recipe)
        lower = "lower n_min (raise rho) or test_per_class"
        raise UserError(f"{problem}; {lower if best is None else f'the largest n_max that fits is {best}'}")
    return recipe.n_max


def _unique(label: str, names: Iterable[str]) -> list[str]:
    ordered = sorted(names)
    for first, second in pairwise(ordered):
        if first == second:
            raise UserError(f"class {label!r} lists {first!r} twice; a name may occur once in a class")
    return ordered


def _sample(names: list[str], count: int, *key: Any) -> list[str]:
    """`count` of `names` by a seeded uniform choice: those whose hash with the key is smallest."""
    prefix = hashlib.sha256("\0".join(map(str, key)).encode("utf-8") + b"\0")

    def rank(name: str) -> bytes:
        digest = prefix.copy()
        digest.update(name.encode("utf-8"))
        return digest.digest()

    return sorted(names, key=rank)[:count]
