"""LDAM: label-distribution-aware margins (Cao et al., NeurIPS 2019)."""

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import TaskLoss, check_range
from pilot_tal.losses.registry import register


@register("ldam")
class LDAM(TaskLoss):
    """Cross-entropy on s·z, after the true class gave up a margin Δ_y ∝ n_y^{−1/4}; the rarest gives up `margin`.

    The paper takes cosine logits and s = 30. The learners' logits are not cosines, so s is 1 unless set.
    """

    def __init__(self, margin: float = 0.5, scale: float = 1.0):
        super().__init__()
        check_range("margin", margin, 0.0, 100.0, "between 0 and 100")
        check_range("scale", scale, 1e-6, 1e6, "between 1e-6 and 1e6")
        self.margin, self.scale = margin, scale

    def class_values(self, counts: Tensor) -> Tensor:
        """Δ_k."""
        margins = counts**-0.25
        return margins * (self.margin / margins.max())

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy on the scaled logits, the margin taken from the true class."""
        given_up = F.one_hot(targets, logits.shape[1]) * values
        return F.cross_entropy(self.scale * (logits - given_up), targets)
