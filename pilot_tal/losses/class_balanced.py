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

    def class_values(self, counts: Tensor) -> Tensor:
        """1/E_k, scaled to a mean of 1; 1 − β^n = −expm1(n·log β) is exact also for β near 1."""
        weights = 1.0 / -torch.expm1(counts * torch.tensor(self.beta, dtype=counts.dtype).log())
        return weights / weights.mean()

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Mean of the weighted cross-entropies."""
        return (F.cross_entropy(logits, targets, reduction="none") * values[targets]).mean()
