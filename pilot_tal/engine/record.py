"""The log of the training steps: kept on the device while an epoch runs, written when the task is over."""

import json
import math
from pathlib import Path
from typing import Any

import torch

from pilot_tal.files import write_text
from pilot_tal.rundir import read_lines
from pilot_tal.training import StepInfo

TAL_LINES = 200  # at most so many a task


class StepLog:
    """Collects the steps of one task, and TAL's state at intervals."""

    def __init__(self, task: int, steps: int, criterion: torch.nn.Module):
        self.task, self.criterion = task, criterion
        self.stride = max(1, math.ceil(steps / TAL_LINES))
        self.last = steps - 1
        self.infos: list[StepInfo] = []
        self.states: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def add(self, info: StepInfo) -> None:
        """Notes a step; nothing here waits for the device."""
        self.infos.append(info)
        if hasattr(self.criterion, "negative_weights") and (info.step % self.stride == 0 or info.step == self.last):
            self.states.append((info.step, self.criterion.Q.clone(), self.criterion.negative_weights()))

    def step_lines(self) -> list[dict[str, Any]]:
        """One entry a step."""
        losses = torch.stack([torch.stack((i.loss.float(), i.aux.float())) for i in self.infos]).tolist()
        return [
            {"task": self.task, "epoch": i.epoch, "step": i.step, "loss": loss, "aux": aux, "lr": i.lr}
            for i, (loss, aux) in zip(self.infos, losses, strict=True)
        ]

    def tal_lines(self) -> list[dict[str, Any]]:
        """One entry for each state of TAL that was kept."""
        return [
            {
                "task": self.task,
                "step": step,
                "alpha": self.criterion.alpha,
                "Q": [round(q, 6) for q in strength.tolist()],
                "weights": [round(w, 6) for w in weights.tolist()],
            }
            for step, strength, weights in self.states
        ]


def extend_lines(path: Path, task: int, lines: list[dict[str, Any]]) -> None:
    """Writes the lines of `task` behind those of earlier tasks; what a broken run left of it is replaced."""
    kept = [line for line in read_lines(path) if line["task"] < task]
    write_text(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in [*kept, *lines]))
