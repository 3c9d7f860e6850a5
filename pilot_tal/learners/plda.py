"""PLDA: a Bayesian classifier in closed form that knows how uncertain the mean of a rare class is."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
MOST_LAYERS, LONGEST = 6, 3072  # with `auto`; time grows with the cube of a feature's length, memory with its square
SHRINKAGES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
DEFAULT = (1, 0.7)
FOLDS, LEAST_HELD_OUT, ENOUGH_HELD_OUT, MOST_DENSITIES = 5, 50, 2000, 2000

Candidate = tuple[int, float]
"""Number of layers, and shrinkage."""


@dataclass(frozen=True)
class PLDAConfig(ClosedFormConfig):
    """PLDA's own settings."""

    layers: Annotated[
        int | str,
        Rule("use CLS of this many last blocks; auto: 1 or 6, by cross-validation", 1, 1000, words=(AUTO,)),
    ] = AUTO
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
        log_volume: log |det| of the whitening, less the constant of a normal density.
    """

    centre: Tensor
    basis: Tensor
    means: Tensor
    log_variances: Tensor
    log_volume: float = 0.0

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
        return mixture - 0.5 * (lengths - within) + self.log_volume

    def turned(self, vectors: Tensor) -> "Predictive":
        """The same in the coordinates in which these orthonormal columns are the present axes."""
        return replace(self, centre=vectors @ self.centre, basis=vectors @ self.basis)


def within_class(moments: Moments) -> tuple[Tensor, Tensor]:
    """Eigenvalues, not negative, and eigenvectors of the pooled within-class covariance."""
    rows, freedom = moments.rows(), max(moments.freedom, 1)
    if 2 * len(rows) > moments.dim:
        values, vectors = torch.linalg.eigh(rows.t() @ rows / freedom)
        return values.clamp_min(0), vectors
    basis, factor = torch.linalg.qr(rows.t(), mode="complete")  # few rows: only their span needs eigenvectors
    factor = factor[: len(rows)]
    values, vectors = torch.linalg.eigh(factor @ factor.t() / freedom)
    spanned, rest = basis[:, : len(rows)] @ vectors, basis[:, len(rows) :]
    return F.pad(values.clamp_min(0), (0, rest.shape[1])), torch.cat((spanned, rest), dim=1)


def predictive(
    means: Tensor, counts: Tensor, values: Tensor, shrinkage: float, complete: bool = False
) -> tuple[Predictive, Tensor]:
    """PLDA's predictive distributions (Ioffe 2006; Prince and Elder 2007), in the eigenbasis of W.

    Class means are draws from N(μ, B) and images draws around them with a shared covariance W.

    Args:
        means: Mean feature of each class [classes, dim] in that basis.
        counts: Images of each class.
        values: Eigenvalues of W [dim].
        shrinkage: s of (1 − s) W + s · tr(W)/dim · I.
        complete: Return a basis of all directions; else only of those in which class means differ.

    Returns:
        The distributions, and the scale of each axis [dim] that whitens W.
    """
    counts, present = counts.double().unsqueeze(1), counts > 0
    centre = means[present].mean(dim=0)
    level = float(values.mean())
    if level == 0:  # no class has two images: half of the variance of the means counts as noise
        level = float((means - centre)[present].square().mean()) / 2 or 1.0
    scale = ((1 - shrinkage) * values + shrinkage * level).rsqrt()
    whitened = (means - centre) * scale * present.unsqueeze(1)
    _, lengths, directions = torch.linalg.svd(whitened, full_matrices=complete)
    noise = counts[present].reciprocal().mean()
    between = (lengths.square() / int(present.sum()) - noise).clamp_min(0)
    k = len(between)
    gain = counts * between / (1 + counts * between)
    found = Predictive(
        centre,
        scale.unsqueeze(1) * directions.t(),
        gain * (whitened @ directions[:k].t()),
        (between / (1 + counts * between)).log1p(),
        float(scale.log().sum()) - len(values) * math.log(2 * math.pi) / 2,
    )
    return found, scale


def fold_numbers(labels: Tensor) -> Tensor:
    """Fold of each image: the images of a class are dealt out in turn, each class starting at another fold."""
    folds = torch.zeros_like(labels)
    for place, label in enumerate(labels.unique().tolist()):
        own = labels == label
        folds[own] = (torch.arange(int(own.sum())) + place) % FOLDS
    return folds


def cross_validated(
    moments: Moments, features: Tensor, labels: Tensor, candidates: Sequence[Candidate], width: int
) -> tuple[Tensor, Tensor]:
    """Cross-validates every candidate; the classes already in `moments` compete.

    Classes of one image are never held out.

    Args:
        moments: Statistics of the images so far.
        features, labels: Of further images [n, layers · width].
        candidates: Layers and shrinkages, in the order of the layers.
        width: Length of the features of one layer.

    Returns:
        Sum over classes of the accuracy on held-out images, and their number at the end [candidates + 1]; and the
        log-densities of held-out images [candidates, images].
    """
    total = torch.zeros(len(candidates) + 1, dtype=torch.float64)
    densities = [total.new_zeros(len(candidates), 0)]
    folds, sizes = fold_numbers(labels), labels.bincount()
    eligible = sizes[labels] > 1
    for fold in range(FOLDS):
        held = (folds == fold) & eligible
        if not bool(held.any()):
            continue
        known = moments.copy()
        known.grow(len(sizes))
        known.add(features[~held], labels[~held])
        weights = 1 / sizes[labels[held]].double()  # so that every class weighs equally
        rows: list[Tensor] = []
        for layers, group in itertools.groupby(candidates, key=lambda candidate: candidate[0]):
            part = known.last(layers * width)
            values, vectors = within_class(part)
            means, x = part.means @ vectors, features[held, -part.dim :].double() @ vectors
            for _, shrinkage in group:
                found, scale = predictive(means, part.counts, values, shrinkage)
                guesses = found.scores(x).argmax(dim=1)
                total[len(rows)] += (weights * (guesses == labels[held])).sum()
                rows.append(found.log_density(x, ((x - found.centre) * scale).square().sum(dim=1)))
        total[-1] += len(x)
        densities.append(torch.stack(rows))
    return total, torch.cat(densities, dim=1)


def best_candidate(total: Tensor, candidates: Sequence[Candidate]) -> Candidate:
    """The candidate of the best accuracy; of equals the one nearest to the default, which also serves few images."""
    enough = float(total[-1]) >= LEAST_HELD_OUT

    def rank(place: int) -> tuple[float, ...]:
        distances = [-abs(value - usual) for value, usual in zip(candidates[place], DEFAULT, strict=True)]
        return round(float(total[place]), 9) if enough else 0.0, *distances

    return candidates[max(range(len(candidates)), key=rank)]


@LEARNERS.register
class PLDA(ClosedForm):
    """Probabilistic linear discriminant analysis on CLS of the last blocks, L2-normalised per block.

    The statistics are additive, so for fixed settings the order of tasks and images does not matter. With `auto` the
    number of blocks and the shrinkage may change after each task: they are the best by the cross-validations of all
    tasks so far, each on the images of its task among the classes seen by then, weighted by the images known by then.
    Once 2,000 images have been held out they are settled, so that the time of a task does not grow with the classes
    before it.
    """

    name, title = "plda", "PLDA"
    config_class = PLDAConfig
    recommended = "best mean and tail, one forward pass per image"

    config: PLDAConfig
    centre: Tensor
    basis: Tensor
    means: Tensor
    log_variances: Tensor
    chosen: Tensor
    log_volume: Tensor
    density_quantiles: Tensor

    def __init__(self, backbone: FrozenBackbone, config: PLDAConfig, num_classes: int, num_tasks: int, fidelity: str):
        layers = sorted({1, min(MOST_LAYERS, backbone.depth, max(1, LONGEST // backbone.dim))})
        shrinkages: tuple[float, ...] = SHRINKAGES
        if config.layers != AUTO:
            layers = [int(config.layers)]
            backbone.check_layers(*layers)
        if config.shrinkage != AUTO:
            shrinkages = (float(config.shrinkage),)
        self.candidates = tuple(itertools.product(layers, shrinkages))
        self.layers = layers[-1]  # of which `chosen` are the last
        self.scatter = "class" if config.removable else "pooled"
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.register_buffer("chosen", torch.tensor(best_candidate(self.validated, self.candidates)))
        self.register_buffer("log_volume", torch.zeros(1))
        self.register_buffer("density_quantiles", torch.zeros(101))
        self.densities = torch.zeros(len(self.candidates), 0, dtype=torch.float64)

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """The predictive distributions."""
        dim, k = self.feature_dim, min(classes, self.feature_dim)
        return {"centre": (dim,), "basis": (dim, dim), "means": (classes, k), "log_variances": (classes, k)}

    @property
    def feature_dim(self) -> int:
        """All blocks side by side."""
        return self.layers * self.backbone.dim

    @torch.no_grad()
    def embedding(self, x: Tensor) -> Tensor:
        """CLS of the last blocks, each of length one [B, layers · dim]."""
        return F.normalize(self.block_features(x, self.layers).float(), dim=2).flatten(1)

    def validate(self, features: Tensor, labels: Tensor) -> Tensor:
        """Cross-validates every candidate on images that are about to be added, until enough were held out."""
        if len(self.candidates) == 1 or float(self.validated[-1]) >= ENOUGH_HELD_OUT:
            return torch.zeros_like(self.validated)
        width = self.backbone.dim
        total, densities = cross_validated(self.moments, features.cpu(), labels, self.candidates, width)
        self.densities = torch.cat((self.densities, densities), dim=1)
        while self.densities.shape[1] > MOST_DENSITIES:  # the latest count most
            self.densities = self.densities.flip(1)[:, ::2].flip(1)
        total[:-1] *= int(self.moments.counts.sum()) + len(labels)  # the best values depend on how much is known
        return total

    def fit(self) -> None:
        """Chooses layers and shrinkage, and computes the predictive distributions of all classes."""
        choice = layers, shrinkage = best_candidate(self.validated, self.candidates)
        self.chosen.copy_(torch.tensor(choice))
        self.allocate(self.seen)
        part = self.moments.last(layers * self.backbone.dim)
        values, vectors = within_class(part)
        found, _ = predictive(part.means @ vectors, part.counts, values, shrinkage, complete=True)
        found, k = found.turned(vectors), found.means.shape[1]
        self.centre[-part.dim :] = found.centre  # the features of other layers stay without weight
        self.basis[-part.dim :, : part.dim] = found.basis
        self.means[:, :k], self.log_variances[:, :k] = found.means, found.log_variances
        self.log_volume.fill_(found.log_volume)
        if self.densities.shape[1] >= LEAST_HELD_OUT:
            own = self.densities[self.candidates.index(choice)]
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
            UserError: too few training images, or layers and shrinkage were fixed, so that none was held out.
        """
        if not bool(self.density_quantiles.any()):
            raise UserError(
                "PLDA has no threshold yet: it needs layers=auto or shrinkage=auto, and "
                f"{LEAST_HELD_OUT} training images of classes with at least two"
            )
        return float(self.density_quantiles.quantile(share))

    def named_tensors(self) -> dict[str, Tensor]:
        """All that scores need."""
        names = (*self.shapes(0), "chosen", "log_volume", "density_quantiles")
        return super().named_tensors() | {name: getattr(self, name) for name in names}

    def statistics(self) -> dict[str, Tensor]:
        """Adds the densities of held-out training images."""
        return super().statistics() | {"densities": self.densities}

    def load_statistics(self, known: dict[str, Tensor]) -> None:
        """Takes over what `statistics` returned."""
        super().load_statistics(known)
        self.densities = known["densities"].cpu().clone()
