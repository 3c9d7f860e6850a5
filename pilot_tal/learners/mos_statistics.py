"""What MOS remembers of a class: where its features lie and how they spread, stored once, ready to draw from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

JITTER = 1e-4
MAX_ROUNDS = 300


@dataclass(frozen=True)
class ClassStatistics:
    """Means [k, dim] and the spread around them.

    Attributes:
        means: One mean, or one a centroid.
        factor: [r, dim] with covariance = factorᵀ factor + JITTER · I; r is at most the number of images less one
            and at most dim, so a class of few images costs little and nothing is ever decomposed again.
        variances: [k, dim], in place of `factor` for the two methods without covariances.
    """

    means: Tensor
    factor: Tensor | None = None
    variances: Tensor | None = None

    def drawable(self, skip_points: bool) -> list[int]:
        """Centroids to draw from; without those of no spread, if asked for and if any other is left."""
        every = list(range(len(self.means)))
        if not skip_points or self.variances is None:
            return every
        spread = (self.variances.mean(dim=1) > JITTER).tolist()
        return [k for k in every if spread[k]] or every

    def draw(self, centroid: int, number: int) -> Tensor:
        """`number` features [number, dim] from the normal distribution around a centroid."""
        mean = self.means[centroid]
        noise = torch.randn(number, len(mean), device=mean.device)
        if self.variances is not None:
            return mean + noise * self.variances[centroid].sqrt()
        factor = cast(Tensor, self.factor)
        spread = torch.randn(number, len(factor), device=mean.device) @ factor
        return mean + spread + JITTER**0.5 * noise

    def covariance(self) -> Tensor:
        """The covariance matrix [dim, dim]; the variances where there is none."""
        if self.variances is not None:
            return self.variances.squeeze(0)
        factor = cast(Tensor, self.factor)
        return factor.t() @ factor + JITTER * torch.eye(factor.shape[1], device=factor.device)

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors by name, for a checkpoint."""
        named = {"means": self.means, "factor": self.factor, "variances": self.variances}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClassStatistics":
        """The counterpart of `tensors`."""
        return cls(**tensors)


def class_statistics(features: Tensor, method: str, n_centroids: int) -> ClassStatistics:
    """Statistics of one class from its features [n, dim], n ≥ 1.

    A single image has no spread of its own: its covariance is the jitter alone.
    """
    mean = features.mean(dim=0, keepdim=True)
    centred = (features - mean) / max(len(features) - 1, 1) ** 0.5
    if method == "covariance":
        factor = torch.linalg.qr(centred, mode="r").R if len(features) > features.shape[1] else centred
        return ClassStatistics(mean, factor=factor if len(features) > 1 else factor[:0])
    if method == "variance":
        return ClassStatistics(mean, variances=centred.square().sum(dim=0, keepdim=True) + JITTER)
    labels = k_means(features, min(n_centroids, len(features)))
    clusters = [features[labels == k] for k in labels.unique()]
    means = torch.stack([cluster.mean(dim=0) for cluster in clusters])
    variances = torch.stack([cluster.var(dim=0, correction=0) for cluster in clusters])
    return ClassStatistics(means, variances=variances + JITTER)


def k_means(points: Tensor, clusters: int) -> Tensor:
    """Labels [n] of Lloyd's algorithm from a k-means++ start; clusters may end up empty."""
    centres = points[torch.randint(len(points), (1,), device=points.device)]
    while len(centres) < clusters:
        nearest = torch.cdist(points, centres).amin(dim=1).square()
        weights = nearest if bool(nearest.sum() > 0) else torch.ones_like(nearest)
        centres = torch.cat((centres, points[torch.multinomial(weights, 1)]))
    labels = torch.cdist(points, centres).argmin(dim=1)
    for _ in range(MAX_ROUNDS):
        occupied = labels.unique()
        centres = torch.stack([points[labels == k].mean(dim=0) for k in occupied])
        moved = occupied[torch.cdist(points, centres).argmin(dim=1)]
        if torch.equal(moved, labels):
            break
        labels = moved
    return labels
