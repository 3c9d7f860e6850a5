"""The long-tailed set a run trains on: the manifest's entries, found on this disk."""

import dataclasses
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_lt.cards import CARDS, DatasetCard
from data_lt.errors import UserError, command, unknown_name
from data_lt.files import given_path
from data_lt.laws import USES, check_number
from data_lt.lists import pool_from_lists, read_names
from data_lt.manifest import Manifest, read_manifest
from data_lt.options import DataOptions
from data_lt.pictures import shortened
from data_lt.pools import Pool, file_id, find_layout, keeps_split, official_pools, same_file, scan
from data_lt.split import ALL, Recipe, split_pools

if TYPE_CHECKING:
    import pandas as pd

OWN = "folder_lt"
EVERY, PRESENT = ("all",), ("present",)
PROFILE_OPTIONS = ("law", "shape", "n_max", "n_min", "rho")


class MissingImages(UserError):
    """Images that a manifest names are not on the disk; `missing` holds each as class/name."""

    def __init__(self, message: str, missing: list[str]):
        super().__init__(message)
        self.missing = missing


@dataclass(frozen=True)
class LongTailedSet:
    """A long-tailed training set and its test set.

    `frame` has the columns `path` (relative to `root`), `label` (alphabetical class index) and `split`.
    `checksum` is the manifest's and does not depend on the layout on the disk.
    """

    name: str
    title: str
    root: Path
    frame: "pd.DataFrame"
    class_names: list[str]
    checksum: str
    law: dict[str, Any]
    card: DatasetCard
    notes: tuple[str, ...] = ()


def prepare(dataset: str, data_root: str | Path, options: DataOptions | None = None, **given: Any) -> LongTailedSet:
    """Finds the images of a dataset below `data_root` and checks that all of them are there.

    The named sets use the manifest that ships with the project unless an option asks for another split. The training
    and test folders of an own dataset (`folder_lt`) are kept as they are, unless `merge` is true.

    Args:
        dataset: A name in `CARDS`.
        data_root: The folder of the images or a parent of it.
        options: The dataset's options.
        **given: The same by name, in place of `options`.
    """
    return find_set(CARDS[dataset], data_root, DataOptions.of(**given) if options is None else options)[0]


def find_set(card: DatasetCard, data_root: str | Path, options: DataOptions) -> tuple[LongTailedSet, Manifest]:
    """The set that `prepare` returns, and its manifest."""
    make_recipe(card, options)  # refuses what cannot go together before any image is looked for
    chosen = None
    if options.manifest is not None:
        chosen = read_manifest(options.manifest)
        if chosen.name != card.name:
            raise UserError(f"manifest {options.manifest} is of the dataset {chosen.name}, not of {card.name}")
    elif is_shipped(card, options):
        chosen = read_manifest(card.name)
    pool = find_pool(card, data_root, options, chosen)
    notes: tuple[str, ...] = ()
    if options.merge and pool.is_split and card.classes is None:
        both = " and ".join(f"{part}/" for part in pool.parts)
        notes = (f"merge=true: {both} below {pool.root} are one pool, from which the test images are drawn.",)
        print(*notes, file=sys.stderr, flush=True)
    manifest = chosen or build_manifest(card, pool, options, data_root)
    frame = manifest.frame()
    frame["path"] = _locate(manifest, card, pool, data_root)
    name, title = _dataset_name(card, pool, options)
    about = (manifest.class_names, manifest.checksum, manifest.header)
    return LongTailedSet(name, title, pool.root, frame, *about, card, notes), manifest


def manifest_from_lists(
    train_list: str | Path,
    test_list: str | Path | None,
    data_root: str | Path,
    dataset: str = OWN,
    **given: Any,
) -> Manifest:
    """The manifest of the images that lists name, relative to `data_root`; `given` are further dataset options."""
    options = DataOptions.of(train_list=train_list, test_list=test_list, **given)
    card = CARDS[dataset]
    return build_manifest(card, find_pool(card, data_root, options), options, data_root)


def _dataset_name(card: DatasetCard, pool: Pool, options: DataOptions) -> tuple[str, str]:
    """The name of a dataset in files and its title in tables and plots.

    An own dataset (`folder_lt`) has those of the option `name`, or of its folder.
    """
    title = options.name or (Path(os.path.abspath(pool.root)).name if card.name == OWN else "")
    name = re.sub(r"\W+", "_", title.lower()).strip("_")[:40]
    if not name or (options.name is None and name in CARDS):
        return card.name, card.title
    return name, title


def make_recipe(card: DatasetCard, options: DataOptions | None = None, split: bool = False) -> Recipe:
    """The card's recipe with the given options.

    Args:
        card: The dataset.
        options: None, or an option that is None, means the card's own.
        split: Folders or lists separate training and test images: all of them are used unless the options
            or the card ask for an imbalance profile.
    """
    options = options or DataOptions()
    if options.name is not None and (card.classes is not None or options.name.lower() in CARDS):
        raise UserError(f"name={options.name} is for an own dataset (folder_lt), and no name of another; leave it out")
    given = {key: getattr(options, key) for key in (*PROFILE_OPTIONS, "test_per_class")}
    given = {key: value for key, value in {**given, "seed": options.split_seed}.items() if value is not None}
    if {"rho", "n_min"} <= given.keys():
        raise UserError("rho = n_max / n_min sets n_min; give one of the two")
    base = Recipe(card.law, card.shape, card.n_max, card.n_min, card.test_per_class, card.seed)
    if split and (card.n_max is None or options.train_list is not None):
        base = dataclasses.replace(base, test_per_class=ALL)
        if not given.keys() & set(PROFILE_OPTIONS):
            base = dataclasses.replace(base, law="natural")
    law = given.get("law", base.law)
    if unused := ", ".join(sorted(given.keys() & set(PROFILE_OPTIONS) - USES.get(law, set()) - {"law"})):
        raise UserError(f"law={law} does not use {unused}; leave out {unused}")
    if law == "none":  # the largest balanced set, not the card's largest class
        base = dataclasses.replace(base, n_max=None)
    return dataclasses.replace(base, **given)


def known_classes(card: DatasetCard) -> frozenset[str] | None:
    """The names of the dataset's classes; None where every folder is one."""
    names = read_manifest(card.name).class_names if card.shipped else card.class_names
    return frozenset(names) or None


def is_shipped(card: DatasetCard, options: DataOptions) -> bool:
    """Whether the manifest that ships with the project is the split asked for."""
    same = options.classes == EVERY and options.train_list is None
    return card.shipped and same and make_recipe(card, options) == make_recipe(card)


def find_pool(
    card: DatasetCard, data_root: str | Path, options: DataOptions | None = None, manifest: Manifest | None = None
) -> Pool:
    """Lists the dataset's images below the data root, making them first where the card knows how to.

    Args:
        card: The dataset.
        data_root: The folder of the images or a parent of it.
        options: Lists, folder and classes are used.
        manifest: The split that will be looked for; where it holds whole paths, no folder is listed.
    """
    options = options or DataOptions()
    data_root = given_path(data_root, "data_root")
    folder = None if options.folder is None else given_path(options.folder, "folder")
    known = known_classes(card)
    listed = options.train_list is not None or (manifest is not None and manifest.paths)
    if card.make is not None and folder is None and not listed:
        card.make(data_root)
    if not data_root.is_dir():
        problem = "is not a folder" if data_root.exists() else "does not exist"
        raise UserError(
            f"the data root {data_root} {problem}: give the folder that holds the images{_how_to_get(card, data_root)}"
        )
    if listed:
        return _listed_pool(card, data_root / (folder or ""), options, manifest)
    if folder is not None and not (data_root / folder).is_dir():
        raise UserError(f"the folder {data_root / folder} does not exist; folder is relative to the data root")
    below = (*card.folders, card.name, "") if folder is None else (folder,)
    pool = find_layout([data_root / name for name in below], known)
    if pool is None:
        usual = ", ".join(f"{name}/" for name in card.folders)
        places = f" in {usual} or the folder itself" if usual else ""
        raise UserError(
            f"no images of {card.title} below {data_root}: looked for images/<class>/, train/<class>/ with "
            f"test/<class>/ (or val/, validation/) and <class>/{places}{_how_to_get(card, data_root)}"
        )
    return _chosen(card, scan(pool, known), options)


def _listed_pool(card: DatasetCard, root: Path, options: DataOptions, manifest: Manifest | None) -> Pool:
    if options.train_list is not None:
        return _chosen(card, pool_from_lists(root, options.train_list, options.test_list, options.class_names), options)
    pool = Pool(root, {})
    seen: dict[tuple[int, int], str] = {}
    for label, _, name in manifest.rows() if manifest is not None else ():
        if (found := file_id(root / name)) is not None:
            if (first := seen.setdefault(found, name)) != name:
                raise same_file(root, first, name)
            pool.files.setdefault(label, {})[name] = name
    return pool


def _chosen(card: DatasetCard, pool: Pool, options: DataOptions) -> Pool:
    """The pool with the classes that are asked for."""
    chosen = options.classes
    if chosen in (EVERY, PRESENT):
        return pool
    known = sorted(known_classes(card) or pool.files)
    if len(chosen) == 1 and chosen[0].isdecimal():
        check_number("classes", int(chosen[0]), 1, len(known))
        chosen = tuple(known[: int(chosen[0])])
    elif len(chosen) == 1 and chosen[0] not in known and given_path(chosen[0], "classes").is_file():
        chosen = tuple(read_names(chosen[0], "classes"))
    for name in chosen:
        if name not in known:
            kinds = "classes takes all, present, a number, names, or a file of names"
            raise UserError(f"{unknown_name('class', name, known)}; {kinds}")
        if chosen.count(name) > 1:
            raise UserError(f"classes has the class {name!r} twice; write it once")
        if name not in pool.files:
            raise UserError(f"class {name!r} is not below {pool.root}; leave it out or add its images")
    if pool.lists is not None:
        train, test = ({k: side[k] for k in chosen if k in side} for side in pool.lists)
        pool = dataclasses.replace(pool, lists=(train, test))
    return dataclasses.replace(pool, files={k: pool.files[k] for k in chosen})


def build_manifest(
    card: DatasetCard, pool: Pool, options: DataOptions | None = None, data_root: str | Path = "."
) -> Manifest:
    """Builds the split from the images that were found."""
    options = options or DataOptions()
    if options.classes == EVERY and pool.lists is None:
        absent = sorted((known_classes(card) or set()) - set(pool.files))
        if absent:
            raise _missing_classes(card, pool, absent, data_root, [f"{label}/" for label in absent])
        found = sum(map(len, pool.files.values()))
        if not card.shipped and card.images not in (None, found):  # nothing else would notice that some are missing
            raise UserError(
                f"{pool.root} holds {found:,} images, but {card.title} has {card.images:,}; remove the folder"
                f"{_how_to_get(card, data_root)}"
            )
    names, test_names = official_pools(card, pool, options.merge)
    recipe = make_recipe(card, options, keeps_split(card, pool, options.merge))
    return Manifest(card.name, split_pools(names, recipe, test_names), paths=pool.lists is not None)


def _locate(manifest: Manifest, card: DatasetCard, pool: Pool, data_root: str | Path) -> list[str]:
    """The path of every entry of a manifest, in the order of its rows.

    Raises:
        MissingImages: some are not on the disk.
    """
    rows = list(manifest.rows())
    missing = [f"{label}/{name}" for label, _, name in rows if name not in pool.files.get(label, ())]
    if absent := [label for label in manifest.class_names if label not in pool.files]:
        raise _missing_classes(card, pool, absent, data_root, missing)
    if missing:
        raise MissingImages(
            f"{len(missing):,} of the {len(rows):,} images of {card.title} are missing below {pool.root}: "
            f"{shortened(missing)}{_how_to_get(card, data_root)}",
            missing,
        )
    return [pool.files[label][name] for label, _, name in rows]


def _missing_classes(
    card: DatasetCard, pool: Pool, absent: list[str], data_root: str | Path, missing: list[str]
) -> MissingImages:
    return MissingImages(
        f"{len(absent)} of the {len(absent) + len(pool.files)} classes of {card.title} are missing below "
        f"{pool.root}: {shortened(absent)}{_how_to_get(card, data_root)}; or choose classes=present "
        f"(--classes present) to build the set from the {len(pool.files)} classes that are there",
        missing,
    )


def _how_to_get(card: DatasetCard, data_root: str | Path) -> str:
    if card.url is None:
        return ""
    return f"; get them with: {command('build', card.name, '--download', '--data-root', data_root)}"
