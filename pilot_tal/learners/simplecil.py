"""SimpleCIL: the mean feature of every class on the frozen backbone; the nearest one by cosine. Nothing is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pilot_tal.backbone import FrozenBackbone
from pilot_tal.learners.base import cosine_similarity
from pilot_tal.learners.closed_form import ClosedForm
from pilot_tal.learners.config import MethodConfig
from pilot_tal.learners.moments import Moments
from pilot_tal.learners.registry import LEARNERS


@dataclass(frozen=True)
class SimpleCILConfig(MethodConfig):
    """All there is to set is how many images pass the ViT at once."""

    tuned_epoch: ClassVar[int] = 0
    drop_last: ClassVar[bool] = False


class Prototypes(ClosedForm):
    """A learner with the mean feature of every class, and the nearest one by cosine."""

    moments: Moments
    prototypes: Tensor

    def __init__(self, backbone: FrozenBackbone, config: MethodConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.register_buffer("prototypes", torch.zeros(0, self.feature_dim))

    def fit(self) -> None:
        """Takes the class means."""
        self.prototypes = self.moments.means.to(self.prototypes)

    def classify(self, features: Tensor) -> Tensor:
        """Cosine of the feature and every prototype."""
        return self.sigma * cosine_similarity(features, self.prototypes)

    def grow_to(self, stops: Sequence[int]) -> None:
        """Takes the shape after finished tasks."""
        super().grow_to(stops)
        self.prototypes = self.prototypes.new_zeros(stops[-1] if stops else 0, self.feature_dim)

    def named_tensors(self) -> dict[str, Tensor]:
        """The prototypes, their scale, and the adapter, if there is one."""
        return super().named_tensors() | self.named_head(self.prototypes)


@LEARNERS.register
class SimpleCIL(Prototypes):
    """SimpleCIL (Zhou et al., IJCV 2024)."""

    name, title = "simplecil", "SimpleCIL"
    config_class = SimpleCILConfig

    config: SimpleCILConfig  # type: ignore[assignment]
