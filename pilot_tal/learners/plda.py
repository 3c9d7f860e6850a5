"""PLDA: a Bayesian classifier in closed form that knows how uncertain the mean of a rare class is."""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.learners.base import LEARNERS
from pilot_tal.learners.closed_form import ClosedForm, ClosedFormConfig
from pilot_tal.learners.moments import Moments
from pilot_tal.schema import Rule

AUTO = "auto"
DEFAULT_SHRINKAGE = 0.7
SHRINKAGES = tuple(step / 10 for step in range(1, 10))
FOLDS, LEAST_HELD_OUT, ENOUGH_HELD_OUT = 5, 50, 2000
MOST_DENSITIES = 2000


@dataclass(frozen=True)
class PLDAConfig(ClosedFormConfig):
    """PLDA's own settings."""

    layers: Annotated[int, Rule("use CLS of this many last blocks of the ViT", 1, 1000)] = 3
    shrinkage: Annotated[
        float | str, Rule("of the within-class covariance; auto: by cross-validation", above=0, high=1, words=(AUTO,))
    ] = AUTO
    removable: Annotated[bool, Rule("keep the scatter per class, so that a class can be removed exactly")] = True


@dataclass(frozen=True)
class Predictive:
    """Predictive normal distributions of all classes in the basis that makes them diagonal.

    Attributes:
        centre: Mean of the class means [dim].
        basis: Whitens the within-class noise and diagonalises the class means [dim, k].
        means, log_variances: Of each class [classes, k]; beyond k every class has mean 0 and variance 1.
        log_volume: log |det| of the whitening, for densities.
        precisions: Of the within-class noise along its eigenvectors [dim].
    """

    centre: Tensor
    basis: Tensor
    means: Tensor
    log_variances: Tensor
    log_volume: float = 0.0
    precisions: Tensor | None = None

    def scores(self, x: Tensor) -> Tensor:
        """−½ Σ [(x − mean_c)²/v_c + log v_c] of features [B, dim], for each class."""
        x = (x - self.centre) @ self.basis[:, : self.means.shape[1]]
        precision = (-self.log_variances).exp()
        distance = x.square() @ precision.t() - 2 * x @ (self.means * precision).t()
        return -0.5 * (distance + (self.means.square() * precision + self.log_variances).sum(dim=1))

    def log_density(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Log of the density [B] of features under a uniform mixture of the classes.

        Args:
            x: Features [B, dim].
            lengths: Squared lengths [B] of x − centre after whitening.
        """
        within = ((x - self.centre) @ self.basis[:, : self.means.shape[1]]).square().sum(dim=1)
        mixture = self.scores(x).logsumexp(dim=1) - math.log(len(self.means))
        return mixture - 0.5 * (lengths - within + x.shape[1] * math.log(2 * math.pi)) + self.log_volume


def within_class(moments: Moments) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the pooled within-class covariance."""
    return torch.linalg.eigh(moments.pooled() / max(moments.freedom, 1))


def predictive(moments: Moments, within: tuple[Tensor, Tensor], shrinkage: float, complete: bool = False) -> Predictive:
    """PLDA's predictive distributions (Ioffe 2006; Prince and Elder 2007).

    Class means are draws from N(μ, B) and images draws around them with a shared covariance W.

    Args:
        moments: Statistics of the images.
        within: Of `within_class`.
        shrinkage: s of (1 − s) W + s · tr(W)/dim · I.
        complete: Return a basis of all directions; else only of those in which class means differ.
    """
    values, vectors = within
    counts, present = moments.counts.double().unsqueeze(1), moments.counts > 0
    centre = moments.means[present].mean(dim=0)
    level = float(values.clamp_min(0).mean())
    if level == 0:  # no class has two images: half of the variance of the means counts as noise
        level = float((moments.means - centre)[present].square().mean()) / 2 or 1.0
    scale = ((1 - shrinkage) * values.clamp_min(0) + shrinkage * level).rsqrt()
    whitening = vectors * scale
    whitened = (moments.means - centre) @ whitening * present.unsqueeze(1)
    _, lengths, directions = torch.linalg.svd(whitened, full_matrices=complete)
    noise = counts[present].reciprocal().mean()
    between = (lengths.square() / int(present.sum()) - noise).clamp_min(0)
    k = len(between)
    gain = counts * between / (1 + counts * between)
    return Predictive(
        centre,
        whitening @ directions.t(),
        gain * (whitened @ directions[:k].t()),
        (between / (1 + counts * between)).log1p(),
        float(scale.log().sum()),
        scale.square(),
    )


def fold_numbers(labels: Tensor) -> Tensor:
    """Fold of each image: the images of a class are dealt out in turn, each class starting at another fold."""
    folds = torch.zeros_like(labels)
    for place, label in enumerate(labels.unique().tolist()):
        own = labels == label
        folds[own] = (torch.arange(int(own.sum())) + place) % FOLDS
    return folds


def cross_validated(moments: Moments, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-validates every shrinkage; the classes already in `moments` compete.

    Classes of one image are never held out.

    Returns:
        Sum over classes of the accuracy on held-out images, and their number at the end [len(SHRINKAGES) + 1]; and the
        log-densities of held-out images [len(SHRINKAGES), images].
    """
    total = torch.zeros(len(SHRINKAGES) + 1, dtype=torch.float64)
    densities = [total.new_zeros(len(SHRINKAGES), 0)]
    folds, sizes = fold_numbers(labels), labels.bincount()
    eligible = sizes[labels] > 1
    for fold in range(FOLDS):
        held = (folds == fold) & eligible
        if not bool(held.any()):
            continue
        known = moments.copy()
        known.grow(len(sizes))
        known.add(features[~held], labels[~held])
        within = within_class(known)
        weights = 1 / sizes[labels[held]].double()  # so that every class weighs equally
        x = features[held].double()
        density = total.new_zeros(len(SHRINKAGES), len(x))
        for place, shrinkage in enumerate(SHRINKAGES):
            found = predictive(known, within, shrinkage)
            guesses = found.scores(x).argmax(dim=1)
            total[place] += (weights * (guesses == labels[held])).sum()
            assert found.precisions is not None
            lengths = ((x - found.centre) @ within[1]).square() @ found.precisions
            density[place] = found.log_density(x, lengths)
        total[-1] += len(x)
        densities.append(density)
    return total, torch.cat(densities, dim=1)


def best_shrinkage(total: Tensor) -> float:
    """The shrinkage of the best accuracy; of equals the one nearest to the default, which also serves few images."""
    if float(total[-1]) < LEAST_HELD_OUT:
        return DEFAULT_SHRINKAGE
    ranked = zip(total[:-1].tolist(), SHRINKAGES, strict=True)
    return max(ranked, key=lambda pair: (round(pair[0], 9), -abs(pair[1] - DEFAULT_SHRINKAGE)))[1]


@LEARNERS.register
class PLDA(ClosedForm):
    """Probabilistic linear discriminant analysis on CLS of the last blocks, L2-normalised per block.

    The statistics are additive, so for a fixed shrinkage the order of tasks and images does not matter. With
    `shrinkage=auto` the value may change after each task: it is the best by the cross-validations of all tasks so far,
    each on the images of its task among the classes seen by then. Once 2,000 images have been held out it is settled,
    so that the time of a task does not grow with the classes before it.
    """

    name, title = "plda", "PLDA"
    config_class = PLDAConfig
    recommended = "best mean and tail, one forward pass per image"

    config: PLDAConfig
    centre: Tensor
    basis: Tensor
    means: Tensor
    log_variances: Tensor
    shrinkage: Tensor
    log_volume: Tensor
    density_quantiles: Tensor

    def __init__(self, backbone: FrozenBackbone, config: PLDAConfig, num_classes: int, num_tasks: int, fidelity: str):
        if config.layers != PLDAConfig.layers:  # the usual number is cut to the backbone's
            backbone.check_layers(config.layers)
        self.candidates = SHRINKAGES if config.shrinkage == AUTO else ()
        self.scatter = "class" if config.removable else "pooled"
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        fixed = DEFAULT_SHRINKAGE if config.shrinkage == AUTO else float(config.shrinkage)
        self.register_buffer("shrinkage", torch.tensor([fixed], dtype=torch.float64))
        self.register_buffer("log_volume", torch.zeros(1))
        self.register_buffer("density_quantiles", torch.zeros(101))
        self.densities = torch.zeros(len(SHRINKAGES), 0, dtype=torch.float64)

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """The predictive distributions."""
        dim, k = self.feature_dim, min(classes, self.feature_dim)
        return {"centre": (dim,), "basis": (dim, dim), "means": (classes, k), "log_variances": (classes, k)}

    @property
    def layers(self) -> int:
        """Number of blocks whose features are used."""
        return min(self.config.layers, self.backbone.depth)

    @property
    def feature_dim(self) -> int:
        """All blocks side by side."""
        return self.layers * self.backbone.dim

    @torch.no_grad()
    def embedding(self, x: Tensor) -> Tensor:
        """CLS of the last blocks, each of length one [B, layers · dim]."""
        return F.normalize(self.block_features(x, self.layers).float(), dim=2).flatten(1)

    def validate(self, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-validates every shrinkage on images that are about to be added, until enough were held out."""
        if float(self.validated[-1]) >= ENOUGH_HELD_OUT:
            return torch.zeros_like(self.validated)
        total, densities = cross_validated(self.moments, features.cpu(), labels)
        self.densities = torch.cat((self.densities, densities), dim=1)
        while self.densities.shape[1] > MOST_DENSITIES:  # the latest count most
            self.densities = self.densities.flip(1)[:, ::2].flip(1)
        return total

    def fit(self) -> None:
        """Chooses the shrinkage and computes the predictive distributions of all classes."""
        if self.candidates:
            self.shrinkage.fill_(best_shrinkage(self.validated))
        self.allocate(self.seen)
        found = predictive(self.moments, within_class(self.moments), float(self.shrinkage), complete=True)
        for name in self.shapes(0):
            getattr(self, name).copy_(getattr(found, name))
        self.log_volume.fill_(found.log_volume)
        if self.densities.shape[1] >= LEAST_HELD_OUT:
            own = self.densities[SHRINKAGES.index(round(float(self.shrinkage), 1))]
            self.density_quantiles.copy_(own.quantile(torch.linspace(0, 1, 101, dtype=own.dtype)))

    def classify(self, features: Tensor) -> Tensor:
        """Log-likelihood of each class, up to a constant of the image; the prior over classes is uniform."""
        return self._predictive().scores(features)

    def _predictive(self) -> Predictive:
        return Predictive(self.centre, self.basis, self.means, self.log_variances, float(self.log_volume))

    @torch.no_grad()
    def log_density(self, features: Tensor) -> Tensor:
        """Log of the predictive density [B] of features under a uniform mixture of the classes seen."""
        found = self._predictive()
        return found.log_density(features, ((features - found.centre) @ found.basis).square().sum(dim=1))

    def reject_below(self, share: float) -> float:
        """The log-density below which this share of the training images was, when they were held out.

        Raises:
            UserError: there were too few training images, or the shrinkage was fixed, so that none was held out.
        """
        if not bool(self.density_quantiles.any()):
            raise UserError(
                f"PLDA has no threshold yet: it needs shrinkage=auto and {LEAST_HELD_OUT} training images of classes "
                "with at least two"
            )
        return float(self.density_quantiles.quantile(share))

    def named_tensors(self) -> dict[str, Tensor]:
        """All that scores need."""
        names = (*self.shapes(0), "shrinkage", "log_volume", "density_quantiles")
        return super().named_tensors() | {name: getattr(self, name) for name in names}

    def statistics(self) -> dict[str, Tensor]:
        """Adds the densities of held-out training images."""
        return super().statistics() | {"densities": self.densities}

    def load_statistics(self, known: dict[str, Tensor]) -> None:
        """Takes over what `statistics` returned."""
        super().load_statistics(known)
        self.densities = known["densities"].cpu().clone()
