"""The datasets: imbalance profile, sizes, source, licence and citation of each, from `cards.yaml`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from data_lt.errors import Registry

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class DatasetCard:
    """The facts of one long-tailed set; `classes`, `images` and `n_max` are None where the user's folder decides."""

    name: str
    title: str
    classes: int | None
    images: int | None
    n_max: int | None
    n_min: int
    test_per_class: int
    law: str = "profile"
    shape: float = 6.0
    seed: int = 1993
    file_list: str | None = None  # an official list of all files, `id path` per line, beside the images
    official_split: bool = False  # the test images come from the official test list, not from one merged pool
    class_names: Sequence[str] = ()  # where they are known and no manifest is shipped
    folders: Sequence[str] = ()  # names under which the images are looked for below the data root
    source: str = ""
    url: str | None = None
    checksum: str | None = None
    licence: str = ""
    citation: str = ""
    shipped: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)  # default settings of runs on this dataset
    make: Callable[[Path], None] | None = None  # creates the images below the data root unless they exist

    @property
    def archive(self) -> str:
        """The file name of the official archive."""
        return (self.url or "").rsplit("/", 1)[-1]

    @property
    def manifest_path(self) -> Path | None:
        """The manifest that comes with the project, if one does."""
        return _HERE / "manifests" / f"{self.name}.txt" if self.shipped else None


def _write_cifar100(data_root: Path) -> None:
    from data_lt.download import write_cifar100  # here: most callers have no archive to read

    write_cifar100(CARDS["cifar100_lt"], data_root)


def _draw_demo(data_root: Path) -> None:
    from data_lt.demo import build_demo  # here: most callers draw nothing

    build_demo(data_root)


CARDS: Registry[DatasetCard] = Registry("dataset")
register = CARDS.register
_MAKE = {"cifar100_lt": _write_cifar100, "demo_lt": _draw_demo}
for _name, _facts in yaml.safe_load((_HERE / "cards.yaml").read_text(encoding="utf-8")).items():
    register(DatasetCard(name=_name, make=_MAKE.get(_name), **_facts))
