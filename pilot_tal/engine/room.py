"""What batches take of the memory, and so how many images are evaluated at a time."""

import torch

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.config.settings import AUTO, Machine, RunConfig
from pilot_tal.learners import LEARNERS

FLOATS_A_TOKEN = 16  # of one block of a frozen ViT, for each number that a token has
MOST_IMAGES = 512  # larger batches make no GPU faster
GPU_SHARE = 0.25  # of a GPU's memory that a batch of an evaluation may take; the rest is weights, caches and others


def training_bytes(vit: FrozenBackbone, images: int) -> int:
    """About what a training step keeps of a batch until its backward pass: something of every block."""
    return vit.depth * evaluation_bytes(vit, images)


def evaluation_bytes(vit: FrozenBackbone, images: int) -> int:
    """About what an evaluation takes at once: the work of one block."""
    return 4 * FLOATS_A_TOKEN * images * vit.tokens * vit.dim


def check_eval_batch(machine: Machine, config: RunConfig) -> None:
    """Refuses a number of images at a time that would change what is predicted."""
    asked, own = machine.eval_batch_size, config.method_config.batch_size
    if asked not in (AUTO, own) and _mixes(config):
        raise UserError(
            f"eval_batch_size={asked}: what {config.method} predicts with fidelity={config.settings.fidelity} depends "
            f"on the batch, so it is evaluated as it is trained, {own} images at a time (batch_size); leave "
            "eval_batch_size out, or use fidelity=fixed"
        )


def find_eval_batch(machine: Machine, config: RunConfig, vit: FrozenBackbone, device: torch.device) -> int:
    """Images of an evaluation step: as asked for; else on CUDA as many as its memory likes, elsewhere `batch_size`.

    The choice depends on the GPU's whole memory, not on what is free of it: two runs on GPUs of one kind choose alike.
    """
    own = config.method_config.batch_size
    if _mixes(config):
        return own
    if not isinstance(machine.eval_batch_size, str):
        return machine.eval_batch_size
    if device.type != "cuda":
        return own
    memory = GPU_SHARE * torch.cuda.get_device_properties(device).total_memory / machine.jobs_per_gpu
    fitting = int(memory // evaluation_bytes(vit, 1))
    return max(own, min(MOST_IMAGES, 1 << max(0, fitting.bit_length() - 1)))


def _mixes(config: RunConfig) -> bool:
    return LEARNERS[config.method].mixes_batch(config.method_config, config.settings.fidelity)
