"""Two things that are particular to the recordings, kept out of the loss and the learner themselves."""

import torch
from torch import Tensor

from pilot_tal.learners.mos import MOS
from pilot_tal.tal import TAL
from pilot_tal.task import TaskInfo


class RecordedTAL:
    """TAL in the arithmetic of the recordings: Q and log-weights in float64, the loss in the logits' type.

    With Q at 0 the first losses of a task are about 1e-7, so their gradients are rounding steps of float32, and
    Adam blows a tiny gradient up to a full step. Another order of the same operations parts by 1e-2 at the end.
    """

    def __init__(self, tal: TAL):
        self.tal = tal

    def begin_task(self, task: TaskInfo) -> None:
        """Starts anew."""
        self.tal.begin_task(task)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """log Σ_k e^{z_k + ℓ_k} − z_y with ℓ_y = 0, averaged; then Q moves."""
        shift = self.tal.negative_weights().log().to(logits.dtype)
        shift = shift.expand(logits.shape).scatter(1, targets.unsqueeze(1), 0.0)
        true = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        loss = (torch.logsumexp(logits + shift, dim=1) - true).mean()
        self.tal(logits.detach(), targets)
        return loss


class RecordedMOS(MOS):
    """MOS (`fixed`) as it was recorded: the first optimizer step of the second task also moves the mean.

    LAMDA-PILOT keeps the sum of its first snapshot without copying it. Its own forward pass gives the current
    adapters new memory before that could matter; in the recorded runs the forward pass changes nothing, so the
    step writes into the sum as well, and the merge that follows finds nothing to pull.
    """

    _moved: list[Tensor] | None = None

    @torch.no_grad()
    def after_step(self) -> None:
        """Lets the mean follow the first step, then merges."""
        if self.task.index == 1 and self._moved is None and self.config.adapter_momentum > 0:
            self._moved = [part.detach().clone() for part in self.cur.parts]
            self._mean_parts = self.mean_parts(1)
        super().after_step()

    def mean_parts(self, count: int) -> list[Tensor]:
        """Mean of the first `count` snapshots, the first one as moved."""
        means = super().mean_parts(count)
        if self._moved is None:
            return means
        first = self.finished[0].parts
        return [m + (moved - part) / count for m, moved, part in zip(means, self._moved, first, strict=True)]
