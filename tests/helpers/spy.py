"""A learner and a loss from outside that write down everything they are given (see `make_numbered_images`)."""

import json
import os
from typing import Annotated

import torch
from torch import Tensor, nn

from pilot_tal.learners import LEARNERS, Learner
from pilot_tal.learners.config import TrainedConfig
from pilot_tal.losses import LOSSES, TaskLoss
from pilot_tal.schema import Rule


def note(what: str, **values) -> None:
    with open(os.environ["SPY_LOG"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"what": what, **values}) + "\n")


def numbers(x: Tensor) -> list[int]:
    """Which images these are."""
    red, green = (x[:, channel].mean(dim=(1, 2)) * 255 for channel in (0, 1))
    return (red.round() + 256 * green.round()).long().tolist()


def blue(x: Tensor) -> list[list[int]]:
    """The first row of each image's blue channel: tells the crop, the flip and the normalisation."""
    return (x[:, 2, 0] * 255).round().long().tolist()


@LEARNERS.register
class Spy(Learner):
    name, title = "spy", "Spy"
    config_class = TrainedConfig

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.weight = nn.Parameter(torch.zeros(1))
        note("build", draw=float(torch.rand(1)), fidelity=self.fidelity, tasks=self.num_tasks, classes=self.num_classes)

    def begin_task(self, task):
        super().begin_task(task)
        note(
            "begin_task", draw=float(torch.rand(1)), task=[task.first, task.stop, *task.counts], steps=task.epoch_steps
        )

    def begin_epoch(self, epoch, epochs):
        note("begin_epoch", epoch=epoch, epochs=epochs)

    def observe(self, x):
        note("observe", images=numbers(x), blue=blue(x))
        logits = torch.zeros(len(x), self.task.num_classes) + self.weight
        return logits, 0 * self.weight.sum() + 7

    def after_step(self):
        note("after_step", weight=float(self.weight))

    def end_task(self, images):
        for x, y in images():
            note("end_task", images=numbers(x), labels=y.tolist(), blue=blue(x))

    def scores(self, x, ids=None):
        note("scores", images=numbers(x), ids=ids.tolist(), blue=blue(x), grad=torch.is_grad_enabled())
        return torch.eye(self.seen)[torch.tensor(numbers(x)) % self.seen]

    def named_tensors(self):
        return {"weight": self.weight}


@LOSSES.register
class SpyLoss(TaskLoss):
    name, title = "spy_loss", "Spy's loss"

    def __init__(self, slope: Annotated[float, Rule("of the loss in the logits", 0, 10)] = 1.0):
        super().__init__(slope=slope)

    def begin_epoch(self, epoch, epochs):
        note("loss_epoch", epoch=epoch, epochs=epochs)

    def batch_loss(self, logits, targets, values):
        note("loss", targets=targets.tolist(), counts=values.tolist(), slope=self.slope, training=self.training)
        return self.slope * logits.mean() + 40
