"""Cross-entropy, the loss everything is compared with."""

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss


@LOSSES.register
class CrossEntropy(TaskLoss):
    """−log p_y."""

    name, title = "ce", "CE"

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """−log softmax(z)_y."""
        return F.cross_entropy(logits, targets)
