"""Balanced softmax (Ren et al., NeurIPS 2020)."""

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss


@LOSSES.register
class BalancedSoftmax(TaskLoss):
    """Softmax whose terms weigh as much as the classes have images: −log( n_y e^{z_y} / Σ_k n_k e^{z_k} )."""

    name, title, prior = "balanced_softmax", "Balanced softmax", "class counts"
    recommended = "best tail of a trained method, costs head accuracy"

    def class_values(self, counts: Tensor) -> Tensor:
        """log n_k."""
        return counts.log()

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy on z_k + log n_k."""
        return F.cross_entropy(logits + values, targets)
