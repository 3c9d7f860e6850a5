"""Asymmetric cross-entropy of ER-ACE (Caccia et al., ICLR 2022)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss


@LOSSES.register
class AsymmetricCE(TaskLoss):
    """Softmax over the classes of the batch alone: −log( e^{z_y} / Σ_{k in the batch} e^{z_k} ).

    A class is a negative only where it is a positive of the same batch, so an absent one is never pushed away.
    """

    name, title = "ace", "ACE"

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy without the columns of absent classes."""
        absent = torch.ones_like(values, dtype=torch.bool).scatter(0, targets, False)
        return F.cross_entropy(logits.masked_fill(absent, -math.inf), targets)
