"""LDAM with deferred re-weighting (Cao et al., NeurIPS 2019)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss
from pilot_tal.losses.class_balanced import effective_weights
from pilot_tal.losses.ldam import margins
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@LOSSES.register
class DeferredLDAM(TaskLoss):
    """LDAM; in the last epochs of a task a sample weighs 1/E_y, as in the class-balanced loss.

    The mean is a weighted one, as in the authors' code. Epochs are set by `begin_epoch`; without it nothing is
    re-weighted.
    """

    name, title, prior = "ldam_drw", "LDAM-DRW", "class counts"
    margin: float
    scale: float
    beta: float
    share: float

    def __init__(
        self,
        margin: Annotated[float, Rule("margin of the rarest class", 0, 100)] = 0.5,
        scale: Annotated[float, Rule("factor of the logits", 1e-6, 1e6)] = 1.0,
        beta: Annotated[float, Rule("overlap of a class's images", 0, 1 - 1e-9)] = 0.9999,
        share: Annotated[float, Rule("share of the epochs that are re-weighted, the last ones", 0, 1)] = 0.2,
    ):
        super().__init__(margin=margin, scale=scale, beta=beta, share=share)
        self._reweighted = False

    def begin_task(self, task: TaskInfo) -> None:
        """Without weights at first."""
        super().begin_task(task)
        self._reweighted = False

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Re-weights from epoch (1 − share)·epochs on, rounded down."""
        self._reweighted = epoch >= int((1 - self.share) * epochs + 1e-9)

    def class_values(self, counts: Tensor) -> Tensor:
        """Δ_k, and the weights 1/E_k, scaled to a mean of 1."""
        return torch.stack([margins(counts, self.margin), effective_weights(counts, self.beta)])

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """LDAM, weighted towards the end."""
        given_up, weights = values
        logits = self.scale * (logits - F.one_hot(targets, len(given_up)) * given_up)
        return F.cross_entropy(logits, targets, weight=weights if self._reweighted else None)
