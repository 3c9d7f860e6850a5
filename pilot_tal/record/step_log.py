"""The log of one task's training steps: kept on the device while it runs, plain lines when it is over."""

import math
from typing import Any

import torch
from torch import Tensor

from pilot_tal.losses import TaskLoss

MOST_STATES = 200
_VALUES = ("loss", "aux", "accuracy")


class StepLog:
    """Collects the steps of one task, and the loss's state at intervals.

    How many steps there will be is not known to every engine, so the states are thinned out as they come: every
    second one goes whenever there are too many. The last one always stays.
    """

    def __init__(self, criterion: TaskLoss):
        self.criterion = criterion
        self._steps: list[tuple[int, float | None, Tensor]] = []
        self._states: list[tuple[int, dict[str, Tensor]]] = []
        self._stride = 1

    def add(
        self,
        loss: Tensor,
        aux: Tensor | None = None,
        epoch: int = 0,
        lr: float | None = None,
        accuracy: Tensor | None = None,
    ) -> None:
        """Notes a step; nothing here waits for the device."""
        step = len(self._steps)
        values = [torch.full_like(loss, math.nan) if value is None else value for value in (loss, aux, accuracy)]
        self._steps.append((epoch, lr, torch.stack([value.detach().float() for value in values])))
        if step % self._stride == 0:
            self._keep(step)
        if len(self._states) > MOST_STATES:
            self._states, self._stride = self._states[::2], 2 * self._stride

    def steps(self) -> list[dict[str, Any]]:
        """One entry a step."""
        found = torch.stack([values for *_, values in self._steps]).tolist() if self._steps else []
        return [
            {"epoch": epoch, "step": step, **dict(zip(_VALUES, map(_plain, found[step]), strict=True)), "lr": lr}
            for step, (epoch, lr, _) in enumerate(self._steps)
        ]

    def states(self) -> list[dict[str, Any]]:
        """One entry for each state that was kept, and for the last one."""
        last = len(self._steps) - 1
        if self._states and self._states[-1][0] != last:
            self._keep(last)
        return [
            {"step": step, **{name: [_plain(value) for value in tensor.tolist()] for name, tensor in state.items()}}
            for step, state in self._states
        ]

    def _keep(self, step: int) -> None:
        if state := self.criterion.state_to_log():
            self._states.append((step, state))


def _plain(value: float) -> float | None:
    """Nine digits, which is all that float32 has; JSON has no NaN and no infinity."""
    return float(f"{value:.9g}") if math.isfinite(value) else None
