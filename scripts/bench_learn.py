"""How long a session of `pilot-tal learn` with PLDA takes after 10, 100 and 1,000 classes, on random features.

    python scripts/bench_learn.py [BACKBONE]

Prints the CPU seconds of the forward passes of a session of 10 classes with 20 images each, and of the rest.
"""

import sys
import time
from typing import Any

import torch

from pilot_tal.api import create_learner
from pilot_tal.backbone.load import load_backbone
from pilot_tal.stream.task import TaskInfo

NEW, IMAGES, MEASURED = 10, 20, 32


def main(name: str) -> None:
    """Prints one line per number of classes learned before."""
    torch.set_num_threads(1)
    vit = load_backbone(name, "random")
    with torch.no_grad():
        started = time.process_time()
        vit.features(torch.rand(MEASURED, 3, *vit.img_size), 3)
        forward = (time.process_time() - started) / MEASURED * NEW * IMAGES
    print(f"{name}: forward passes of {NEW * IMAGES} images {forward:.1f} s")
    for before in (10, 100, 1000):
        learner: Any = create_learner("plda", vit, before + NEW, 2)
        for task, (first, stop) in enumerate(((0, before), (before, before + NEW))):
            learner.begin_task(TaskInfo(task, 2, first, stop, (IMAGES,) * (stop - first)))
            features, labels = random_features(first, stop, learner.feature_dim)
            if task == 0:  # not measured
                learner.moments.add(features, labels)
                learner.validated += len(features)
                continue
            started = time.process_time()
            learner.add(features, labels)
            seconds = time.process_time() - started
        size = sum(tensor.nbytes for tensor in learner.checkpoint_state().values()) / 1e6
        times = 1 + seconds / forward
        print(f"after {before:,} classes: {seconds:.1f} s, in all {times:.2f} times the forward passes; {size:.0f} MB")


def random_features(first: int, stop: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features around a mean per class, of length one."""
    generator = torch.Generator().manual_seed(first)
    labels = torch.arange(first, stop).repeat_interleave(IMAGES)
    means = torch.randn(stop - first, dim, generator=generator)
    noise = torch.randn(len(labels), dim, generator=generator)
    return torch.nn.functional.normalize(means[labels - first] + noise, dim=1), labels


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "vit_small_patch16_224.augreg_in21k")
