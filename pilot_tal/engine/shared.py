"""What runs share: the images, the frozen backbone and the device, loaded once."""

from dataclasses import dataclass

import torch

from data_lt import LongTailedSet
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import load_backbone
from pilot_tal.config.settings import Hardware, RunConfig
from pilot_tal.engine.hardware import MOST_WORKERS, cores
from pilot_tal.stream.store import ImageStore


@dataclass(frozen=True)
class Shared:
    """Loaded for one run, and shared by all runs on the same images with the same backbone."""

    data: LongTailedSet
    backbone: FrozenBackbone
    store: ImageStore
    device: torch.device
    workers: int


def load_shared(
    config: RunConfig,
    hardware: Hardware,
    data: LongTailedSet,
    device: torch.device,
    backbone: FrozenBackbone | None = None,
) -> Shared:
    """Loads the frozen backbone, unless it is given, into the host's memory.

    Nothing here touches a GPU: a process that has done so may not be forked.
    """
    settings = config.settings
    backbone = backbone or load_backbone(settings.backbone, settings.weights, settings.img_size)
    store = ImageStore(data.root, data.frame["path"].tolist(), hardware.cache)
    workers = hardware.workers
    if workers is None:  # a CPU is busy with the backbone; a GPU waits for images
        workers = min(MOST_WORKERS, cores()) if device.type == "cuda" else 0
    return Shared(data, backbone, store, device, workers)
