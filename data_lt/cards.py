"""What is known of each dataset: its law and sizes, where its images come from, what they may be used for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pilot_tal.errors import PilotTalError, unknown_name

MANIFESTS = Path(__file__).parent / "manifests"


@dataclass(frozen=True)
class DatasetCard:
    """The facts of one long-tailed set.

    `classes`, `images` and `n_max` are None where the user's own folder decides. `make`, where given, is
    called with the data root before the images are looked for and puts them there unless they are there
    already; that is how a set that needs no download registers itself.
    """

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
    official_split: bool = False  # the test images come from the official test list, not from one merged pool
    folders: tuple[str, ...] = ()  # names under which the images are looked for below the data root
    file_list: str | None = None  # an official list of all files, `id path` a line, beside the images
    source: str = ""
    url: str | None = None
    checksum: str | None = None
    licence: str = ""
    citation: str = ""
    shipped: bool = False
    make: Callable[[Path], None] | None = None

    @property
    def rho(self) -> float | None:
        """Imbalance n_max / n_min that the set is built for."""
        return None if self.n_max is None else self.n_max / self.n_min

    @property
    def manifest_path(self) -> Path | None:
        """The manifest that comes with the project, if one does."""
        return MANIFESTS / f"{self.name}.txt" if self.shipped else None


CARDS: dict[str, DatasetCard] = {}


def register(card: DatasetCard) -> DatasetCard:
    """Makes a dataset known to `prepare` and to the command line under `card.name`."""
    if card.name in CARDS:
        raise PilotTalError(f"a dataset named {card.name!r} is registered already")
    CARDS[card.name] = card
    return card


def find_card(name: str) -> DatasetCard:
    """The card of the dataset `name`."""
    if name not in CARDS:
        raise unknown_name("dataset", name, CARDS)
    return CARDS[name]


register(
    DatasetCard(
        name="cub_lt",
        title="CUB-LT",
        classes=200,
        images=11_788,
        n_max=40,
        n_min=2,
        test_per_class=20,
        folders=("CUB_200_2011", "cub", "CUB"),
        file_list="images.txt",
        source="https://www.vision.caltech.edu/datasets/cub_200_2011/",
        url="https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        checksum="md5:97eceeb196236b17998738112f37df78",
        licence="images belong to their photographers; non-commercial research and education only",
        citation="Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 Dataset. "
        "Technical Report CNS-TR-2011-001, California Institute of Technology, 2011.",
        shipped=True,
    )
)
register(
    DatasetCard(
        name="imagenetr_lt",
        title="ImageNetR-LT",
        classes=200,
        images=30_000,
        n_max=405,
        n_min=5,
        test_per_class=25,
        folders=("imagenet-r", "imagenetr", "ImageNet-R"),
        source="https://github.com/hendrycks/imagenet-r",
        url="https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
        checksum="md5:a61312130a589d0ca1a8fca1f2bd3337",
        licence="the collection is published under the MIT licence; images belong to their artists",
        citation="Hendrycks et al.: The Many Faces of Robustness: A Critical Analysis of Out-of-Distribution "
        "Generalization. ICCV 2021.",
        shipped=True,
    )
)
register(
    DatasetCard(
        name="food101_lt",
        title="Food101-LT",
        classes=101,
        images=101_000,
        n_max=750,
        n_min=5,
        test_per_class=25,
        official_split=True,
        folders=("food-101", "food101", "Food-101"),
        source="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
        url="http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
        checksum="md5:85eeb15f3717b99a5da872d97d918f87",
        licence="images belong to Foodspotting's users; scientific fair use only",
        citation="Bossard, Guillaumin, Van Gool: Food-101 - Mining Discriminative Components with Random "
        "Forests. ECCV 2014.",
        shipped=True,
    )
)


def _draw_demo(data_root: Path) -> None:
    from data_lt.demo import build_demo  # here: most callers draw nothing

    build_demo(data_root)


register(
    DatasetCard(
        name="demo_lt",
        title="Demo-LT",
        classes=50,
        images=1_651,
        n_max=60,
        n_min=3,
        test_per_class=20,
        official_split=True,
        folders=("demo_lt",),
        source="drawn on this machine in the fonts that matplotlib brings along; no download",
        licence="free to use; the fonts are DejaVu and STIX",
        make=_draw_demo,
    )
)
register(
    DatasetCard(
        name="folder_lt",
        title="Folder-LT",
        classes=None,
        images=None,
        n_max=None,
        n_min=2,
        test_per_class=10,
        source="your own images: root/class/*.jpg, .jpeg, .png or .webp",
        licence="yours",
    )
)
