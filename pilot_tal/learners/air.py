"""AIR: a ridge regression on random features in which every class weighs equally, however many images it has."""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from pilot_tal.learners.base import LEARNERS
from pilot_tal.learners.moments import Moments
from pilot_tal.learners.ranpac import RandomFeatures, RanPACConfig, ridge_weights
from pilot_tal.schema import Rule

RIDGES = tuple(10.0 ** (power / 2) for power in range(-8, 17))


@dataclass(frozen=True)
class AIRConfig(RanPACConfig):
    """AIR's own settings."""

    adapter: Annotated[bool, Rule("train an adapter in the first task; false: no task trains")] = False
    M: Annotated[int, Rule("random features", 1, 100_000)] = 2_000


def balanced_rows(moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
    """Rows A and targets T that stand for all images, each weighted by 1/n_c, and the class of each row.

    AᵀA = Σ_c 1/n_c Σ_i h_i h_iᵀ, from the scatter and the mean of each class, and AᵀT = Σ_c m_c e_cᵀ.
    """
    counts, labels = moments.counts, torch.arange(moments.classes)
    lengths = torch.tensor([len(factor) for factor in moments.factors], dtype=torch.long)
    owners = torch.cat((labels[counts > 0], labels.repeat_interleave(lengths)))
    deviations = [factor / int(n) ** 0.5 for factor, n in zip(moments.factors, counts, strict=True) if n > 0]
    rows = torch.cat((moments.means[counts > 0], *deviations))
    targets = F.one_hot(owners, moments.classes).double()
    targets[int((counts > 0).sum()) :] = 0
    return rows, targets, owners


def leave_one_out(moments: Moments, hidden: Tensor, labels: Tensor) -> Tensor:
    """Squared error of the images, each predicted without itself, for every ridge; then the number of images.

    Exact and in closed form: the weight of the image goes to the others of its class, so that the class still weighs
    as much as any other. Every class counts equally; classes of one image are not predicted.

    Args:
        moments: Of the images so far, without these.
        hidden: Random features [n, M].
        labels: Their classes [n].

    Returns:
        [len(RIDGES) + 1]
    """
    known = moments.copy()
    known.grow(int(labels.max()) + 1)
    sizes = known.counts + labels.bincount(minlength=known.classes)
    old_rows, old_targets, old_owners = balanced_rows(known)
    # These images lower the weight of earlier ones.
    shares = (known.counts.double() / sizes.clamp_min(1)).sqrt()[old_owners].unsqueeze(1)
    weights = sizes[labels].double().rsqrt().unsqueeze(1)
    rows = torch.cat((weights * hidden.double(), shares * old_rows))
    targets = torch.cat((weights * F.one_hot(labels, known.classes), shares * old_targets))
    basis, values = _spectrum(rows)
    rotated, owners = basis.t() @ targets, torch.cat((labels, old_owners))
    errors = torch.zeros(len(RIDGES) + 1, dtype=torch.float64)
    for label in labels.unique().tolist():
        count, new, own = int(sizes[label]), int((labels == label).sum()), (owners == label).nonzero().squeeze(1)
        if count == 1:
            continue
        for place, ridge in enumerate(RIDGES):
            residuals = _left_out(basis[own], basis[own] / (values + ridge), rotated, targets[own], count)[:new]
            errors[place] += residuals.square().sum() * count / new
        errors[-1] += new
    return errors


def _left_out(basis: Tensor, scaled: Tensor, rotated: Tensor, targets: Tensor, count: int) -> Tensor:
    """Residual of each row of a class, fitted without it and with the others' weights times n/(n − 1).

    With H = P (λ + ridge)⁻¹ Pᵀ of the class's rows, the greater weights change fitted values and H by Woodbury's
    identity; leaving a row out then divides its residual by 1 − its leverage.
    """
    more = 1 / (count - 1)
    hat = scaled @ basis.t()
    system = torch.eye(len(hat), dtype=hat.dtype) + more * hat
    solved = torch.linalg.solve(system, torch.cat((scaled @ rotated + more * hat @ targets, hat), dim=1))
    fitted, hat = solved[:, : targets.shape[1]], solved[:, targets.shape[1] :]
    leverage = (1 + more) * hat.diagonal().unsqueeze(1)
    rest = 1 - leverage
    return torch.where(rest > 1e-9, (targets - fitted) / rest, torch.inf)  # below, rounding decides


def _spectrum(rows: Tensor) -> tuple[Tensor, Tensor]:
    """P and λ with rows (rowsᵀ rows + ridge I)⁻¹ rowsᵀ = P (λ + ridge)⁻¹ Pᵀ, from the smaller Gram matrix."""
    if len(rows) <= rows.shape[1]:
        values, vectors = torch.linalg.eigh(rows @ rows.t())
        values = values.clamp_min(0)
        return vectors * values.sqrt(), values
    values, vectors = torch.linalg.eigh(rows.t() @ rows)
    return rows @ vectors, values.clamp_min(0)


@LEARNERS.register
class AIR(RandomFeatures):
    """Analytic imbalance rectifier (Fang et al., 2024): RanPAC's classifier with balanced classes.

    The ridge is the one with the least squared error of images that are predicted without themselves, in closed form,
    summed over the tasks so far. LAMDA-PILOT has no version of it.
    """

    name, title = "air", "AIR"
    config_class = AIRConfig
    candidates = RIDGES
    scatter = "class"

    def validate(self, features: Tensor, labels: Tensor) -> Tensor:
        """Leave-one-out errors of every ridge."""
        return leave_one_out(self.moments, features.cpu(), labels)

    def fit(self) -> None:
        """Chooses the ridge and solves the regression, on the host."""
        self.ridge = RIDGES[int(self.validated[:-1].argmin())] if float(self.validated[-1]) else 1.0
        rows, targets, _ = balanced_rows(self.moments)
        self.weight = ridge_weights(rows, targets, self.ridge).to(self.weight.device)
