"""What the runs of a plan share: the images, the frozen ViT and the device, loaded once."""

import os
from dataclasses import dataclass

import torch

from data_lt import LongTailedSet, prepare
from data_lt.errors import UserError
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import load_backbone
from pilot_tal.config.settings import DataConfig, Machine, RunConfig
from pilot_tal.stream.store import ImageStore

MOST_WORKERS = 8


@dataclass(frozen=True)
class Shared:
    """Loaded for one run, and good for every other one on the same images with the same ViT."""

    data: LongTailedSet
    backbone: FrozenBackbone
    store: ImageStore
    device: torch.device
    workers: int


def find_data(dataset: str, options: DataConfig, data_root: str) -> LongTailedSet:
    """Finds the images; says what is missing."""
    return prepare(dataset, data_root, options)


def load_shared(
    config: RunConfig,
    machine: Machine,
    data: LongTailedSet,
    device: torch.device,
    backbone: FrozenBackbone | None = None,
) -> Shared:
    """Loads the frozen ViT, into the host's memory, unless it is given.

    Nothing here touches a GPU: a process that has may not be forked.
    """
    settings = config.settings
    backbone = backbone or load_backbone(settings.backbone, settings.weights, settings.img_size)
    store = ImageStore(data.root, data.frame["path"].tolist(), machine.cache)
    workers = machine.workers
    if workers is None:  # a CPU is busy with the ViT; a GPU waits for images
        workers = min(MOST_WORKERS, cores()) if device.type == "cuda" else 0
    return Shared(data, backbone, store, device, workers)


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks the driver without starting CUDA
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    device = torch.device(name)
    if not available[device.type] or (device.index or 0) >= max(1, torch.cuda.device_count()):
        raise UserError(f"device={name}: this machine has no {name}; use device=cpu or device=auto")
    return device


def has_bf16(device: torch.device) -> bool:
    """Whether the hardware multiplies in bf16: GPUs since Ampere, CPUs with AVX512-BF16 or AMX."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    known: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # not in older versions of torch
    return device.type == "cpu" and any(known.get(name) for name in ("avx512_bf16", "amx_bf16"))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
