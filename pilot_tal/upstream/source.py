"""A long-tailed set as a data source of the checkout."""

import copy
from types import ModuleType
from typing import Any

import numpy as np

from pilot_tal.upstream.job import Data
from pilot_tal.upstream.swap import Patches

CIFAR_SIDE = 32
VIT_SIDE = 224


class LongTailedSource:
    """What a `DataManager` asks of a data source; transforms are those of one of the checkout's own sources.

    Args:
        data: The images and their labels.
        template: A data source of the checkout, for its transforms.
        side: Side of the ViT's images, if it is not the checkout's 224.
    """

    use_path = True

    def __init__(self, data: Data, template: Any, side: int = VIT_SIDE):
        from torchvision import transforms

        # Sources made for CIFAR expect images of 32 × 32 pixels; ours come in any size.
        small = _is_small(data.template)
        before = [transforms.Resize((CIFAR_SIDE, CIFAR_SIDE))] if small else []
        after = [transforms.Resize((side, side), antialias=True)] if side != VIT_SIDE else []
        shrink = 1.0 if small else side / VIT_SIDE
        self.train_trsf = [*before, *(_shrunk(one, shrink) for one in template.train_trsf)]
        self.test_trsf = [*before, *(_shrunk(one, shrink) for one in template.test_trsf)]
        self.common_trsf = [*template.common_trsf, *after]
        self.class_order = list(range(len(data.class_names)))
        self._data = data

    def download_data(self) -> None:
        """Sets paths and labels; the images are on the disk already."""
        self.train_data, self.train_targets = _arrays(self._data.absolute("train"), self._data.labels("train"))
        self.test_data, self.test_targets = _arrays(self._data.absolute("test"), self._data.labels("test"))


def register_source(patches: Patches, data_manager: ModuleType, data: Data, side: int = VIT_SIDE) -> None:
    """Makes the checkout's `utils.data_manager` know the set under `data.alias`."""
    original = data_manager._get_idata

    def get(dataset_name: str, *args: Any) -> Any:
        if dataset_name == data.alias:
            return LongTailedSource(data, original(data.template, *args), side)
        return original(dataset_name, *args)

    patches.set(data_manager, "_get_idata", get)


def _shrunk(transform: Any, factor: float) -> Any:
    """The transform for images whose sides are shorter by a factor: crops and sizes are."""
    size = getattr(transform, "size", None)
    if size is None or factor == 1.0:
        return transform
    shrunk = copy.copy(transform)
    shrunk.size = int(size * factor) if isinstance(size, int) else type(size)(int(side * factor) for side in size)
    return shrunk


def _is_small(template: str) -> bool:
    return template.startswith("cifar") and "224" not in template


def _arrays(paths: list[str], labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(paths), np.array(labels, dtype=np.int64)
