"""Finds the images of a dataset on a disk, from class folders or from the user's lists, without opening one.

Class folders are looked for in `images/` (official archives), in `train/` with `test/`, `val/` or `validation/`, and
directly below the folder. A list has `path label` or `path` per line, or is a CSV or TSV with a header.
"""

import csv
import os
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data_lt.cards import DatasetCard
from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path, os_errors, read_names, read_text
from data_lt.pictures import shortened

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp")
TRAIN, TEST = "train", "test"
TEST_FOLDERS = (TEST, "val", "validation")  # the first that holds class folders is taken
Names = dict[str, list[str]]  # of a class
Seen = dict[tuple[int, int], str]  # a file, whatever links lead to it → the first path that did


@dataclass(frozen=True)
class Pool:
    """The images that were found: class → name → path relative to `root`, with forward slashes.

    Class and file names are in Unicode's composed form (NFC), so that platforms agree on them; paths are spelt as on
    the disk. In training and test folders of an own dataset, a name is `train/name` or `test/name`.
    """

    root: Path
    files: dict[str, dict[str, str]]
    parts: tuple[str, ...] = ("",)  # folders of the class folders: ("images",), ("",), or training and test folder
    lists: tuple[Names, Names] | None = None  # to train and to test on, from the user's lists
    remedy: str = ""  # how to get missing images, for error messages

    @property
    def is_split(self) -> bool:
        """Whether the images lie in a training and a test folder."""
        return len(self.parts) == 2


def pool_from_folders(bases: Iterable[Path], known: Collection[str] | None) -> Pool | None:
    """The images of the folder with most of the known classes, or of the first with any; None without one.

    `known` is None where every folder is a class. A class that is empty, a name that occurs twice, and two names for
    the same file raise a `UserError`.
    """
    layouts = [(*layout, base) for base in filter(Path.is_dir, bases) for layout in _layouts(base, known)]
    score, parts, root = max(layouts, key=lambda item: item[0], default=(0, (), Path()))  # the first of the fullest
    if not score:
        return None
    pool, seen = Pool(root, {}, parts), Seen()
    for part, side in zip(parts, (TRAIN, TEST), strict=False):
        for folder in _entries(root / part):
            label = _nfc(folder.name)
            if known is not None and label not in known:
                continue
            _check_entry(folder)
            demo = folder.name == "demo_lt" and os.path.isfile(f"{folder.path}/info.json")  # drawn among the user's own
            if not folder.is_dir() or (known is None and demo):
                continue
            files = pool.files.setdefault(label, {})
            for entry, found in _images(folder):
                name = f"{side}/{_nfc(entry.name)}" if known is None and pool.is_split else _nfc(entry.name)
                path = Path(entry.path).relative_to(root).as_posix()
                if name in files:
                    both = f"as {files[name]} and {path} below {root}"
                    raise UserError(f"class {label!r} has the name {name!r} twice, {both}; remove one of them")
                files[name] = path
                check_alone(root, path, found, seen)
    if empty := [label for label, files in pool.files.items() if not files]:
        kinds = ", ".join(EXTENSIONS)
        raise UserError(f"class {empty[0]!r} is empty: its folder below {root} holds no file that ends in {kinds}")
    return pool


def _layouts(base: Path, known: Collection[str] | None) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The ways to read a folder, the usual ones first: a score, and the parts that hold the class folders.

    The score is the number of known classes; where every folder is a class, whether each part has one.
    """
    top = {entry.name.lower(): entry.name for entry in _entries(base) if os.path.isdir(entry.path)}
    pairs = [(top[TRAIN], top[test]) for test in TEST_FOLDERS if {TRAIN, test} <= top.keys()]
    for parts in ([("images",)] if (base / "images").is_dir() else []) + pairs + [("",)]:
        listed = [_entries(base / part) for part in parts]
        folders = [{_nfc(entry.name) for entry in part if os.path.isdir(entry.path)} for part in listed]
        if known is not None:
            yield len(set().union(*folders) & set(known)), parts
        else:
            files = (entry for part in listed for entry in part if not os.path.isdir(entry.path))
            images = parts != ("",) and any(entry.name.lower().endswith(EXTENSIONS) for entry in files)
            yield int(all(folders) and not images), parts  # a user's own class may be called "images" or "train"


def _images(folder: os.DirEntry) -> Iterator[tuple[os.DirEntry, tuple[int, int]]]:
    """The images of a class folder, and which file each is: a listing does not say what links lead to."""
    device = folder.stat().st_dev
    for entry in _entries(folder.path):
        if entry.name.lower().endswith(EXTENSIONS):
            _check_entry(entry)
            if entry.is_file():
                yield entry, (file_id(entry.path) if entry.is_symlink() else None) or (device, entry.inode())


def check_alone(root: Path, path: str, found: tuple[int, int], seen: Seen) -> None:
    """Refuses two paths that lead to one file: one could be trained on and the other tested on."""
    if (first := seen.setdefault(found, path)) != path and (root / first).samefile(root / path):
        # samefile: some file systems give all entries one number
        raise UserError(f"{first} and {path} below {root} are the same file; remove one of them")


def file_id(path: str | Path) -> tuple[int, int] | None:
    """Identifies a regular file, whatever links lead to it; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


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


def official_pools(card: DatasetCard, pool: Pool, merge: bool = False) -> tuple[Names, Names | None]:
    """The names to train on, and those to test on where folders or lists separate them."""
    if pool.lists is not None:
        return pool.lists
    if pool.is_split and (card.official_split or (card.classes is None and not merge)):
        train, test = (
            {k: [name for name, path in v.items() if path.startswith(f"{part}/")] for k, v in pool.files.items()}
            for part in pool.parts
        )
        return train, test
    home = pool.root.parent if pool.root.name == "images" else pool.root
    if card.file_list and (home / card.file_list).is_file():
        return _listed(pool, home / card.file_list), None
    if card.official_split:
        return _listed(pool, home / "meta/train.txt"), _listed(pool, home / "meta/test.txt")
    return {label: list(files) for label, files in pool.files.items()}, None


def _listed(pool: Pool, path: Path) -> Names:
    """Names by class from an official list, for the classes that are there; every listed file must be."""
    names: Names = {label: [] for label in pool.files}
    for line in filter(str.strip, read_text(path, "the official list").splitlines()):
        entry = line.split()[-1].removesuffix(".jpg")  # Food-101: path; CUB: id and path.jpg
        label, _, name = _nfc(f"{entry}.jpg").partition("/")
        if label in names:
            names[label].append(name)
    missing = [f"{k}/{name}" for k, listed in names.items() for name in listed if name not in pool.files[k]]
    if missing:
        raise UserError(f"{len(missing)} images that {path} lists are not below {pool.root}: {shortened(missing)}")
    return names


@dataclass
class Entry:
    """One line of a list."""

    file: Path
    line: int
    split: str
    path: str = ""
    label: str | None = None

    def error(self, problem: str) -> UserError:
        """The error for this line."""
        return UserError(f"{self.file}, line {self.line}: {problem}")


def pool_from_lists(
    root: Path, train_list: str | Path, test_list: str | Path | None = None, class_names: str | Path | None = None
) -> Pool:
    """The images that the lists name, with their classes and sides of the split; paths are relative to `root`.

    Without `test_list`, the first list names all images and has a column `split`. `class_names` is a file with the
    names of the labels 0, 1, …, one per line. Errors name the file and the line.
    """
    entries = _read(given_path(train_list, "train_list"), "" if test_list is None else TRAIN)
    if test_list is not None:
        entries += _read(given_path(test_list, "test_list"), TEST)
    sides = {entry.split for entry in entries}
    test = next((name for name in TEST_FOLDERS if name in sides), TEST)  # validation images where there are no others
    if not sides >= {TRAIN, test}:
        problem = "test" if TRAIN in sides else "training"
        raise UserError(f"{entries[0].file} has no {problem} images in its column split")
    entries = [entry for entry in entries if entry.split in (TRAIN, test)]
    labels = _classes(entries, None if class_names is None else read_names(class_names, "class_names"))
    _check_files(entries, root)
    lists: tuple[Names, Names] = ({}, {})
    pool = Pool(root, {}, lists=lists)
    for entry, label in zip(entries, labels, strict=True):
        lists[entry.split != TRAIN].setdefault(label, []).append(entry.path)
        pool.files.setdefault(label, {})[entry.path] = entry.path
    for entry, label in zip(entries, labels, strict=True):
        if label not in lists[0]:
            raise entry.error(f"class {label!r} has test images, but no training images")
    return pool


def _read(path: Path, side: str) -> list[Entry]:
    """The entries of a list; `side` is that of all of them, or empty where a column `split` must say it."""
    lines = [line for line in enumerate(read_text(path, "the list").splitlines(), start=1) if line[1].strip()]
    first = lines[0][1] if lines else ""
    separator = "\t" if "\t" in first else ","
    header = [name.strip().strip('"').lower() for name in first.split(separator)]
    if "path" in header:
        lines = lines[1:]
    elif separator in first and not any(name.endswith(EXTENSIONS) for name in header):
        raise Entry(path, lines[0][0], side).error("a table needs a column path; others may be label and split")
    else:
        header = []
    if not lines:
        raise UserError(f"the list {path} is empty; write one image per line")
    if not side and "split" not in header:
        raise UserError(f"{path} has no column split; give the test images as test_list")
    if side and "split" in header:
        raise UserError(f"{path} has a column split, which is for one list of all images; leave test_list out")
    return [_filled(Entry(path, number, side), line, header, separator) for number, line in lines]


def _filled(entry: Entry, line: str, header: list[str], separator: str) -> Entry:
    """The entry with what its line says; without a header that is `path` or `path label`."""
    if header:
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
        if len(cells) != len(header):
            raise entry.error(f"has {len(cells)} values, but the header has {len(header)} columns")
        row = dict(zip(header, cells, strict=True))
        path, entry.label, entry.split = row["path"], row.get("label"), row.get("split", entry.split).lower()
    elif not (path := line.strip()).lower().endswith(EXTENSIONS):
        path, _, entry.label = path.replace("\t", " ").rpartition(" ")
    parts = PurePosixPath(path := path.strip()).parts
    entry.path = "/".join(parts)
    if not path.lower().endswith(EXTENSIONS):
        raise entry.error(f"{path[:60]!r} does not end in {', '.join(EXTENSIONS)}; write `path label` or `path`")
    if path.startswith("/") or "\\" in path or ".." in parts or not path.isprintable():
        raise entry.error(f"{path[:60]!r} must be a path with / below the folder of the images")
    if entry.label == "":
        raise entry.error("has no label")
    if entry.split not in (TRAIN, *TEST_FOLDERS):
        raise entry.error(f"split must be one of {', '.join((TRAIN, *TEST_FOLDERS))}, got {entry.split[:60]!r}")
    return entry


def _classes(entries: list[Entry], names: list[str] | None) -> list[str]:
    """The class name of each entry: its label, the name for its number, or its folder."""
    kind = _kind(entries[0].label)
    for entry in entries:
        if _kind(entry.label) != kind:
            raise entry.error(f"has {_kind(entry.label)}, but {entries[0].file}, line {entries[0].line} has {kind}")
        if entry.label is None and "/" not in entry.path:
            raise entry.error(f"{entry.path!r} has no label and no folder that names its class")
    numbered = kind == "a number as label"
    labels = [str(int(e.label or "")) if numbered else e.label or e.path.split("/")[-2] for e in entries]
    if names is not None:
        known = {str(number) if numbered else name: name for number, name in enumerate(names)}
        for entry, label in zip(entries, labels, strict=True):
            if label not in known:
                raise entry.error(str(unknown_name("label", label, known)))
        return [known[label] for label in labels]
    if not numbered:
        return labels
    folders: dict[str, set[str]] = {}
    for entry, label in zip(entries, labels, strict=True):
        if entry.split == TRAIN:  # ImageNet-LT has a training folder per class and one folder of test images
            folders.setdefault(label, set()).add(PurePosixPath(entry.path).parent.name)
    named = {label: min(found) for label, found in folders.items()}
    if all(len(found) == 1 for found in folders.values()) and len({*named.values()} - {""}) == len(named):
        return [named.get(label, label) for label in labels]
    width = max(map(len, labels))
    return [label.zfill(width) for label in labels]  # so that the names sort as the numbers do


def _kind(label: str | None) -> str:
    if label is None:
        return "no label"
    return "a number as label" if label.isdecimal() and len(label) < 10 else "a name as label"


def _check_files(entries: Iterable[Entry], root: Path) -> None:
    """Raises for an image that is missing, listed twice, or the same file as another."""
    seen: dict[tuple[int, int], Entry] = {}
    missing = []
    for entry in entries:
        if (found := file_id(root / entry.path)) is None:
            missing.append(entry)
        elif (first := seen.setdefault(found, entry)) is not entry:
            where = f"line {first.line}" if first.file == entry.file else f"{first.file}, line {first.line}"
            sides = "listed twice" if first.split == entry.split else "both a training and a test image"
            same = "" if first.path == entry.path else f" (the same file as {first.path})"
            raise entry.error(f"{entry.path}{same} is {sides}, see {where}")
    if missing:
        more = f" (nor do {len(missing) - 1:,} more)" if len(missing) > 1 else ""
        raise missing[0].error(f"{missing[0].path} does not exist below {root}{more}")
