"""SimpleCIL: the mean feature of every class on the frozen backbone; the nearest one by cosine. Nothing is trained."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pilot_tal.learners.base import LEARNERS, cosine_similarity
from pilot_tal.learners.closed_form import ClosedForm
from pilot_tal.learners.config import MethodConfig


@dataclass(frozen=True)
class SimpleCILConfig(MethodConfig):
    """All there is to set is how many images pass the ViT at once."""

    tuned_epoch: ClassVar[int] = 0
    drop_last: ClassVar[bool] = False


class Prototypes(ClosedForm):
    """A learner with the mean feature of every class, and the nearest one by cosine."""

    prototypes: Tensor

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """One prototype per class."""
        return {"prototypes": (classes, self.feature_dim)}

    def fit(self) -> None:
        """Takes the class means."""
        self.prototypes = self.moments.means.to(self.prototypes)

    def classify(self, features: Tensor) -> Tensor:
        """Cosine of the feature and every prototype."""
        return self.sigma * cosine_similarity(features, self.prototypes)

    def named_tensors(self) -> dict[str, Tensor]:
        """The prototypes, their scale, and the adapter, if there is one."""
        return super().named_tensors() | self.named_head(self.prototypes)


@LEARNERS.register
class SimpleCIL(Prototypes):
    """SimpleCIL (Zhou et al., IJCV 2024)."""

    name, title = "simplecil", "SimpleCIL"
    config_class = SimpleCILConfig
