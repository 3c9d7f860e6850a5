"""SimpleCIL: the mean feature of every class on the frozen backbone; the nearest one by cosine. Nothing is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pilot_tal.backbone import FrozenBackbone
from pilot_tal.learners.base import Images, Learner, class_means, cosine_similarity
from pilot_tal.learners.config import MethodConfig
from pilot_tal.learners.registry import LEARNERS
from pilot_tal.stream.task import TaskInfo


@dataclass(frozen=True)
class SimpleCILConfig(MethodConfig):
    """All there is to set is how many images pass the ViT at once."""

    tuned_epoch: ClassVar[int] = 0
    drop_last: ClassVar[bool] = False


@LEARNERS.register
class SimpleCIL(Learner):
    """SimpleCIL (Zhou et al., IJCV 2024)."""

    name, title = "simplecil", "SimpleCIL"
    config_class = SimpleCILConfig
    needs = "features"

    config: SimpleCILConfig
    prototypes: Tensor
    sigma: Tensor

    def __init__(
        self, backbone: FrozenBackbone, config: SimpleCILConfig, num_classes: int, num_tasks: int, fidelity: str
    ):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.register_buffer("prototypes", torch.zeros(0, backbone.dim))
        self.register_buffer("sigma", torch.ones(1))  # the original's scale of the cosines, never trained

    def begin_task(self, task: TaskInfo) -> None:
        """Makes room for the task's prototypes."""
        super().begin_task(task)
        self.prototypes = torch.cat((self.prototypes, self.prototypes.new_zeros(task.num_classes, self.backbone.dim)))

    @torch.no_grad()
    def end_task(self, images: Images) -> None:
        """Learns the task's prototypes."""
        device = self.prototypes.device
        batches = [(self.backbone.features(x.to(device))[:, 0], y.to(device)) for x, y in images()]
        features, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        self.prototypes[self.task.first :] = class_means(features, labels, range(self.task.first, self.task.stop))

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Cosine of the feature and every prototype."""
        features = self.cached_features(x, ids)
        return self.sigma * cosine_similarity(features, self.prototypes[: self.seen])

    def grow_to(self, stops: Sequence[int]) -> None:
        """Makes room for the prototypes of finished tasks."""
        super().grow_to(stops)
        self.prototypes = self.prototypes.new_zeros(stops[-1] if stops else 0, self.backbone.dim)

    def named_tensors(self) -> dict[str, Tensor]:
        """The prototypes and their scale."""
        return {"fc.weight": self.prototypes, "fc.sigma": self.sigma}
