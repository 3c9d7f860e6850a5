"""The long-tailed set a run trains on: the manifest's entries, found on this disk."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_lt.cards import CARDS, DatasetCard
from data_lt.errors import UserError, command, unknown_name
from data_lt.files import given_path
from data_lt.laws import PARETO
from data_lt.manifest import Manifest, read_manifest
from data_lt.pools import Pool, find_layout, official_pools, scan, shortened
from data_lt.split import Recipe, split_pools

if TYPE_CHECKING:
    import pandas as pd

CLASS_CHOICES = ("all", "present")


class MissingImages(UserError):
    """Images that a manifest names are not on the disk; `missing` holds each as class/name."""

    def __init__(self, message: str, missing: list[str]):
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True)
class LongTailedSet:
    """A long-tailed training set and its balanced test set.

    `frame` has the columns `path` (relative to `root`), `label` (alphabetical class index) and `split`.
    `checksum` is the manifest's and does not depend on the layout on the disk.
    """

    name: str
    root: Path
    frame: "pd.DataFrame"
    class_names: list[str]
    checksum: str
    law: dict[str, Any]
    card: DatasetCard


def prepare(
    dataset: str,
    data_root: str | Path,
    *,
    seed: int | None = None,
    law: str | None = None,
    shape: float | None = None,
    n_max: int | None = None,
    n_min: int | None = None,
    rho: float | None = None,
    test_per_class: int | None = None,
    classes: str = "all",
    manifest: str | Path | None = None,
    folder: str | Path | None = None,
) -> LongTailedSet:
    """Gives the set `dataset` from the images below `data_root`, after checking that all of them are there.

    The named sets use the manifest that ships with the project unless an option asks for another split.

    Args:
        dataset: A name in `CARDS`.
        data_root: The folder of the images or a parent of it.
        seed: Seed of the split (and of the law `draw`).
        law: `profile`, `draw`, `exponential`, `none` or `natural`.
        shape: Shape of the Pareto law.
        n_max: Largest training class; where neither it nor the card gives one, the largest that fits.
        n_min: Smallest training class.
        rho: n_max / n_min, in place of n_min.
        test_per_class: Test images of each class.
        classes: `present` builds the set from the classes that are there; `all` wants every class.
        manifest: A manifest file to use instead; it already holds all of the above.
        folder: The folder of the images below the data root, if it has an unusual name.
    """
    card = CARDS[dataset]
    options = {"seed": seed, "law": law, "shape": shape, "n_max": n_max, "n_min": n_min, "rho": rho}
    options["test_per_class"] = test_per_class
    recipe = check_options(card, manifest, classes, **options)
    pool = find_pool(card, data_root, folder)
    if manifest is not None:
        chosen = read_manifest(manifest)
        if chosen.name != dataset:
            raise UserError(f"manifest {manifest} is of the dataset {chosen.name}, not of {dataset}")
    elif is_shipped(card, recipe, classes):
        chosen = read_manifest(card.name)
    else:
        chosen = build_manifest(card, pool, recipe, classes, data_root)
    return locate(chosen, card, pool, data_root)


def check_options(card: DatasetCard, manifest: str | Path | None, classes: str, **options: Any) -> Recipe:
    """The recipe that options ask for; what cannot go together is refused, before any image is looked for."""
    given = [name for name, value in options.items() if value is not None] + (["classes"] if classes != "all" else [])
    if manifest is not None and given:
        raise UserError(f"manifest {manifest} already fixes the split; leave out {', '.join(given)}")
    return make_recipe(card, **options)


def make_recipe(card: DatasetCard, **options: Any) -> Recipe:
    """The card's recipe with the given options (None means the card's own)."""
    given = {key: value for key, value in options.items() if value is not None}
    if {"rho", "n_min"} <= given.keys():
        raise UserError("rho = n_max / n_min sets n_min; give one of the two")
    base = Recipe(card.law, card.shape, card.n_max, card.n_min, card.test_per_class, card.seed)
    law = given.get("law", card.law)
    if law == "natural" and (sizes := given.keys() & {"n_max", "n_min", "shape"}):
        raise UserError(f"law=natural keeps every image that is not a test image; leave out {', '.join(sorted(sizes))}")
    if "shape" in given and law not in PARETO:
        raise UserError(f"shape is one of the Pareto laws {', '.join(PARETO)}, but law={law} is none; leave shape out")
    if law == "none":  # the largest balanced set, not the card's largest class
        base = dataclasses.replace(base, n_max=None)
    return dataclasses.replace(base, **given)


def known_classes(card: DatasetCard) -> frozenset[str] | None:
    """The names of the dataset's classes; None where every folder is one."""
    names = read_manifest(card.name).class_names if card.shipped else card.class_names
    return frozenset(names) or None


def is_shipped(card: DatasetCard, recipe: Recipe, classes: str) -> bool:
    """Whether the manifest that ships with the project is the split asked for."""
    if classes not in CLASS_CHOICES:
        raise unknown_name("choice of classes", classes, CLASS_CHOICES)
    return card.shipped and classes == "all" and recipe == make_recipe(card)


def find_pool(card: DatasetCard, data_root: str | Path, folder: str | Path | None = None) -> Pool:
    """Lists the dataset's images below the data root, making them first where the card knows how to."""
    data_root = given_path(data_root, "data_root")
    folder = None if folder is None else given_path(folder, "folder")
    known = known_classes(card)
    if card.make is not None and folder is None:
        card.make(data_root)
    if not data_root.is_dir():
        problem = "is not a folder" if data_root.exists() else "does not exist"
        raise UserError(
            f"the data root {data_root} {problem}: give the folder that holds the images{_how_to_get(card, data_root)}"
        )
    layout = find_layout(card, data_root, folder, known)
    if layout is None:
        usual = ", ".join(f"{name}/" for name in card.folders)
        places = f" in {usual} or the folder itself" if usual else ""
        raise UserError(
            f"no images of {card.title} below {data_root}: looked for images/<class>/, train/<class>/ with "
            f"test/<class>/ and <class>/{places}{_how_to_get(card, data_root)}"
        )
    return scan(layout, known)


def build_manifest(
    card: DatasetCard, pool: Pool, recipe: Recipe, classes: str = "all", data_root: str | Path = "."
) -> Manifest:
    """Builds the split from the images that were found."""
    if classes == "all":
        absent = sorted((known_classes(card) or set()) - set(pool.files))
        if absent:
            raise _missing_classes(card, pool, absent, data_root, [f"{label}/" for label in absent])
        found = sum(map(len, pool.files.values()))
        if not card.shipped and card.images not in (None, found):  # nothing else would notice that some are missing
            raise UserError(
                f"{pool.layout.root} holds {found:,} images, but {card.title} has {card.images:,}; remove the folder"
                f"{_how_to_get(card, data_root).replace('; get them', ' and get them anew')}"
            )
    names, test_names = official_pools(card, pool)
    return Manifest(card.name, split_pools(names, recipe, test_names))


def locate(manifest: Manifest, card: DatasetCard, pool: Pool, data_root: str | Path) -> LongTailedSet:
    """Finds every entry of a manifest among the images on the disk, or says which are missing."""
    split = manifest.split
    missing = [
        f"{label}/{name}"
        for label in manifest.class_names
        for name in (*split.train[label], *split.test[label])
        if name not in pool.files.get(label, ())
    ]
    if missing:
        absent = [label for label in manifest.class_names if label not in pool.files]
        if absent:
            raise _missing_classes(card, pool, absent, data_root, missing)
        raise MissingImages(
            f"{len(missing):,} of the {manifest.header['train'] + manifest.header['test']:,} images of "
            f"{card.title} are missing below {pool.layout.root}: {shortened(missing)}"
            f"{_how_to_get(card, data_root)}",
            missing,
        )
    frame = manifest.frame()
    frame["path"] = [pool.files[label][name] for label, name in (path.split("/", 1) for path in frame["path"])]
    return LongTailedSet(
        name=manifest.name,
        root=pool.layout.root,
        frame=frame,
        class_names=manifest.class_names,
        checksum=manifest.checksum,
        law=manifest.header,
        card=card,
    )


def _missing_classes(
    card: DatasetCard, pool: Pool, absent: list[str], data_root: str | Path, missing: list[str]
) -> MissingImages:
    return MissingImages(
        f"{len(absent)} of the {len(absent) + len(pool.files)} classes of {card.title} are missing below "
        f"{pool.layout.root}: {shortened(absent)}{_how_to_get(card, data_root)}; or choose classes=present "
        f"(--classes present) to build the set from the {len(pool.files)} classes that are there",
        missing,
    )


def _how_to_get(card: DatasetCard, data_root: str | Path) -> str:
    if card.url is None:
        return ""
    return f"; get them with: {command('build', card.name, '--download', '--data-root', data_root)}"
