"""Finds the images of a dataset on a disk, in any common layout, without opening one.

Class folders are looked for in `images/` (official archives), in `train/` with `test/`, `val/` or `validation/`, and
directly below the folder. Each class folder is listed once.
"""

import os
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from data_lt.cards import DatasetCard
from data_lt.demo import is_demo
from data_lt.errors import UserError
from data_lt.files import os_errors, read_text
from data_lt.pictures import shortened

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
TRAIN, TEST = "train", "test"
TEST_FOLDERS = (TEST, "val", "validation")  # the first that holds class folders is taken
Lists = tuple[dict[str, list[str]], dict[str, list[str]]]  # class → names, to train and to test on


@dataclass(frozen=True)
class Pool:
    """The images that were found: class → name → path relative to `root`, with forward slashes.

    Class and file names are in Unicode's composed form (NFC), so that platforms agree on them; the paths are
    spelt as the disk spells them. In the training and test folders of an own dataset the same name may stand for
    two images, so there a name is `train/name` or `test/name`, whatever the folders are called.
    """

    root: Path
    files: dict[str, dict[str, str]]
    parts: tuple[str, ...] = ("",)  # folders of the class folders: ("images",), ("",), or training and test folder
    lists: Lists | None = None  # from the user's lists

    @property
    def is_split(self) -> bool:
        """Whether the images lie in a training and a test folder."""
        return len(self.parts) == 2


def find_layout(bases: Iterable[Path], known: Collection[str] | None) -> Pool | None:
    """An empty pool for the folder with most of the known classes, or for the first with any; None without one.

    Args:
        bases: Folders to look at.
        known: The class names of the dataset; None where every folder is a class.
    """
    found = []
    for base in filter(Path.is_dir, bases):
        scores = ((_classes_in(base, parts, known), parts) for parts in _styles(base))
        score, parts = next((item for item in scores if item[0]), (0, ()))
        if score:
            found.append((score if known else 1, Pool(base, {}, parts)))
    return max(found, key=lambda item: item[0])[1] if found else None  # the first of the fullest


def _classes_in(base: Path, parts: tuple[str, ...], known: Collection[str] | None) -> int:
    """The number of class folders in the parts of a folder."""
    listed = [_entries(base / part) for part in parts]
    folders = [{_nfc(entry.name) for entry in part if os.path.isdir(entry.path)} for part in listed]
    names = set().union(*folders)
    if known is not None:
        return len(names & set(known))
    images = (e for part in listed for e in part if e.name.lower().endswith(EXTENSIONS) and not os.path.isdir(e.path))
    if parts != ("",) and any(images):  # a user's own class may be called "images", "train" or "test"
        return 0
    return len(names) if all(folders) else 0


def _styles(base: Path) -> Iterator[tuple[str, ...]]:
    """The parts that may hold class folders, in order of preference."""
    folders = {entry.name.lower(): entry.name for entry in _entries(base) if os.path.isdir(entry.path)}
    if (base / "images").is_dir():
        yield ("images",)
    for test in TEST_FOLDERS:
        if TRAIN in folders and test in folders:
            yield folders[TRAIN], folders[test]
    yield ("",)


def scan(pool: Pool, known: Collection[str] | None = None) -> Pool:
    """Fills a pool with the images of its class folders, each listed once.

    Raises:
        UserError: a class is empty, a name occurs twice, or two names lead to the same file.
    """
    images: dict[tuple[int, int], str] = {}
    for part, side in zip(pool.parts, (TRAIN, TEST), strict=False):
        for folder in _entries(pool.root / part):
            label = _nfc(folder.name)
            if known is not None and label not in known:
                continue
            _check_entry(folder)
            if not folder.is_dir() or (known is None and is_demo(folder.path)):
                continue
            prefix = f"{side}/" if known is None and pool.is_split else ""
            _add_class(pool, label, part, folder, prefix, images)
    for label, files in pool.files.items():
        if not files:
            raise UserError(
                f"class {label!r} is empty: its folder below {pool.root} holds no file that ends in "
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
    files, root = pool.files.setdefault(label, {}), pool.root
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
    return pool.lists is not None or (pool.is_split and own)


def official_pools(
    card: DatasetCard, pool: Pool, merge: bool = False
) -> tuple[dict[str, list[str]], dict[str, list[str]] | None]:
    """The names to train on, and those to test on where folders or official lists separate them.

    Raises:
        UserError: an official list is missing, or names files that are not there.
    """
    if pool.lists is not None:
        return pool.lists
    if keeps_split(card, pool, merge):
        train, test = (
            {
                k: [name for name, path in files.items() if path.startswith(f"{part}/")]
                for k, files in pool.files.items()
            }
            for part in pool.parts
        )
        return train, test
    home = pool.root.parent if pool.root.name == "images" else pool.root
    if card.file_list and (home / card.file_list).is_file():
        return _listed(pool, home / card.file_list), None
    if card.official_split:
        return _listed(pool, home / "meta/train.txt"), _listed(pool, home / "meta/test.txt")
    return {label: list(files) for label, files in pool.files.items()}, None


def _listed(pool: Pool, path: Path) -> dict[str, list[str]]:
    """Names by class from an official list, for the classes that are there; every listed file must be."""
    names: dict[str, list[str]] = {label: [] for label in pool.files}
    missing = []
    for line in read_text(path, "the official list").splitlines():
        entry = line.split()[-1].removesuffix(".jpg") if line.strip() else ""  # Food-101: path; CUB: id and path.jpg
        label, _, name = _nfc(f"{entry}.jpg").partition("/")
        if label in names:
            names[label].append(name)
            if name not in pool.files[label]:
                missing.append(f"{label}/{name}")
    if missing:
        raise UserError(f"{len(missing)} images that {path} lists are not below {pool.root}: {shortened(missing)}")
    return names


def _entries(folder: str | Path) -> list[os.DirEntry]:
    """A folder's entries by name, without hidden ones (such as macOS' `._` files)."""
    with os_errors(f"cannot list {folder}"), os.scandir(folder) as found:
        return sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda e: e.name)


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _check_entry(entry: os.DirEntry) -> None:
    """Refuses a dead link, and a name that a text file cannot carry."""
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in entry.name):
        raise UserError(f"the name of {entry.path!r} has a control character or is not valid UTF-8; rename it")
    if entry.is_symlink() and not os.path.exists(entry.path):
        raise UserError(f"{entry.path} is a link that leads nowhere or in a circle; repair or remove it")
