"""Linear: a head alone on the frozen backbone, trained as L2P trains its head. What do prompts add to it?"""

import torch
from torch import Tensor

from pilot_tal.backbone import FrozenBackbone
from pilot_tal.learners.base import LEARNERS, Learner, named_layer, vit_head
from pilot_tal.learners.config import TrainedConfig


@LEARNERS.register
class Linear(Learner):
    """A linear classifier, the rows of the current task's classes trained task by task."""

    name, title = "linear", "Linear"
    config_class = TrainedConfig
    needs = "features"
    linear_classifier = True

    def __init__(
        self, backbone: FrozenBackbone, config: TrainedConfig, num_classes: int, num_tasks: int, fidelity: str
    ):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.head = vit_head(backbone.dim, num_classes)

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; no auxiliary loss."""
        features = self.backbone.features(x)[:, 0]
        return self.task_logits(features, self.head), features.new_zeros(())

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits of all classes seen."""
        features = self.cache.get("query", ids, x, lambda images: self.backbone.features(images)[:, 0])
        return self.seen_logits(features, self.head)

    def named_tensors(self) -> dict[str, Tensor]:
        """The classifier."""
        return named_layer("backbone.head", self.head)
