"""Class-balanced loss (Cui et al., CVPR 2019)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import TaskLoss, check_range
from pilot_tal.losses.registry import register


@register("class_balanced")
class ClassBalanced(TaskLoss):
    """Cross-entropy weighted by 1/E_y, with the effective number E_k = (1 − β^{n_k}) / (1 − β).

    The weights are scaled to a mean of 1 over the classes of the task.
    """

    def __init__(self, beta: float = 0.9999):
        super().__init__()
        check_range("beta", beta, 0.0, 1.0 - 1e-9, "at least 0 and below 1")
        self.beta = beta

    def class_weights(self) -> Tensor:
        """The weight of each class of the task."""
        # 1 − β^n = −expm1(n·log β): exact also for β near 1; in float64, so that it stays so.
        log_beta = torch.tensor(self.beta, dtype=torch.float64).log()
        weights = 1.0 / -torch.expm1(self.counts.double() * log_beta)
        return weights / weights.mean()

    def per_sample(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Weighted cross-entropy."""
        weights = self.class_weights().to(logits.dtype)
        return F.cross_entropy(logits, targets, reduction="none") * weights[targets]
