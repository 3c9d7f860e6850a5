"""The datasets: imbalance profile, sizes, source, licence and citation of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_lt.registry import Registry

MANIFESTS = Path(__file__).parent / "manifests"
CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


@dataclass(frozen=True)
class DatasetCard:
    """The facts of one long-tailed set.

    `classes`, `images` and `n_max` are None where the user's own folder decides. `make`, where given, is
    called with the data root before the images are looked for and puts them there unless they are there
    already: it draws them, or writes them from the official archive if that lies there.
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
    class_names: tuple[str, ...] = ()  # where they are known and no manifest is shipped
    folders: tuple[str, ...] = ()  # names under which the images are looked for below the data root
    file_list: str | None = None  # an official list of all files, `id path` a line, beside the images
    source: str = ""
    url: str | None = None
    checksum: str | None = None
    licence: str = ""
    citation: str = ""
    shipped: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)  # default settings of runs on this dataset
    make: Callable[[Path], None] | None = None

    @property
    def rho(self) -> float | None:
        """Imbalance n_max / n_min that the set is built for."""
        return None if self.n_max is None else self.n_max / self.n_min

    @property
    def archive(self) -> str:
        """The file name of the official archive."""
        return (self.url or "").rsplit("/", 1)[-1]

    @property
    def manifest_path(self) -> Path | None:
        """The manifest that comes with the project, if one does."""
        return MANIFESTS / f"{self.name}.txt" if self.shipped else None


CARDS: Registry[DatasetCard] = Registry("dataset")
register = CARDS.register


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
        checksum="sha256:0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
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
        url="https://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
        checksum="sha256:d97d15e438b7f4498f96086a4f7e2fa42a32f2712e87d3295441b2b6314053a4",
        licence="images belong to Foodspotting's users; scientific fair use only",
        citation="Bossard, Guillaumin, Van Gool: Food-101 - Mining Discriminative Components with Random "
        "Forests. ECCV 2014.",
        shipped=True,
    )
)


def _write_cifar100(data_root: Path) -> None:
    from data_lt.cifar import write_pictures  # here: most callers have no archive to read

    card = CARDS["cifar100_lt"]
    folder, archive = data_root / card.folders[0], data_root / card.archive
    if archive.exists() and not folder.exists():
        write_pictures(archive, card.checksum or "", folder, card.class_names)


register(
    DatasetCard(
        name="cifar100_lt",
        title="CIFAR100-LT",
        classes=100,
        images=60_000,
        n_max=500,
        n_min=5,
        test_per_class=100,
        law="exponential",
        official_split=True,
        class_names=tuple(CIFAR100_CLASSES.split()),
        folders=("cifar100",),
        source="https://www.cs.toronto.edu/~kriz/cifar.html",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        checksum="sha256:85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        licence="none is stated; the pictures were collected from the web by Tiny Images",
        citation="Krizhevsky: Learning Multiple Layers of Features from Tiny Images. Technical report, "
        "University of Toronto, 2009.",
        make=_write_cifar100,
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
        images=2_099,
        n_max=100,
        n_min=5,
        test_per_class=20,
        official_split=True,
        folders=("demo_lt",),
        source="drawn on this machine in the fonts that matplotlib brings along; no download",
        licence="free to use; the fonts are DejaVu and STIX",
        defaults={
            "backbone": "demo_vit",
            "weights": "bundled",
            "transform": "characters",  # no mirror images: a mirrored letter is another letter
        },
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
