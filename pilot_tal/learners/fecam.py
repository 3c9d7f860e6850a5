"""FeCAM: the nearest class mean by a Mahalanobis distance with a covariance of its own for every class."""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.backbone import FrozenBackbone
from pilot_tal.learners.base import LEARNERS
from pilot_tal.learners.closed_form import ClosedFormConfig
from pilot_tal.learners.simplecil import Prototypes
from pilot_tal.schema import Rule

USUAL_ALPHA = {"pilot": 100.0, "fixed": 1.0}


@dataclass(frozen=True)
class FeCAMConfig(ClosedFormConfig):
    """FeCAM's own settings."""

    adapter: Annotated[bool, Rule("train an adapter in the first task; false: no task trains")] = True
    alpha: Annotated[
        float | None,
        Rule("what is added to variances; null: 100 in `pilot`, the mean variance in `fixed`", above=0, high=1e6),
    ] = None


@LEARNERS.register
class FeCAM(Prototypes):
    """FeCAM (Goswami et al., NeurIPS 2023).

    A class's covariance has α added to its variances and becomes a correlation matrix. In `fixed` it is first averaged
    with the covariance that all classes share, which counts as many images as there are dimensions, and α is a multiple
    of the mean variance: the distances of a class of two images are then comparable with those of others.
    """

    name, title = "fecam", "FeCAM"
    config_class = FeCAMConfig
    scatter = "class"

    cov_mats: Tensor
    inverses: Tensor

    def __init__(self, backbone: FrozenBackbone, config: FeCAMConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.alpha = USUAL_ALPHA[fidelity] if config.alpha is None else config.alpha

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Prototypes, and a matrix per class with its inverse."""
        square = classes, self.feature_dim, self.feature_dim
        return {**super().shapes(classes), "cov_mats": square, "inverses": square}

    @torch.no_grad()
    def embedding(self, x: Tensor) -> Tensor:
        """Features; of length one in `fixed`, as in the authors' code."""
        features = super().embedding(x).float()
        return F.normalize(features, dim=1) if self.fidelity == "fixed" else features

    def fit(self) -> None:
        """Computes means and correlation matrices."""
        super().fit()
        shared = self.moments.pooled() / max(self.moments.freedom, 1)
        matrices = [self._matrix(label, shared) for label in range(self.moments.classes)]
        self.cov_mats = torch.stack(matrices).to(self.prototypes)
        self.tensors_replaced()

    def _matrix(self, label: int, shared: Tensor) -> Tensor:
        """Correlation matrix of a class, given the covariance that all classes share.

        LAMDA-PILOT passes the covariance to `corrcoef`, which expects observations: the result is the correlation
        of the covariance's rows.
        """
        factor, freedom = self.moments.factors[label], max(int(self.moments.counts[label]) - 1, 0)
        scatter, identity = factor.t() @ factor, torch.eye(self.feature_dim, dtype=shared.dtype)
        if self.fidelity == "pilot":
            return torch.corrcoef(scatter / max(freedom, 1) + self.alpha * identity)
        covariance = (scatter + self.feature_dim * shared) / (freedom + self.feature_dim)
        level = float(shared.diagonal().mean()) or 1.0  # no class has two images: any scale
        covariance += self.alpha * level * identity
        deviations = covariance.diagonal().sqrt()
        return covariance / deviations.unsqueeze(1) / deviations

    def tensors_replaced(self) -> None:
        """Inverts the matrices, of which LAMDA-PILOT's have no full rank."""
        super().tensors_replaced()
        self.inverses = torch.linalg.pinv(self.cov_mats, hermitian=True) if len(self.cov_mats) else self.cov_mats

    def classify(self, features: Tensor) -> Tensor:
        """Negative squared distances; in `pilot` of features and means of length one."""
        means = self.prototypes
        if self.fidelity == "pilot":
            features, means = F.normalize(features, dim=1), F.normalize(means, dim=1)
        apart = features.unsqueeze(0) - means.unsqueeze(1)
        return -(apart @ self.inverses * apart).sum(dim=2).t()

    def named_tensors(self) -> dict[str, Tensor]:
        """Adapter, prototypes, and the matrices, which LAMDA-PILOT leaves out of its state dict."""
        return super().named_tensors() | {"cov_mats": self.cov_mats}
