"""Two things that are particular to the recordings, kept out of the loss and the learner themselves."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from pilot_tal.learners.mos import MOS
from pilot_tal.learners.mos_statistics import JITTER, ClassStatistics
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
    recorded: Mapping[int, ClassStatistics] = MappingProxyType({})
    """Centroids by class, where they were recorded: the outcome of a random clustering."""

    def describe(self, label: int, features: Tensor) -> ClassStatistics:
        """The recorded centroids of a class, or its own statistics."""
        return self.recorded[label] if label in self.recorded else super().describe(label, features)

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


def recorded_centroids(arrays: Mapping[str, Tensor]) -> dict[int, ClassStatistics]:
    """Statistics of the classes whose `class_mean.{c}` holds several centroids, from the arrays of a task."""
    found = {}
    for name, means in arrays.items():
        if name.startswith("class_mean.") and means.ndim == 2:
            label = name.removeprefix("class_mean.")
            variances = arrays[f"class_cov.{label}"].float() + JITTER
            found[int(label)] = ClassStatistics(means.float(), variances=variances)
    return found
