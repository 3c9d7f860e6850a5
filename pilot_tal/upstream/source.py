"""What a checkout gets from outside: a long-tailed set as a data source, and ViT weights from a file."""

import copy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from data_lt.errors import UserError, foreign_code
from pilot_tal.backbone.weights import read_state
from pilot_tal.upstream.job import Data
from pilot_tal.upstream.swap import Patches

CIFAR_SIDE = 32
VIT_SIDE = 224
_BACKBONE = ("patch_embed.", "cls_token", "pos_embed", "blocks.", "norm.")


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
        small = data.template.startswith("cifar") and "224" not in data.template
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
        self.train_data, self.train_targets = self._arrays(self._data.train)
        self.test_data, self.test_targets = self._arrays(self._data.test)

    def _arrays(self, split: list[tuple[str, int]]) -> tuple[np.ndarray, np.ndarray]:
        paths, labels = zip(*split, strict=True)
        return np.array([str(Path(self._data.root) / path) for path in paths]), np.array(labels, dtype=np.int64)


def register_source(patches: Patches, data_manager: ModuleType, data: Data, side: int = VIT_SIDE) -> None:
    """Makes the checkout's `utils.data_manager` know the set under `data.alias`."""
    original = data_manager._get_idata

    def get(dataset_name: str, *args: Any) -> Any:
        if dataset_name == data.alias:
            return LongTailedSource(data, original(data.template, *args), side)
        return original(dataset_name, *args)

    patches.set(data_manager, "_get_idata", get)


def load_vit_weights(model: Any, path: str | Path) -> None:
    """Fills a ViT as its own module would after a download; heads and prompts stay as they are.

    Args:
        model: A ViT of the checkout, or of timm 0.6.
        path: `.npz` in Google's JAX names, or a state dict (`.pth`, `.safetensors`) in timm's names.
    """
    path = Path(path)
    if path.suffix == ".npz":
        with foreign_code(f"the weights {path} do not fit {type(model).__name__}"):
            model.load_pretrained(str(path))
        return
    state = read_state(path)
    prepare = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if prepare is not None:  # resamples the positions, and repeats the first for prompt tokens
        state = prepare(state, model)
    own = model.state_dict()
    fitting = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    wanted = (name for name in own if name.startswith(_BACKBONE) and "ssf_" not in name)  # SSF trains its own
    missing = [name for name in wanted if name not in fitting]
    if missing:
        raise UserError(
            f"the weights {path} do not fit the ViT: {missing[0]} is missing or of another shape, "
            f"and so are {len(missing) - 1} more"
        )
    model.load_state_dict(fitting, strict=False)


def _shrunk(transform: Any, factor: float) -> Any:
    """The transform for images whose sides are shorter by a factor: crops and sizes are."""
    size = getattr(transform, "size", None)
    if size is None or factor == 1.0:
        return transform
    shrunk = copy.copy(transform)
    shrunk.size = int(size * factor) if isinstance(size, int) else type(size)(int(side * factor) for side in size)
    return shrunk
