"""Finds the images of a dataset on a disk, in any common layout, without opening one.

Class folders are looked for in `images/` (official archives), in `train/` with `test/`, `val/` or `validation/`, and
directly below the folder. Each class folder is listed once.
"""

import os
import stat
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_lt.cards import DatasetCard
from data_lt.demo import is_demo
from data_lt.errors import UserError
from data_lt.files import read_text
from data_lt.pictures import shortened

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
TEST_FOLDERS = ("test", "val", "validation")  # the first that holds class folders is taken
SPLIT = ("train", "test")


@dataclass(frozen=True)
class Layout:
    """Where the images are: class folders are in `root/part` for each part.

    The parts are `("images",)`, `("",)`, or the training and the test folder as the disk spells them.
    """

    root: Path
    parts: tuple[str, ...]

    @property
    def is_split(self) -> bool:
        """Whether the images lie in a training and a test folder."""
        return len(self.parts) == len(SPLIT)


@dataclass(frozen=True)
class Pool:
    """The images that were found: class → name → path relative to `layout.root`, with forward slashes.

    Class and file names are in Unicode's composed form (NFC), so that platforms agree on them; the paths are
    spelt as the disk spells them. In the training and test folders of an own dataset the same name may stand for
    two images, so there a name is `train/name` or `test/name`, whatever the folders are called.
    """

    layout: Layout
    files: dict[str, dict[str, str]]
    lists: tuple[dict[str, list[str]], dict[str, list[str]]] | None = None  # names to train and to test on, from lists


def find_layout(
    card: DatasetCard, data_root: Path, folder: str | Path | None = None, known: Collection[str] | None = None
) -> Layout | None:
    """The layout that holds most of the known classes, or None where there is none.

    Args:
        card: Names the usual folders of the dataset.
        data_root: The folder of the images or a parent of it.
        folder: The folder of the images, if it has an unusual name; relative to the data root.
        known: The class names of the dataset; None where every folder is a class.
    """
    if folder is not None:
        bases = [data_root / folder]
        if not bases[0].is_dir():
            raise UserError(f"the folder {bases[0]} does not exist; folder is relative to the data root")
    else:
        bases = [data_root / name for name in (*card.folders, card.name)] + [data_root]
    found = [(layout, score) for base in bases for layout, score in _layouts(base, known)]
    if known is None:
        found = found[:1]
    return max(found, key=lambda item: item[1])[0] if found else None  # the first of the fullest


def _layouts(base: Path, known: Collection[str] | None) -> Iterator[tuple[Layout, int]]:
    """The first layout that fits a folder, with the number of classes found there."""
    if not base.is_dir():
        return
    for parts in _styles(base):
        listed = [list(_entries(base / part)) for part in parts]
        if known is None and parts != ("",) and any(_is_image(entry) for part in listed for entry in part):
            continue  # a user's own class may be called "images", "train" or "test"
        folders = [{_nfc(entry.name) for entry in part if _is_folder(entry)} for part in listed]
        names = set().union(*folders)
        if known is None and not all(folders):
            continue
        if score := len(names if known is None else names & set(known)):
            yield Layout(base, parts), score
            return


def _styles(base: Path) -> Iterator[tuple[str, ...]]:
    """The parts that may hold class folders, in order of preference."""
    folders = {entry.name.lower(): entry.name for entry in _entries(base) if _is_folder(entry)}
    if (base / "images").is_dir():
        yield ("images",)
    for test in TEST_FOLDERS:
        if "train" in folders and test in folders:
            yield folders["train"], folders[test]
    yield ("",)


def scan(layout: Layout, known: Collection[str] | None = None) -> Pool:
    """Lists every class folder once.

    Raises:
        UserError: a class is empty, a name occurs twice, or two names lead to the same file.
    """
    pool = Pool(layout, {})
    seen: dict[object, str] = {}
    images: dict[tuple[int, int], str] = {}
    for part, before in zip(layout.parts, SPLIT, strict=False):
        for folder in _entries(layout.root / part):
            label = _nfc(folder.name)
            if known is not None and label not in known:
                continue
            _check_entry(folder)
            if not _is_folder(folder) or (known is None and is_demo(folder.path)):
                continue
            for key in (os.path.realpath(folder.path), (part, label)):  # a link, or another spelling of é
                if seen.setdefault(key, folder.path) != folder.path:
                    raise UserError(f"{seen[key]} and {folder.path} are the same class; keep one of them")
            prefix = f"{before}/" if known is None and layout.is_split else ""
            _add_class(pool, label, part, folder, prefix, images)
    for label, files in pool.files.items():
        if not files:
            raise UserError(
                f"class {label!r} is empty: its folder below {layout.root} holds no file that ends in "
                f"{', '.join(EXTENSIONS)}"
            )
    return pool


def same_file(root: Path, first: str, second: str) -> UserError:
    """The error for two paths that lead to one file: one could be trained on and the other tested on."""
    return UserError(f"{first} and {second} below {root} are the same file; remove one of them")


def file_id(path: str | Path) -> tuple[int, int] | None:
    """Identifies a regular file, whatever links lead to it; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _add_class(
    pool: Pool, label: str, part: str, folder: os.DirEntry, before: str, seen: dict[tuple[int, int], str]
) -> None:
    """Adds the images of one class folder to `pool`, and which file each is to `seen`.

    Raises:
        UserError: a name occurs twice, or an image is a link to another.
    """
    files, root = pool.files.setdefault(label, {}), pool.layout.root
    prefix = f"{part}/{folder.name}" if part else folder.name
    device = folder.stat().st_dev
    for entry in _entries(folder.path):
        if not entry.name.lower().endswith(EXTENSIONS):
            continue
        _check_entry(entry)
        if not entry.is_file():
            continue
        name, path = before + _nfc(entry.name), f"{prefix}/{entry.name}"
        if name in files:
            raise UserError(
                f"class {label!r} has the name {name!r} twice, as {files[name]} and {path} below {root}; "
                "remove one of them"
            )
        files[name] = path
        # A listing gives the inodes of files, but not of what links lead to.
        found = (file_id(entry.path) if entry.is_symlink() else None) or (device, entry.inode())
        if (first := seen.setdefault(found, path)) != path and (root / first).samefile(entry.path):
            raise same_file(root, first, path)  # samefile: some file systems give all entries one number


def keeps_split(card: DatasetCard, pool: Pool, merge: bool) -> bool:
    """Whether lists or folders decide which images are trained and tested on."""
    own = card.official_split or (card.classes is None and not merge)
    return pool.lists is not None or (pool.layout.is_split and own)


def official_pools(
    card: DatasetCard, pool: Pool, merge: bool = False
) -> tuple[dict[str, list[str]], dict[str, list[str]] | None]:
    """The names to train on, and those to test on where folders or official lists tell them apart.

    Raises:
        UserError: a list is missing where it is needed, or names files that are not there.
    """
    if pool.lists is not None:
        return pool.lists
    base = pool.layout.root
    homes = [base, base.parent] if base.name == "images" else [base]
    if keeps_split(card, pool, merge):
        train, test = (
            {
                k: [name for name, path in files.items() if path.startswith(f"{part}/")]
                for k, files in pool.files.items()
            }
            for part in pool.layout.parts
        )
        return train, test
    if card.official_split:
        train, test = (_listed(pool, _required_list(card, homes, f"meta/{part}.txt")) for part in ("train", "test"))
        return train, test
    return {label: list(files) for label, files in pool.files.items()}, None


def _required_list(card: DatasetCard, homes: list[Path], name: str) -> Path:
    for home in homes:
        if (home / name).is_file():
            return home / name
    raise UserError(
        f"{card.title} takes its images from the official lists, but {homes[-1] / name} does not exist; "
        "it is part of the official archive"
    )


def _listed(pool: Pool, path: Path) -> dict[str, list[str]]:
    """Names by class from an official list, for the classes that are there; every listed file must be."""
    names: dict[str, list[str]] = {label: [] for label in pool.files}
    missing = []
    for line in read_text(path, "the list").splitlines():
        label, _, name = _nfc(f"{line.strip()}.jpg").partition("/")
        if label in names:
            names[label].append(name)
            if name not in pool.files[label]:
                missing.append(f"{label}/{name}")
    if missing:
        raise UserError(
            f"{len(missing)} images that {path} lists are not below {pool.layout.root}: {shortened(missing)}"
        )
    return names


def _entries(folder: str | Path) -> list[os.DirEntry]:
    """A folder's entries by name, without hidden ones (such as macOS' `._` files)."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda e: e.name)
    except OSError as error:
        raise UserError(f"cannot list {folder}: {error.strerror or error}") from error


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that goes in a circle
        return False


def _is_image(entry: os.DirEntry) -> bool:
    return entry.name.lower().endswith(EXTENSIONS) and not _is_folder(entry)


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _check_entry(entry: os.DirEntry) -> None:
    """Refuses a dead link, and a name that a text file cannot carry."""
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in entry.name):
        raise UserError(f"the name of {entry.path!r} has a control character or is not valid UTF-8; rename it")
    if entry.is_symlink() and not os.path.exists(entry.path):
        raise UserError(f"{entry.path} is a link that leads nowhere or in a circle; repair or remove it")
