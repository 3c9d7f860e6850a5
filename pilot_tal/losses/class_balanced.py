"""Class-balanced loss (Cui et al., CVPR 2019)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss
from pilot_tal.schema import Rule


@LOSSES.register
class ClassBalanced(TaskLoss):
    """Cross-entropy weighted by 1/E_y, with the effective number E_k = (1 − β^{n_k}) / (1 − β).

    The weights are scaled to a mean of 1 over the classes of the task.
    """

    name, title, prior = "class_balanced", "Class-balanced", "class counts"
    beta: float

    def __init__(self, beta: Annotated[float, Rule("overlap of a class's images", 0, 1 - 1e-9)] = 0.9999):
        super().__init__(beta=beta)

    def class_values(self, counts: Tensor) -> Tensor:
        """1/E_k, scaled to a mean of 1."""
        return effective_weights(counts, self.beta)

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Mean of the weighted cross-entropies."""
        return (F.cross_entropy(logits, targets, reduction="none") * values[targets]).mean()


def effective_weights(counts: Tensor, beta: float) -> Tensor:
    """1/E_k, scaled to a mean of 1; 1 − β^n = −expm1(n·log β) is exact also for β near 1."""
    weights = 1.0 / -torch.expm1(counts * torch.tensor(beta, dtype=counts.dtype).log())
    return weights / weights.mean()
