"""RanPAC: an adapter learned in the first task, then a ridge regression on random features, over all tasks."""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.learners.base import LEARNERS, cosine_similarity
from pilot_tal.learners.closed_form import ClosedForm, ClosedFormConfig
from pilot_tal.learners.moments import Moments
from pilot_tal.schema import Rule

RIDGES = tuple(10.0**power for power in range(-8, 9))
FITTED_SHARE = 0.8
LEAST_IMAGES = 5  # fewer choose no ridge once there is one


@dataclass(frozen=True)
class RanPACConfig(ClosedFormConfig):
    """RanPAC's own settings."""

    adapter: Annotated[bool, Rule("train an adapter in the first task; false: no task trains")] = True
    M: Annotated[int, Rule("random features", 1, 100_000)] = 10_000


def held_out_losses(hidden: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error on the last fifth of the rows, for every ridge, fitted on the rows before.

    All from one singular value decomposition. LAMDA-PILOT solves the normal equations for every ridge in float32, in
    which a small one is lost; where it is not, the two agree.

    Args:
        hidden: Random features [n, M].
        targets: One-hot labels [n, classes].
    """
    cut = (int(FITTED_SHARE * len(hidden)),)
    (seen, unseen), (wanted, expected) = (part.double().tensor_split(cut) for part in (hidden, targets))
    left, values, right = torch.linalg.svd(seen, full_matrices=False)
    projected, rotated = unseen @ right.t(), left.t() @ wanted
    factors = [values / (values.square() + ridge) for ridge in RIDGES]
    return torch.stack([F.mse_loss((projected * factor) @ rotated, expected) for factor in factors])


def compressed(rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """At most as many rows as columns, with the same rowsᵀ·rows and rowsᵀ·targets: all that the regression needs."""
    if len(rows) <= rows.shape[1]:
        return rows, targets
    basis, triangle = torch.linalg.qr(rows)
    return triangle, basis.t() @ targets


def ridge_weights(rows: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Weights W [classes, M] with W · (rowsᵀ·rows + ridge·I) = targetsᵀ·rows.

    Solved among the rows, which are fewer than the features on a long-tailed set: a second instead of minutes.
    """
    rows, targets = compressed(rows.double(), targets.double())
    kernel = rows @ rows.t()
    kernel.diagonal().add_(ridge)
    shares, failed = torch.linalg.solve_ex(kernel, targets)
    if bool(failed):
        raise UserError(f"the regression has no solution with the ridge {ridge:g}: are there images twice?")
    return (shares.t() @ rows).float()


class RandomFeatures(ClosedForm):
    """A ridge regression on random features relu(xW)."""

    config: RanPACConfig
    projection: Tensor
    weight: Tensor

    def __init__(self, backbone: FrozenBackbone, config: RanPACConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.ridge = 0.0
        self.register_buffer("projection", torch.randn(backbone.dim, config.M))

    def new_moments(self) -> Moments:
        """Statistics of random features without any image."""
        return Moments(self.config.M, self.scatter)

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """One row of weights per class."""
        return {"weight": (classes, self.config.M)}

    def hidden(self, features: Tensor) -> Tensor:
        """Random features [B, M]."""
        return F.relu(features @ self.projection)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Learns from features [n, dim] of images of new or known classes."""
        super().add(self.hidden(features.float()), labels)

    def classify(self, features: Tensor) -> Tensor:
        """Values of the regression."""
        return F.linear(self.hidden(features), self.weight)

    def named_tensors(self) -> dict[str, Tensor]:
        """Adapter, classifier, and the random projection, which LAMDA-PILOT leaves out of its state dict."""
        return super().named_tensors() | self.named_head(self.weight) | {"W_rand": self.projection}


@LEARNERS.register
class RanPAC(RandomFeatures):
    """RanPAC (McDonnell et al., NeurIPS 2023)."""

    name, title = "ranpac", "RanPAC"
    config_class = RanPACConfig
    scatter = "bounded"

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Chooses the ridge on these images, then adds them and solves for the weights of all classes."""
        if self.ridge == 0 or len(features) >= LEAST_IMAGES:
            order = self.shuffled(len(features))
            hidden = self.hidden(features.float()).cpu()[order]
            targets = F.one_hot(labels.cpu()[order], max(self.seen, int(labels.max()) + 1)).float()
            self.ridge = RIDGES[int(held_out_losses(hidden, targets).argmin())]
        super().add(features, labels)

    def shuffled(self, number: int) -> Tensor:
        """A random order of the task's images: the last fifth of it chooses the ridge."""
        return torch.randperm(number)

    def fit(self) -> None:
        """Solves the regression on the host, with one row per class mean and the factors of the scatter."""
        roots = self.moments.counts.double().sqrt()
        rows = torch.cat((roots.unsqueeze(1) * self.moments.means, *self.moments.factors))
        targets = F.pad(roots.diag(), (0, 0, 0, len(rows) - len(roots)))
        self.weight = ridge_weights(rows, targets, self.ridge).to(self.weight.device)

    def statistics(self) -> dict[str, Tensor]:
        """Adds the ridge, with which the removal of a class solves again."""
        return super().statistics() | {"ridge": torch.tensor(self.ridge, dtype=torch.float64)}

    def load_statistics(self, known: dict[str, Tensor]) -> None:
        """Takes over what `statistics` returned; earlier versions stored no ridge."""
        super().load_statistics(known)
        self.ridge = float(known.get("ridge", 0.0))

    def classify(self, features: Tensor) -> Tensor:
        """Values of the regression; in LAMDA-PILOT the cosine of random features and weights."""
        if self.fidelity == "fixed":
            return super().classify(features)
        return self.sigma * cosine_similarity(self.hidden(features), self.weight)
