"""Cross-entropy, the loss everything is compared with."""

import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import TaskLoss
from pilot_tal.losses.registry import register


@register("ce")
class CrossEntropy(TaskLoss):
    """−log p_y."""

    def per_sample(self, logits: Tensor, targets: Tensor) -> Tensor:
        """−log softmax(z)_y."""
        return F.cross_entropy(logits, targets, reduction="none")
