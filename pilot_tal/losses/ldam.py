"""LDAM: label-distribution-aware margins (Cao et al., NeurIPS 2019)."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss
from pilot_tal.schema import Rule


@LOSSES.register
class LDAM(TaskLoss):
    """Cross-entropy on s·z, after the true class gave up a margin Δ_y ∝ n_y^{−1/4}; the rarest gives up `margin`.

    The paper takes cosine logits and s = 30. The learners' logits are not cosines, so s is 1 unless set.
    """

    name, title, prior = "ldam", "LDAM", "class counts"
    margin: float
    scale: float

    def __init__(
        self,
        margin: Annotated[float, Rule("margin of the rarest class", 0, 100)] = 0.5,
        scale: Annotated[float, Rule("factor of the logits", 1e-6, 1e6)] = 1.0,
    ):
        super().__init__(margin=margin, scale=scale)

    def class_values(self, counts: Tensor) -> Tensor:
        """Δ_k."""
        return margins(counts, self.margin)

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy on the scaled logits, the margin taken from the true class."""
        return F.cross_entropy(self.scale * (logits - F.one_hot(targets, len(values)) * values), targets)


def margins(counts: Tensor, largest: float) -> Tensor:
    """Δ_k ∝ n_k^{−1/4}, scaled so that the rarest class has the largest."""
    rarity = counts**-0.25
    return rarity * (largest / rarity.max())
