"""Vector-scaling loss (Kini et al., NeurIPS 2021)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss
from pilot_tal.schema import Rule


@LOSSES.register
class VectorScaling(TaskLoss):
    """Cross-entropy on Δ_k·z_k + ι_k, with Δ_k = (n_k/n_max)^γ and ι_k = τ·log π_k.

    γ = 0 is the logit adjustment, γ = τ = 0 cross-entropy. The defaults are those of the authors' code.
    """

    name, title, prior = "vs", "VS", "class counts"
    gamma: float
    tau: float

    def __init__(
        self,
        gamma: Annotated[float, Rule("strength of the multiplicative adjustment", 0, 100)] = 0.3,
        tau: Annotated[float, Rule("strength of the additive adjustment", 0, 100)] = 1.0,
    ):
        super().__init__(gamma=gamma, tau=tau)

    def class_values(self, counts: Tensor) -> Tensor:
        """Δ_k and ι_k."""
        return torch.stack([(counts / counts.max()) ** self.gamma, self.tau * (counts / counts.sum()).log()])

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy on Δ_k·z_k + ι_k."""
        factor, shift = values
        return F.cross_entropy(factor * logits + shift, targets)
