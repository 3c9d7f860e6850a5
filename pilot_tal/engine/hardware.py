"""Devices, threads and processes: what the hardware offers, and how runs share it."""

import os
import sys
from collections.abc import Sequence

import torch

from data_lt.errors import UserError
from pilot_tal.config.settings import AUTO, Hardware, RunConfig, StudyConfig
from pilot_tal.learners import LEARNERS

VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_WORKERS = 8  # processes that decode images for one run
GPU_EVAL_BATCH = 256  # images evaluated at a time on a GPU


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then Apple's MPS, then the CPU."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks the driver without starting CUDA
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == AUTO:
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
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def can_fork() -> bool:
    """On Linux, unless CUDA is in use here or the GPUs are MIG slices, which torch counts by starting CUDA."""
    return sys.platform == "linux" and "MIG-" not in os.environ.get(VISIBLE, "") and not torch.cuda.is_initialized()


def find_threads(study: StudyConfig) -> int | None:
    """Threads of each run: one if several runs share a CPU; None for all cores.

    Depends on the study alone, not on what is left of it or fits into memory: the same command gives the same bits
    on every resume.
    """
    hardware = study.hardware
    several = len(study.runs) > 1 and hardware.jobs != 1 and can_fork()
    if hardware.threads is None and several and choose_device(hardware.device).type == "cpu":
        return 1
    return hardware.threads


def find_gpus(hardware: Hardware) -> list[str]:
    """The GPUs asked for, as `CUDA_VISIBLE_DEVICES` names them; none on a CPU."""
    if choose_device(hardware.device).type != "cuda":
        if hardware.gpus is not None:
            raise UserError(f"gpus={','.join(map(str, hardware.gpus))}: there is no CUDA device to use; leave gpus out")
        return []
    visible = [name for name in os.environ.get(VISIBLE, "").split(",") if name]
    visible = visible or [str(number) for number in range(torch.cuda.device_count())]
    index = torch.device(hardware.device).index if hardware.device != AUTO else None
    wanted = hardware.gpus if hardware.gpus is not None else range(len(visible)) if index is None else [index]
    if missing := [number for number in wanted if number >= len(visible)]:
        raise UserError(f"gpus: there is no GPU {missing[0]}; this machine has {len(visible)}, numbered from 0")
    return [visible[number] for number in wanted]


def find_loaders(study: StudyConfig, gpus: Sequence[str]) -> int | None:
    """Processes that decode images for a run on a GPU: the runs at a time share the cores."""
    hardware = study.hardware
    if hardware.workers is not None or not gpus:
        return hardware.workers
    most = len(study.runs) if isinstance(hardware.jobs, str) else hardware.jobs
    at_a_time = min(len(gpus) * hardware.jobs_per_gpu, len(study.runs), most)
    return min(MOST_WORKERS, max(1, cores() // at_a_time))


def find_eval_batch(hardware: Hardware, config: RunConfig, device: torch.device) -> int:
    """Images of an evaluation step: as asked for; else on CUDA `GPU_EVAL_BATCH`, elsewhere `batch_size`."""
    asked, own = hardware.eval_batch_size, config.method_config.batch_size
    mixes = LEARNERS[config.method].mixes_batch(config.method_config, config.settings.fidelity)
    if mixes and asked not in (AUTO, own):
        raise UserError(
            f"eval_batch_size={asked}: what {config.method} predicts with fidelity={config.settings.fidelity} "
            f"depends on the batch, so it is evaluated as it is trained, {own} images at a time (batch_size); leave "
            "eval_batch_size out, or use fidelity=fixed"
        )
    if not isinstance(asked, str):
        return asked
    return max(own, GPU_EVAL_BATCH) if device.type == "cuda" and not mixes else own
