"""A loss that goes wrong in its second task, in a way one may choose. It looks like cross-entropy otherwise."""

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import torch.nn.functional as F

from data_lt.errors import UserError
from pilot_tal.losses import LOSSES, TaskLoss
from pilot_tal.schema import Rule

WAYS = ("never", "sentence", "bug", "killed", "killed_once", "sleeps")


@LOSSES.register
class Faulty(TaskLoss):
    name, title = "faulty", "Faulty"

    def __init__(self, way: Annotated[str, Rule("how it goes wrong", choices=WAYS)] = "never"):
        super().__init__(way=way)
        self.task = 0

    def begin_task(self, task):
        super().begin_task(task)
        self.task = task.index

    def batch_loss(self, logits, targets, values):
        if self.task == 1:
            self._go_wrong()
        return F.cross_entropy(logits, targets)

    def _go_wrong(self):
        if self.way == "sentence":
            raise UserError("this loss has had enough")
        if self.way == "bug":
            raise RuntimeError("nobody has\nthought of this")
        if self.way == "sleeps":
            self._sleep(Path(os.environ["FAULTY"]))
        first = Path(os.environ.get("FAULTY", ".")) / f"{self.way}"
        if self.way == "killed" or (self.way == "killed_once" and not first.exists()):
            first.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def _sleep(folder: Path):
        """Long, and says so; after `wake` only for a moment."""
        if not (folder / "wake").exists():
            (folder / f"asleep-{os.getpid()}").touch()
            time.sleep(600)
