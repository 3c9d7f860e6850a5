"""Reads lists of training and test images: `path label` or `path` per line, or CSV and TSV with a header."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from data_lt.errors import UserError, unknown_name
from data_lt.files import given_path, read_text
from data_lt.pools import EXTENSIONS, TEST_FOLDERS, Layout, Pool, file_id

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class Entry:
    """One line of a list; `split` is set where a column tells it."""

    path: str
    label: str | None
    split: str | None
    file: Path
    line: int

    def error(self, problem: str) -> UserError:
        """The error for this line."""
        return UserError(f"{self.file}, line {self.line}: {problem}")


def pool_from_lists(
    root: Path, train_list: str | Path, test_list: str | Path | None = None, class_names: str | Path | None = None
) -> Pool:
    """The images that the lists name, with their classes and sides of the split.

    Args:
        root: The folder that the paths are relative to.
        train_list: The list of training images; with a column `split`, of all images.
        test_list: The list of test images.
        class_names: A file with a class name per line, in the order of the labels 0, 1, …

    Raises:
        UserError: names the file and line of the first entry that is wrong.
    """
    entries = list(_entries(given_path(train_list, "train_list"), TRAIN))
    if test_list is not None:
        if entries[0].split is not None:
            raise entries[0].error("the column split tells training and test images apart; leave test_list out")
        entries += _entries(given_path(test_list, "test_list"), TEST)
    entries = _with_split(entries, test_list)
    names = None if class_names is None else read_names(class_names, "class_names")
    classes = _classes(entries, names)
    _check_files(entries, root)
    pools: dict[str, dict[str, list[str]]] = {TRAIN: {}, TEST: {}}
    for entry, label in zip(entries, classes, strict=True):
        if entry.split == TEST and label not in pools[TRAIN]:
            raise entry.error(f"class {label!r} has test images, but no training images")
        pools[str(entry.split)].setdefault(label, []).append(entry.path)
    files = {k: {path: path for side in (TRAIN, TEST) for path in pools[side].get(k, ())} for k in pools[TRAIN]}
    return Pool(Layout(root, ("",)), files, (pools[TRAIN], pools[TEST]))


def read_names(source: str | Path, what: str) -> list[str]:
    """The names in a file, one per line; blank lines are skipped."""
    path = given_path(source, what)
    names = [line.strip() for _, line in _lines(path) if line.strip()]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UserError(f"{path} has the name {name[:60]!r} twice; each class has one line")
    if not names:
        raise UserError(f"{path} is empty; write one class name per line")
    return names


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    yield from enumerate(read_text(path, "the list").splitlines(), start=1)


def _entries(path: Path, side: str) -> list[Entry]:
    lines = [(number, line) for number, line in _lines(path) if line.strip()]
    if not lines:
        raise UserError(f"the list {path} is empty; write one image per line")
    first = lines[0][1]
    separator = "\t" if "\t" in first else ","
    header = [name.strip().strip('"').lower() for name in first.split(separator)]
    if "path" in header:
        if not lines[1:]:
            raise UserError(f"the list {path} has a header but no images; write one image per line")
        return [_from_table(path, number, line, header, separator, side) for number, line in lines[1:]]
    if separator in first and not any(name.endswith(EXTENSIONS) for name in header):
        names = "path, label and split"
        raise UserError(f"{path}, line {lines[0][0]}: a table needs a column path; its columns may be {names}")
    return [_from_text(path, number, line) for number, line in lines]


def _from_table(path: Path, number: int, line: str, header: list[str], separator: str, side: str) -> Entry:
    entry = Entry("", None, None, path, number)
    try:
        cells = [cell.strip() for cell in next(csv.reader([line], delimiter=separator))]
    except csv.Error as error:
        raise entry.error(f"cannot be read: {error}") from error
    if len(cells) != len(header):
        raise entry.error(f"has {len(cells)} values, but the header has {len(header)} columns")
    row = dict(zip(header, cells, strict=True))
    if "label" in row and not row["label"]:
        raise entry.error("has no label")
    split = row.get("split")
    if side == TEST and split is not None:
        raise entry.error("a test_list has no column split; give one list, as train_list")
    if split is not None and (split := split.lower()) not in (TRAIN, *TEST_FOLDERS):
        raise entry.error(f"split must be one of {', '.join((TRAIN, *TEST_FOLDERS))}, got {row['split'][:60]!r}")
    return replace(entry, path=_checked(row["path"], entry), label=row.get("label"), split=split)


def _from_text(path: Path, number: int, line: str) -> Entry:
    text, label, entry = line.strip(), None, Entry("", None, None, path, number)
    if not text.lower().endswith(EXTENSIONS):
        text, _, label = text.replace("\t", " ").rpartition(" ")
    return replace(entry, path=_checked(text.strip(), entry), label=label)


def _checked(text: str, entry: Entry) -> str:
    parts = PurePosixPath(text).parts
    if not text.lower().endswith(EXTENSIONS):
        raise entry.error(f"{text[:60]!r} does not end in {', '.join(EXTENSIONS)}; write `path label` or `path`")
    if text.startswith("/") or "\\" in text or ".." in parts or not text.isprintable():
        raise entry.error(f"{text[:60]!r} must be a path with / below the folder of the images")
    return "/".join(parts)


def _with_split(entries: list[Entry], test_list: str | Path | None) -> list[Entry]:
    """The entries with `train` or `test`; validation images are test images only where there are no others."""
    first = entries[0]
    if first.split is None:
        if test_list is None:
            raise UserError(f"{first.file} has no column split; give the test images as test_list")
        return [replace(entry, split=TRAIN if entry.file == first.file else TEST) for entry in entries]
    found = {entry.split for entry in entries}
    test = next((name for name in TEST_FOLDERS if name in found), None)
    if test is None or TRAIN not in found:
        raise UserError(f"{first.file} has no {'test' if TRAIN in found else 'training'} images in its column split")
    kept = [entry for entry in entries if entry.split in (TRAIN, test)]
    kept.sort(key=lambda entry: entry.split != TRAIN)
    return [replace(entry, split=TRAIN if entry.split == TRAIN else TEST) for entry in kept]


def _classes(entries: list[Entry], names: list[str] | None) -> list[str]:
    """The class name of each entry: its label, the name for its number, or its folder."""
    numbered = bool(entries[0].label) and str(entries[0].label).isdecimal()
    for entry in entries:
        if (entry.label is None) != (entries[0].label is None):
            raise entry.error("some lines have a label and others have none; give every line a label, or none")
        if entry.label is None and "/" not in entry.path:
            raise entry.error(f"{entry.path!r} has no label and no folder that names its class")
        if entry.label is not None and entry.label.isdecimal() != numbered:
            raise entry.error(f"label {entry.label[:60]!r}: labels must be all numbers or all names")
    if not numbered:
        given = [entry.label or entry.path.split("/")[-2] for entry in entries]
        for entry, label in zip(entries, given, strict=True):
            if names is not None and label not in names:
                raise entry.error(str(unknown_name("label", label, names)))
        return given
    numbers = [int(str(entry.label)) for entry in entries]
    if names is not None:
        for entry, number in zip(entries, numbers, strict=True):
            if number >= len(names):
                raise entry.error(f"unknown label {number}: the file of class names has 0 to {len(names) - 1}")
        return [names[number] for number in numbers]
    folders: dict[int, set[str]] = {}
    for entry, number in zip(entries, numbers, strict=True):
        if entry.split == TRAIN:  # ImageNet-LT has a training folder per class and one folder of test images
            folders.setdefault(number, set()).add(PurePosixPath(entry.path).parent.name)
    named = {number: min(found) for number, found in folders.items()}
    if all(len(found) == 1 for found in folders.values()) and len({*named.values()} - {""}) == len(named):
        return [named.get(number, str(number)) for number in numbers]
    width = len(str(max(numbers)))
    return [f"{number:0{width}d}" for number in numbers]  # so that the names sort as the numbers do


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
