"""Logit adjustment (Menon et al., ICLR 2021)."""

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import TaskLoss, check_range
from pilot_tal.losses.registry import register


@register("logit_adjustment")
class LogitAdjustment(TaskLoss):
    """Cross-entropy on z_k + τ·log π_k, with π_k the share of class k in the task's training images.

    τ = 1 is the balanced softmax, τ = 0 cross-entropy.
    """

    def __init__(self, tau: float = 1.0):
        super().__init__()
        check_range("tau", tau, 0.0, 100.0, "between 0 and 100")
        self.tau = tau

    def class_values(self, counts: Tensor) -> Tensor:
        """τ·log π_k."""
        return self.tau * (counts / counts.sum()).log()

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy on z_k + τ·log π_k."""
        return F.cross_entropy(logits + values, targets)
