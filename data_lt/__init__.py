"""Long-tailed training sets from the images a user has on disk."""

from data_lt.cards import CARDS, DatasetCard, register
from data_lt.manifest import Manifest, load_manifest, read_manifest
from data_lt.prepare import LongTailedSet, manifest_from_lists, prepare
from data_lt.split import LAWS, density_counts, exponential_counts, pareto_counts

__all__ = [
    "CARDS",
    "LAWS",
    "DatasetCard",
    "LongTailedSet",
    "Manifest",
    "density_counts",
    "exponential_counts",
    "load_manifest",
    "manifest_from_lists",
    "pareto_counts",
    "prepare",
    "read_manifest",
    "register",
]
