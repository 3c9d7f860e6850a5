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
        self._epochs: list[tuple[int, float | None]] = []
        self._values: list[Tensor] = []
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
        step = len(self._values)
        self._epochs.append((epoch, lr))
        values = [torch.full_like(loss, math.nan) if value is None else value for value in (loss, aux, accuracy)]
        self._values.append(torch.stack([value.detach().float() for value in values]))
        if step % self._stride == 0:
            self._keep(step)
        if len(self._states) > MOST_STATES:
            self._states, self._stride = self._states[::2], 2 * self._stride

    def steps(self) -> list[dict[str, Any]]:
        """One entry a step."""
        values = torch.stack(self._values).tolist() if self._values else []
        return [
            {"epoch": epoch, "step": step, **dict(zip(_VALUES, map(_plain, found), strict=True)), "lr": lr}
            for step, ((epoch, lr), found) in enumerate(zip(self._epochs, values, strict=True))
        ]

    def states(self) -> list[dict[str, Any]]:
        """One entry for each state that was kept, and for the last one."""
        last = len(self._values) - 1
        if self._states and self._states[-1][0] != last:
            self._keep(last)
        return [
            {"step": step, **{name: [_plain(value) for value in tensor.tolist()] for name, tensor in state.items()}}
            for step, state in self._states
        ]

    def _keep(self, step: int) -> None:
        state = self.criterion.state_to_log()
        if state:
            self._states.append((step, state))


def _plain(value: float) -> float | None:
    """Nine digits, which is all that float32 has; JSON has no NaN and no infinity."""
    return float(f"{value:.9g}") if math.isfinite(value) else None
