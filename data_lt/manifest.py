"""A split as a text file: its recipe and a checksum, then every class with its training and test images.

The format is described in docs/own_data.md. An image is named by its file name within the class, whatever layout the
images have on a disk; with `"paths": true` in the header, by its path below the data root.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_lt.cards import CARDS
from data_lt.errors import UserError, command
from data_lt.files import given_path, read_text, write_text
from data_lt.split import ALL, Recipe, Split

if TYPE_CHECKING:
    import pandas as pd

MAGIC = "pilot-tal manifest 1"


@dataclass(frozen=True)
class Manifest:
    """A split of the dataset `name`; with `paths`, images are named by their paths below the data root."""

    name: str
    split: Split
    paths: bool = False

    @property
    def class_names(self) -> list[str]:
        """Class names in alphabetical order; a class's place is its label."""
        return sorted(self.split.train)

    @property
    def counts(self) -> list[int]:
        """Training images of each class."""
        return [len(self.split.train[label]) for label in self.class_names]

    @property
    def header(self) -> dict[str, Any]:
        """What the first lines say, without the checksum; plain JSON values."""
        counts = self.counts
        return {
            "dataset": self.name,
            **({"paths": True} if self.paths else {}),
            **self.split.recipe.header,
            "classes": len(counts),
            "train": sum(counts),
            "test": sum(map(len, self.split.test.values())),
            "largest": max(counts),
            "smallest": min(counts),
        }

    @functools.cached_property
    def checksum(self) -> str:
        """SHA-256 over the header and the entries."""
        canonical = json.dumps(self.header, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(f"{canonical}\n{self._body()}".encode()).hexdigest()

    def text(self) -> str:
        """The file's text."""
        header = json.dumps({**self.header, "checksum": self.checksum}, ensure_ascii=False)
        return f"{MAGIC}\n{header}\n{self._body()}"

    def write(self, path: str | Path) -> None:
        """Writes the file, whole or not at all."""
        write_text(path, self.text())

    def frame(self) -> "pd.DataFrame":
        """The entries as a table with the columns `path` (class/name), `label` and `split`."""
        import pandas as pd

        labels = {name: label for label, name in enumerate(self.class_names)}
        rows = [(f if self.paths else f"{name}/{f}", labels[name], side) for name, side, f in self.rows()]
        return pd.DataFrame(rows, columns=["path", "label", "split"])

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(class, `train` or `test`, image) for every image, by class."""
        for name in self.class_names:
            for side, files in (("train", self.split.train), ("test", self.split.test)):
                yield from ((name, side, file) for file in files[name])

    def _body(self) -> str:
        lines = []
        for name in self.class_names:
            lines.append(f"class\t{name}\t{self.split.pool[name]}")
            lines += [f"train\t{file}" for file in self.split.train[name]]
            lines += [f"test\t{file}" for file in self.split.test[name]]
        return "\n".join(lines) + "\n"


def read_manifest(source: str | Path) -> Manifest:
    """Reads the shipped manifest of a dataset name, or a manifest file; one that was edited is refused."""
    if isinstance(source, str) and source in CARDS:
        if (shipped := CARDS[source].manifest_path) is None:
            raise UserError(f"no manifest is shipped for {source}: it is built from the images on your disk")
        source = shipped
    path = given_path(source, "manifest")
    if not path.exists() and path.name == str(source) and not path.suffix:
        CARDS[str(source)]  # a bare word is a misspelt dataset name: says which names there are
    header, body, text = _read(path)
    anew = "build it anew"
    try:
        name = header["dataset"].strip()
        anew += f" with {command('build', name)}" if name in CARDS else ""
        manifest = _parse(name, header, Recipe(**{key: header[key] for key in Recipe().header}), body)
        if manifest.text() == text:  # checksum and all
            return manifest
        problem = f"its entries do not match its checksum {str(header.get('checksum'))[:12]}…"
    except ValueError as error:
        problem = str(error)
    except (KeyError, AttributeError, TypeError):
        problem = "its header cannot be read"
    check = command("build", "--check", path)
    raise UserError(f"the manifest {path} was edited or damaged: {problem}; {anew}, or accept the edit with {check}")


@functools.cache
def shipped_manifest(name: str) -> Manifest:
    """The manifest that comes with the project, read once per process."""
    return read_manifest(name)


def load_manifest(source: str | Path) -> "pd.DataFrame":
    """The split of `cub_lt`, `imagenetr_lt` or `food101_lt`, or of a manifest file, as a table.

    Its columns are `path` (`class/file`), `label` (alphabetical class index) and `split` (`train` or `test`).
    """
    return read_manifest(source).frame()


def seal(source: str | Path) -> Manifest:
    """Accepts a manifest that was written or edited by hand: checks its lines and writes its header.

    The header needs `dataset` and, for paths below the data root, `paths`; a class line needs no number. The split of
    an edited manifest is `natural`. Lines that cannot be read or contradict each other raise a `UserError`.
    """
    path = given_path(source, "--check")
    header, body, _ = _read(path)
    with contextlib.suppress(UserError):
        return read_manifest(path)
    name = header.get("dataset")
    if not isinstance(name, str) or name not in CARDS:
        raise UserError(f"{path}: the header's dataset must be one of {', '.join(CARDS)}, got {str(name)[:60]!r}")
    try:
        manifest = _parse(name, header, Recipe("natural"), body)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    split, counts = manifest.split, manifest.counts
    tests = {len(files) for files in split.test.values()}
    pool = {k: max(split.pool[k], len(split.train[k]) + len(split.test[k])) for k in split.train}
    per_class = min(tests) if len(tests) == 1 else ALL
    recipe = Recipe("natural", n_max=max(counts), n_min=min(counts), test_per_class=per_class)
    sealed = replace(manifest, split=replace(split, pool=pool, recipe=recipe))
    sealed.write(path)
    return sealed


def _read(path: Path) -> tuple[dict[str, Any], str, str]:
    """Header, body and whole text of a manifest file."""
    text = read_text(path, "the manifest").replace("\r\n", "\n")  # a checkout may have made the line ends Windows'
    magic, _, rest = text.partition("\n")
    if magic != MAGIC:
        raise UserError(f"{path} is not a manifest: its first line must be {MAGIC!r}, got {magic[:20]!r}")
    first, _, body = rest.partition("\n")
    try:
        header = json.loads(first)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise UserError(f"the manifest {path} cannot be read: its second line must be a JSON object")
    return header, body, text


def _parse(dataset: str, header: dict[str, Any], recipe: Recipe, body: str) -> Manifest:
    split = Split(recipe, train={}, test={}, pool={})
    sides: dict[str, list[str]] = {}  # of the class at hand
    for number, line in enumerate(body.rstrip("\n").split("\n"), start=3):
        kind, _, rest = line.partition("\t")
        if kind == "class":
            name, _, size = rest.rpartition("\t") if "\t" in rest else (rest, "", "0")
            if name in split.pool or not (size.isascii() and size.isdecimal()):
                raise ValueError(f"line {number} must be class, a name that occurs once and a number, tabs between")
            split.pool[name] = int(size)
            sides = {"train": split.train.setdefault(name, []), "test": split.test.setdefault(name, [])}
        elif kind not in sides:
            raise ValueError(f"line {number} must be class, train or test, a tab and a name; a class comes first")
        else:
            sides[kind].append(rest)
    manifest = Manifest(dataset, split, header.get("paths") is True)
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    """Raises a `ValueError` for entries that contradict each other."""
    seen: dict[tuple[str, str], str] = {}
    for label, side, name in manifest.rows():
        if not all(part not in ("", ".", "..") and part.isprintable() and "\\" not in part for part in name.split("/")):
            raise ValueError(f"{name[:60]!r} cannot be the name of an image")
        place = f"class {label!r} to {side}"
        if (first := seen.setdefault(("" if manifest.paths else label, name), place)) is not place:
            raise ValueError(f"the image {name[:60]!r} is in {first} and in {place}")
    for label in manifest.class_names:
        if not label.strip() or not label.isprintable():
            raise ValueError(f"{label[:60]!r} cannot be the name of a class")
        if not manifest.split.train[label] or not manifest.split.test[label]:
            kind = "test" if manifest.split.train[label] else "training"
            raise ValueError(f"class {label!r} has no {kind} images")
