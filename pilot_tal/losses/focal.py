"""Focal loss (Lin et al., ICCV 2017)."""

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import TaskLoss, check_range
from pilot_tal.losses.registry import register


@register("focal")
class Focal(TaskLoss):
    """−(1 − p_y)^γ · log p_y: well classified samples count less. γ = 0 is cross-entropy."""

    def __init__(self, gamma: float = 2.0):
        super().__init__()
        check_range("gamma", gamma, 0.0, 100.0, "between 0 and 100")
        self.gamma = gamma

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """−(1 − p_y)^γ · log p_y."""
        ce = F.cross_entropy(logits, targets, reduction="none")
        wrong = -(-ce).expm1()  # 1 − p_y, exact also where p_y is nearly 1
        # Its power has no finite slope at 0 for γ < 1, so it is kept just above.
        return (wrong.clamp(min=1e-12) ** self.gamma * ce).mean()
