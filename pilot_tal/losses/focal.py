"""Focal loss (Lin et al., ICCV 2017)."""

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss
from pilot_tal.schema import Rule


@LOSSES.register
class Focal(TaskLoss):
    """−(1 − p_y)^γ · log p_y: well classified samples count less. γ = 0 is cross-entropy."""

    name, title = "focal", "Focal"
    gamma: float

    def __init__(self, gamma: Annotated[float, Rule("how much well classified samples fade", 0, 100)] = 2.0):
        super().__init__(gamma=gamma)

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """−(1 − p_y)^γ · log p_y."""
        ce = F.cross_entropy(logits, targets, reduction="none")
        wrong = -(-ce).expm1()  # 1 − p_y, exact also where p_y is nearly 1
        # Its power has no finite slope at 0 for γ < 1, so it is kept just above.
        return (wrong.clamp(min=1e-12) ** self.gamma * ce).mean()
