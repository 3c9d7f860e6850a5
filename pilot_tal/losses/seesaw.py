"""Seesaw loss (Wang et al., CVPR 2021)."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.losses.base import LOSSES, TaskLoss, sum_over_ranks
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@LOSSES.register
class Seesaw(TaskLoss):
    """Cross-entropy in which class j weighs S_yj = M_yj·C_yj as a negative of class y.

    Mitigation M_yj = min(1, N_j/N_y)^p spares classes that were seen less often than y so far in this task, the
    present batch included; compensation C_yj = max(1, σ_j/σ_y)^q takes that back where j is taken for y. Neither
    passes a gradient. p = q = 0 is cross-entropy.
    """

    name, title, prior = "seesaw", "Seesaw", "online"
    p: float
    q: float
    seen: Tensor

    def __init__(
        self,
        p: Annotated[float, Rule("how much rarer classes are spared", 0, 100)] = 0.8,
        q: Annotated[float, Rule("how much a mistaken class is pushed", 0, 100)] = 2.0,
    ):
        super().__init__(p=p, q=q)
        self.register_buffer("seen", torch.zeros(0))

    def begin_task(self, task: TaskInfo) -> None:
        """Counts from 0."""
        super().begin_task(task)
        self.seen = self.seen.new_zeros(task.num_classes)

    def batch_loss(self, logits: Tensor, targets: Tensor, values: Tensor) -> Tensor:
        """Cross-entropy on z_j + log S_yj; log S is 0 for the true class, and σ_j/σ_y = e^{z_j − z_y}."""
        self.seen = self.seen.to(logits.device)
        if self.training:
            counts = torch.zeros_like(self.seen).scatter_add_(0, targets, self.seen.new_ones(len(targets)))
            sum_over_ranks(counts)
            self.seen += counts
        log_n, z = self.seen.clamp_min(1).log(), logits.detach()
        mitigation = (log_n - log_n[targets].unsqueeze(1)).clamp_max(0)
        compensation = (z - z.gather(1, targets.unsqueeze(1))).clamp_min(0)
        return F.cross_entropy(logits + self.p * mitigation + self.q * compensation, targets)
