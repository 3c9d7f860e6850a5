"""Reads lists of training and test images: `path label` or `path` per line, or CSV and TSV with a header."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path, read_text
from data_lt.pools import EXTENSIONS, TEST, TEST_FOLDERS, TRAIN, Lists, Pool, file_id


@dataclass
class Entry:
    """One line of a list."""

    file: Path
    line: int
    path: str = ""
    label: str | None = None
    split: str = ""

    def error(self, problem: str) -> UserError:
        """The error for this line."""
        return UserError(f"{self.file}, line {self.line}: {problem}")


def pool_from_lists(
    root: Path, train_list: str | Path, test_list: str | Path | None = None, class_names: str | Path | None = None
) -> Pool:
    """The images that the lists name, with their classes and sides of the split.

    Args:
        root: The folder that the paths are relative to.
        train_list: The list of training images; without `test_list`, of all images, with a column `split`.
        test_list: The list of test images.
        class_names: A file with a class name per line, in the order of the labels 0, 1, …

    Raises:
        UserError: names the file and line of the first entry that is wrong.
    """
    entries = _read(given_path(train_list, "train_list"), None if test_list is None else TRAIN)
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
    known = {label for entry, label in zip(entries, labels, strict=True) if entry.split == TRAIN}
    lists: Lists = ({}, {})
    files: dict[str, dict[str, str]] = {}
    for entry, label in zip(entries, labels, strict=True):
        if label not in known:
            raise entry.error(f"class {label!r} has test images, but no training images")
        lists[entry.split != TRAIN].setdefault(label, []).append(entry.path)
        files.setdefault(label, {})[entry.path] = entry.path
    return Pool(root, files, lists=lists)


def read_names(source: str | Path, what: str) -> list[str]:
    """The names in a file, one per line; blank lines are skipped."""
    path = given_path(source, what)
    names = [line.strip() for line in read_text(path, f"{what}, the file of class names,").splitlines() if line.strip()]
    if not names:
        raise UserError(f"{path} is empty; write one class name per line")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{path} has the name {twice[:60]!r} twice; each class has one line")
    return names


def _read(path: Path, side: str | None) -> list[Entry]:
    """The entries of a list; `side` is that of all of them, or None where a column `split` must say it."""
    lines = [line for line in enumerate(read_text(path, "the list").splitlines(), start=1) if line[1].strip()]
    first = lines[0][1] if lines else ""
    separator = "\t" if "\t" in first else ","
    header = [name.strip().strip('"').lower() for name in first.split(separator)]
    if "path" in header:
        lines = lines[1:]
    elif separator in first and not any(name.endswith(EXTENSIONS) for name in header):
        raise Entry(path, lines[0][0]).error("a table needs a column path; its columns may be path, label and split")
    else:
        header = []
    if not lines:
        raise UserError(f"the list {path} is empty; write one image per line")
    if side is None and "split" not in header:
        raise UserError(f"{path} has no column split; give the test images as test_list")
    if side is not None and "split" in header:
        raise UserError(f"{path} has a column split, which is for one list of all images; leave test_list out")
    return [_entry(Entry(path, *line[:1], split=side or ""), line[1], header, separator) for line in lines]


def _entry(entry: Entry, line: str, header: list[str], separator: str) -> Entry:
    """Fills an entry from its line; without a header the line is `path` or `path label`."""
    if header:
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
        except csv.Error as error:
            raise entry.error(f"cannot be read: {error}") from error
        if len(cells) != len(header):
            raise entry.error(f"has {len(cells)} values, but the header has {len(header)} columns")
        row = dict(zip(header, cells, strict=True))
        entry.path, entry.label, entry.split = row["path"], row.get("label"), row.get("split", entry.split).lower()
    else:
        entry.path = line.strip()
        if not entry.path.lower().endswith(EXTENSIONS):
            entry.path, _, entry.label = entry.path.replace("\t", " ").rpartition(" ")
            entry.path = entry.path.strip()
    path, parts = entry.path, PurePosixPath(entry.path).parts
    if not path.lower().endswith(EXTENSIONS):
        raise entry.error(f"{path[:60]!r} does not end in {', '.join(EXTENSIONS)}; write `path label` or `path`")
    if path.startswith("/") or "\\" in path or ".." in parts or not path.isprintable():
        raise entry.error(f"{path[:60]!r} must be a path with / below the folder of the images")
    if entry.label == "":
        raise entry.error("has no label")
    if entry.split not in (TRAIN, *TEST_FOLDERS):
        raise entry.error(f"split must be one of {', '.join((TRAIN, *TEST_FOLDERS))}, got {entry.split[:60]!r}")
    entry.path = "/".join(parts)
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
        known = (
            {str(number): name for number, name in enumerate(names)}
            if numbered
            else dict(zip(names, names, strict=True))
        )
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
