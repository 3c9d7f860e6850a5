"""The long-tailed set a run trains on: images on this disk, split by a recipe or a manifest."""

import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_lt.cards import CARDS, DatasetCard
from data_lt.errors import UserError, command, unknown_name
from data_lt.files import given_path, read_names
from data_lt.manifest import Manifest, read_manifest, shipped_manifest
from data_lt.options import EVERY, PRESENT, DataOptions, is_shipped, make_recipe
from data_lt.pictures import shortened
from data_lt.pools import Pool, Seen, check_alone, file_id, official_pools, pool_from_folders, pool_from_lists
from data_lt.split import check_number, split_pools

if TYPE_CHECKING:
    import pandas as pd

OWN = "folder_lt"


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
    """Finds the images of a dataset (a name in `CARDS`) below `data_root` and checks that all of them are there.

    The named sets use the manifest that ships with the project unless an option asks for another split. The training
    and test folders of an own dataset (`folder_lt`) are kept as they are, unless `merge` is true. Options are given by
    name, or all as `options`.
    """
    return find_set(CARDS[dataset], data_root, DataOptions.of(**given) if options is None else options)[0]


def find_set(card: DatasetCard, data_root: str | Path, options: DataOptions) -> tuple[LongTailedSet, Manifest]:
    """The set that `prepare` returns, and its manifest."""
    make_recipe(card, options)  # refuses what cannot go together before any image is looked for
    manifest = None
    if options.manifest is not None:
        manifest = read_manifest(options.manifest)
        if manifest.name != card.name:
            raise UserError(f"manifest {options.manifest} is of the dataset {manifest.name}, not of {card.name}")
    elif is_shipped(card, options):
        manifest = shipped_manifest(card.name)
    pool = find_pool(card, data_root, options, manifest)
    notes: tuple[str, ...] = ()
    if options.merge and pool.is_split and card.classes is None:
        both = " and ".join(f"{part}/" for part in pool.parts)
        notes = (f"merge=true: {both} below {pool.root} are one pool, from which the test images are drawn.",)
        print(*notes, file=sys.stderr, flush=True)
    manifest = manifest or build_manifest(card, pool, options)
    if absent := [label for label in manifest.class_names if label not in pool.files]:
        raise _missing_classes(card, pool, absent)
    frame, rows = manifest.frame(), list(manifest.rows())
    if missing := [f"{label}/{name}" for label, _, name in rows if name not in pool.files[label]]:
        what = f"{len(missing):,} of the {len(rows):,} images of {card.title}"
        raise UserError(f"{what} are missing below {pool.root}: {shortened(missing)}{pool.remedy}")
    frame["path"] = [pool.files[label][name] for label, _, name in rows]
    title = options.name or (Path(os.path.abspath(pool.root)).name if card.name == OWN else "")
    name = re.sub(r"\W+", "_", title.lower()).strip("_")[:40]
    if not name or (options.name is None and name in CARDS):
        name, title = card.name, card.title
    facts = (frame, manifest.class_names, manifest.checksum, manifest.header, card, notes)
    return LongTailedSet(name, title, pool.root, *facts), manifest


def manifest_from_lists(
    train_list: str | Path, test_list: str | Path | None, data_root: str | Path, dataset: str = OWN, **given: Any
) -> Manifest:
    """The manifest of the images that lists name, relative to `data_root`; `given` are further dataset options."""
    options = DataOptions.of(train_list=train_list, test_list=test_list, **given)
    return build_manifest(CARDS[dataset], find_pool(CARDS[dataset], data_root, options), options)


def find_pool(
    card: DatasetCard, data_root: str | Path, options: DataOptions | None = None, manifest: Manifest | None = None
) -> Pool:
    """Lists the dataset's images below the data root, making them first where the card knows how to.

    Of the options, lists, folder and classes are used. Where the manifest holds whole paths, no folder is listed.
    """
    options = options or DataOptions()
    data_root = given_path(data_root, "data_root")
    folder = None if options.folder is None else given_path(options.folder, "folder")
    remedy = f"; get them with: {command('build', card.name, '--download', '--data-root', data_root)}"
    remedy = "" if card.url is None else remedy
    listed = manifest is not None and manifest.paths
    if card.make is not None and folder is None and options.train_list is None and not listed:
        card.make(data_root)
    if not data_root.is_dir():
        problem = "is not a folder" if data_root.exists() else "does not exist"
        raise UserError(f"the data root {data_root} {problem}: give the folder that holds the images{remedy}")
    root = data_root / (folder or "")
    pool: Pool | None
    if options.train_list is not None:
        pool = pool_from_lists(root, options.train_list, options.test_list, options.class_names)
    elif manifest is not None and manifest.paths:
        pool, seen = Pool(root, {}), Seen()
        for label, _, name in manifest.rows():
            if (found := file_id(root / name)) is not None:
                check_alone(root, name, found, seen)
                pool.files.setdefault(label, {})[name] = name
    else:
        if not root.is_dir():
            raise UserError(f"the folder {root} does not exist; folder is relative to the data root")
        below = (*card.folders, card.name, "") if folder is None else (folder,)
        pool = pool_from_folders([data_root / name for name in below], _known_classes(card))
    if pool is None:
        usual = ", ".join(f"{name}/" for name in card.folders)
        places = f" in {usual} or the folder itself" if usual else ""
        raise UserError(
            f"no images of {card.title} below {data_root}: looked for images/<class>/, train/<class>/ with "
            f"test/<class>/ (or val/, validation/) and <class>/{places}{remedy}"
        )
    return _chosen(card, replace(pool, remedy=remedy), options.classes)


def _known_classes(card: DatasetCard) -> frozenset[str] | None:
    """The names of the dataset's classes; None where every folder is one."""
    return frozenset(shipped_manifest(card.name).class_names if card.shipped else card.class_names) or None


def _chosen(card: DatasetCard, pool: Pool, chosen: tuple[str, ...]) -> Pool:
    """The pool with the classes that are asked for."""
    if chosen in (EVERY, PRESENT):
        return pool
    known = sorted(_known_classes(card) or pool.files)
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
        pool = replace(pool, lists=(train, test))
    return replace(pool, files={k: pool.files[k] for k in chosen})


def build_manifest(card: DatasetCard, pool: Pool, options: DataOptions | None = None) -> Manifest:
    """Builds the split from the images that were found."""
    options = options or DataOptions()
    if options.classes == EVERY and pool.lists is None:
        if absent := sorted((_known_classes(card) or set()) - set(pool.files)):
            raise _missing_classes(card, pool, absent)
        found = sum(map(len, pool.files.values()))
        if not card.shipped and card.images not in (None, found):  # nothing else would notice that some are missing
            wanted = f"but {card.title} has {card.images:,}"
            raise UserError(f"{pool.root} holds {found:,} images, {wanted}; remove the folder{pool.remedy}")
    names, test_names = official_pools(card, pool, options.merge)
    recipe = make_recipe(card, options, split=test_names is not None)
    return Manifest(card.name, split_pools(names, recipe, test_names), paths=pool.lists is not None)


def _missing_classes(card: DatasetCard, pool: Pool, absent: list[str]) -> UserError:
    return UserError(
        f"{len(absent)} of the {len(absent) + len(pool.files)} classes of {card.title} are missing below "
        f"{pool.root}: {shortened(absent)}{pool.remedy}; or choose classes=present (--classes present) to build the "
        f"set from the {len(pool.files)} classes that are there"
    )
