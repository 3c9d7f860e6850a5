"""Helpers of the learner tests: tasks of random images, and training on them."""

from collections.abc import Iterator, Sequence

import torch
from helpers.vit import tiny_vit
from torch import Tensor

from pilot_tal.config.settings import method_config
from pilot_tal.engine.loop import train_task
from pilot_tal.learners import LEARNERS, Learner, build_learner
from pilot_tal.losses import build_loss
from pilot_tal.schema import settings_of
from pilot_tal.stream.task import TaskInfo

METHODS = tuple(LEARNERS)
SMALL = {
    "l2p": {"size": 6, "length": 2, "top_k": 2},
    "dualprompt": {"size": 4, "length": 2, "g_prompt_length": 2},
    "coda_prompt": {"prompt_param": [12, 4, 0.0]},
    "lae": {"pet_length": 3, "num_freeze_epochs": 1, "ema_decay": 0.9, "init_lr": 0.01},
    "mos": {"crct_epochs": 2, "ffn_num": 4},
    "ranpac": {"ffn_num": 4, "M": 40, "init_lr": 0.1},
    "ease": {"ffn_num": 4, "init_lr": 0.1},
    "air": {"ffn_num": 4, "M": 40, "init_lr": 0.1},
    "fecam": {"ffn_num": 4, "init_lr": 0.1},
    "aper": {"ffn_num": 4, "init_lr": 0.1},
    "plda": {"ffn_num": 4, "init_lr": 0.1},
}


def task_info(sizes: Sequence[int], index: int) -> TaskInfo:
    first = sum(sizes[:index])
    return TaskInfo(index, len(sizes), first, first + sizes[index], (4,) * sizes[index])


def images(task: TaskInfo, per_class: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`per_class` images of every class of a task, shuffled; a class has a pattern of its own."""
    generator = torch.Generator().manual_seed(1000 * seed + task.index)
    y = torch.arange(task.first, task.stop).repeat(per_class)
    y = y[torch.randperm(len(y), generator=generator)]
    patterns = torch.stack([torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(int(c))) for c in y])
    return patterns + 0.5 * torch.randn(patterns.shape, generator=generator), y


def make(method: str, sizes: Sequence[int], fidelity: str = "pilot", backbone=None, **settings) -> Learner:
    values = {"batch_size": 5, "tuned_epoch": 2, **SMALL.get(method, {}), **settings}
    if "tuned_epoch" not in settings_of(LEARNERS[method].config_class):
        del values["tuned_epoch"]
    config = method_config(method, **values)
    return build_learner(method, backbone or tiny_vit(), config, sum(sizes), len(sizes), fidelity)


def batches(x: Tensor, y: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(x.split(size), y.split(size), strict=True)


def train(learner: Learner, sizes: Sequence[int], index: int, batch: int = 5, loss: str = "ce", **options) -> None:
    """Train one task, end of task included."""
    torch.manual_seed(index)
    task = task_info(sizes, index)
    x, y = images(task)
    train_task(
        learner,
        build_loss(loss),
        task,
        lambda epoch: batches(x, y, batch),
        epochs=learner.config.tuned_epoch,
        config=learner.config,
        device="cpu",
        **options,
    )
    learner.end_task(lambda: batches(x, y, batch))


def trained(method: str, sizes: Sequence[int], fidelity: str = "pilot", **settings) -> Learner:
    """A learner that has seen all of the tasks."""
    torch.manual_seed(0)
    learner = make(method, sizes, fidelity, **settings)
    for index in range(len(sizes)):
        train(learner, sizes, index)
    return learner


def test_images(sizes: Sequence[int], per_class: int = 3) -> tuple[Tensor, Tensor]:
    parts = [images(task_info(sizes, index), per_class, seed=1) for index in range(len(sizes))]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


test_images.__test__ = False
