"""The small random ViT and the random images on which `record.py` runs the originals."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

SHAPE = {"dim": 24, "heads": 4, "patch": 4, "img": 8}
STREAM = {"tasks": 3, "per": 4, "epochs": 3, "bs": 6}
TRAIN_IMAGES = (8, 6, 5, 3)  # per class of a task
TEST_IMAGES = 3
NOISE = (0.2, 0.7, 2.0)  # per task: RanPAC then chooses different ridges
Batch = tuple[Tensor, Tensor, Tensor]
Arrays = dict[str, np.ndarray]


def random_vit(depth: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights of a ViT under timm's names, large enough for tokens to differ."""
    from timm.models.vision_transformer import VisionTransformer

    vit = VisionTransformer(**vit_shape(depth), num_classes=0)
    return {
        name: float("norm" in name and name.endswith("weight")) + 0.15 * torch.randn(old.shape, generator=generator)
        for name, old in vit.state_dict().items()
    }


def vit_shape(depth: int) -> dict[str, Any]:
    """The arguments of the checkout's ViTs."""
    return {"img_size": SHAPE["img"], "patch_size": SHAPE["patch"], "embed_dim": SHAPE["dim"], "depth": depth,
            "num_heads": SHAPE["heads"], "mlp_ratio": 2}  # fmt: skip


class Batches(list):
    """A dataset that is its own loader: (index, images, labels) in a fixed order."""

    @property
    def labels(self) -> np.ndarray:
        return torch.cat([y for _, _, y in self]).numpy()


class Stream:
    """Takes the place of the checkout's data manager."""

    nb_tasks = STREAM["tasks"]

    def __init__(self, batch_size: int, generator: torch.Generator):
        per, side = STREAM["per"], SHAPE["img"]
        patterns = torch.randn(self.nb_tasks * per, 3, side, side, generator=generator)
        self.train: list[list[Batch]] = []
        self.test: list[Batch] = []
        for task in range(self.nb_tasks):
            classes = torch.arange(task * per, (task + 1) * per)
            labels = classes.repeat_interleave(torch.tensor(TRAIN_IMAGES))
            labels = labels[torch.randperm(len(labels), generator=generator)]
            columns = self._noisy(patterns, labels, task, generator)
            self.train.append(list(zip(*(column.split(batch_size) for column in columns), strict=True)))
            self.test.append(self._noisy(patterns, classes.repeat(TEST_IMAGES), task, generator))

    def _noisy(self, patterns: Tensor, labels: Tensor, task: int, generator: torch.Generator) -> Batch:
        noise = torch.randn(len(labels), *patterns.shape[1:], generator=generator)
        return torch.arange(len(labels)), patterns[labels] + NOISE[task] * noise, labels

    def get_task_size(self, task: int) -> int:
        return STREAM["per"]

    def get_dataset(self, classes: np.ndarray, source: str, mode: str, ret_data: bool = False) -> Any:
        tasks = range(int(classes[0]) // STREAM["per"], int(classes[-1]) // STREAM["per"] + 1)
        if source == "test":
            return Batches(self.test[task] for task in tasks)
        batches = Batches(batch for task in tasks for batch in self.train[task])
        if not ret_data:
            return batches
        columns = [torch.cat(column) for column in zip(*batches, strict=True)]  # MOS: one class in one batch
        own = columns[2] == int(classes[0])
        return None, None, Batches([tuple(column[own] for column in columns)])

    def arrays(self) -> Arrays:
        named: Arrays = {}
        for task, batches in enumerate(self.train):
            for name, (_, x, y) in [*((f"train{task}.{i}", b) for i, b in enumerate(batches)),
                                    (f"test{task}", self.test[task])]:  # fmt: skip
                named |= {f"{name}.x": x.numpy(), f"{name}.y": y.numpy()}
        return named
