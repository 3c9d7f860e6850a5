"""A split as data: a compact text file whose header names the law, the seed, the counts and a checksum.

    pilot-tal manifest 1
    {"dataset": "cub_lt", "law": "profile", …, "checksum": "…"}
    class<TAB>001.Black_footed_Albatross<TAB>60        the class, and how many images its pool has
    train<TAB>Black_Footed_Albatross_0037_796120.jpg
    test<TAB>Black_Footed_Albatross_0001_796111.jpg

An entry's path is `class/name`, whatever layout the images have on a disk. The checksum covers all else.
"""

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_lt.cards import CARDS
from data_lt.errors import UserError, command
from data_lt.files import given_path, write_text
from data_lt.split import Recipe, Split, problem_of

if TYPE_CHECKING:
    import pandas as pd

MAGIC = "pilot-tal manifest 1"


@dataclass(frozen=True)
class Manifest:
    """A split of the dataset `name`."""

    name: str
    split: Split

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
            **self.split.recipe.header,
            "classes": len(counts),
            "train": sum(counts),
            "test": sum(map(len, self.split.test.values())),
            "largest": max(counts),
            "smallest": min(counts),
        }

    @cached_property
    def checksum(self) -> str:
        """SHA-256 over the header and the entries."""
        return _checksum(self.header, self._body())

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

        rows = [
            (f"{name}/{file}", label, kind)
            for label, name in enumerate(self.class_names)
            for kind, files in (("train", self.split.train[name]), ("test", self.split.test[name]))
            for file in files
        ]
        return pd.DataFrame(rows, columns=["path", "label", "split"])

    def _body(self) -> str:
        lines = []
        for name in self.class_names:
            lines.append(f"class\t{name}\t{self.split.pool[name]}")
            lines += [f"train\t{file}" for file in self.split.train[name]]
            lines += [f"test\t{file}" for file in self.split.test[name]]
        return "\n".join(lines) + "\n"


def read_manifest(source: str | Path) -> Manifest:
    """Reads the shipped manifest of a dataset name, or a manifest file; one that was edited is refused."""
    path = _manifest_path(source)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read the manifest {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a manifest: it is not UTF-8 text") from error
    text = text.replace("\r\n", "\n")  # a checkout may have turned the line ends into Windows'
    magic, _, rest = text.partition("\n")
    if magic != MAGIC:
        raise UserError(f"{path} is not a manifest: its first line must be {MAGIC!r}, got {magic[:20]!r}")
    anew, problem = "build it anew", None
    try:
        header, _, body = rest.partition("\n")
        header = json.loads(header)
        name = header["dataset"].strip()
        anew += f" with {command('build', name)}" if name in CARDS else ""
        manifest = Manifest(name, _parse(header, body))
        if manifest.text() != text:  # checksum and all
            problem = f"its entries do not match its checksum {str(header.get('checksum'))[:12]}…"
        else:
            problem = problem_of(manifest.split)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        problem = "its lines cannot be read"
    if problem is None:
        return manifest
    raise UserError(f"the manifest {path} was edited or damaged: {problem}; {anew}")


def load_manifest(source: str | Path) -> "pd.DataFrame":
    """The split of a named dataset, or of a manifest file, as a table.

    Args:
        source: `"cub_lt"`, `"imagenetr_lt"`, `"food101_lt"`, or the path of a manifest.

    Returns:
        DataFrame with the columns `path` (`class/file`), `label` (alphabetical class index) and `split`
        (`train` or `test`).
    """
    return read_manifest(source).frame()


def _manifest_path(source: str | Path) -> Path:
    if isinstance(source, str) and source in CARDS:
        path = CARDS[source].manifest_path
        if path is None:
            raise UserError(f"no manifest is shipped for {source}: it is built from the images on your disk")
        return path
    path = given_path(source, "manifest")
    if not path.exists() and path.name == str(source) and not path.suffix:
        CARDS[str(source)]  # a bare word is a misspelt dataset name: says which names there are
    return path


def _checksum(header: dict[str, Any], body: str) -> str:
    canonical = json.dumps(header, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(f"{canonical}\n{body}".encode()).hexdigest()


def _parse(header: dict[str, Any], body: str) -> Split:
    recipe = Recipe(**{field.name: header[field.name] for field in fields(Recipe) if field.name != "rho"})
    split = Split(recipe=recipe, train={}, test={}, pool={})
    name = ""
    for line in body.rstrip("\n").split("\n"):
        kind, _, rest = line.partition("\t")
        if kind == "class":
            name, _, size = rest.rpartition("\t")
            split.pool[name], split.train[name], split.test[name] = int(size), [], []
        else:
            {"train": split.train, "test": split.test}[kind][name].append(rest)
    return split
