"""Logit adjustment (Menon et al., ICLR 2021)."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss
from pilot_tal.schema import Rule


@LOSSES.register
class LogitAdjustment(TaskLoss):
    """Cross-entropy on z_k + τ·log π_k, with π_k the share of class k in the task's training images.

    τ = 1 is the balanced softmax, τ = 0 cross-entropy.
    """

    name, title, prior = "logit_adjustment", "Logit adjustment", "class counts"
    tau: float

    def __init__(self, tau: Annotated[float, Rule("strength of the adjustment", 0, 100)] = 1.0):
        super().__init__(tau=tau)

    def class_values(self, counts: Tensor) -> Tensor:
        """τ·log π_k."""
        return self.tau * (counts / counts.sum()).log()

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy on z_k + τ·log π_k."""
        return F.cross_entropy(logits + values, targets)
