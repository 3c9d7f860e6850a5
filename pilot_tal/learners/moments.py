"""Additive statistics of features per class: counts, sums and within-class scatter, in float64 on the host."""

from collections.abc import Mapping

import torch
from torch import Tensor

from data_lt.errors import UserError


class Moments:
    """Counts n_c, sums Σx and within-class scatter Σ(x − m_c)(x − m_c)ᵀ of features; no images.

    A scatter is kept as its triangular factor R with RᵀR = scatter, of at most min(images − 1, dim) rows. One factor
    per class makes the removal of a class exact and takes Σ_c min(n_c − 1, dim) · dim · 8 bytes; one factor in all
    takes at most dim² · 8 bytes.

    Args:
        dim: Length of a feature.
        scatter: `class` (one factor per class), `pooled` (one factor in all), `bounded` (one factor per class while
            they have at most `dim` rows together, then one in all) or `none`.
    """

    def __init__(self, dim: int, scatter: str = "class"):
        self.dim, self.scatter = dim, scatter
        self.counts = torch.zeros(0, dtype=torch.long)
        self.sums = torch.zeros(0, dim, dtype=torch.float64)
        self.factors: list[Tensor] = []

    def copy(self) -> "Moments":
        """An independent copy: `add` and `remove` replace tensors, so only the list is duplicated."""
        other = Moments(self.dim, self.scatter)
        other.counts, other.sums, other.factors = self.counts.clone(), self.sums.clone(), list(self.factors)
        return other

    @property
    def classes(self) -> int:
        """Number of classes that it covers."""
        return len(self.counts)

    def grow(self, classes: int) -> None:
        """Adds classes without images, up to a total of `classes`."""
        new = max(classes - len(self.counts), 0)
        self.counts = torch.cat((self.counts, self.counts.new_zeros(new)))
        self.sums = torch.cat((self.sums, self.sums.new_zeros(new, self.dim)))
        wanted = {"pooled": 1, "none": 0}.get(self.scatter, len(self.counts))
        self.factors += [self.sums.new_zeros(0, self.dim)] * (wanted - len(self.factors))

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Adds images of new or known classes; the order of the calls does not matter beyond rounding."""
        features, labels = features.detach().to("cpu", torch.float64), labels.cpu()
        self.grow(int(labels.max()) + 1 if len(labels) else 0)
        new_rows: dict[int, list[Tensor]] = {}
        for label in labels.unique().tolist():
            own = features[labels == label]
            if self.scatter != "none":
                new_rows.setdefault(0 if self.scatter == "pooled" else label, []).append(self._deviations(own, label))
            self.counts[label] += len(own)
            self.sums[label] += own.sum(dim=0)
        for place, rows in new_rows.items():
            # The triangular factor holds the scatter and nothing else of the images.
            self.factors[place] = torch.linalg.qr(torch.cat((self.factors[place], *rows)), mode="r").R
        if self.scatter == "bounded" and sum(map(len, self.factors)) > self.dim:
            self.scatter, self.factors = "pooled", [torch.linalg.qr(torch.cat(self.factors), mode="r").R]

    def _deviations(self, own: Tensor, label: int) -> Tensor:
        """Rows whose outer products are what these images add to the class's scatter (Welford's update)."""
        before = self.counts[label] + torch.arange(len(own))
        sums = torch.cat((self.sums[label : label + 1], own[:-1])).cumsum(dim=0)
        known = before > 0
        before, sums, own = before[known].double().unsqueeze(1), sums[known], own[known]
        return (before / (before + 1)).sqrt() * (own - sums / before)

    def remove(self, label: int) -> None:
        """Removes a class as if it had never been added; later classes move up by one.

        Raises:
            UserError: there is no such class, or its share of a pooled scatter is not known.
        """
        if not 0 <= label < self.classes:
            raise UserError(f"there is no class {label} to remove; the classes are 0 to {self.classes - 1}")
        if self.scatter == "pooled":
            raise UserError(
                "one class cannot be removed from a pooled scatter; train plda with removable=true, ranpac with more "
                "random features than images (raise M)"
            )
        kept = torch.arange(len(self.counts)) != label
        self.counts, self.sums = self.counts[kept], self.sums[kept]
        del self.factors[label : label + 1]

    @property
    def means(self) -> Tensor:
        """Mean feature of each class [classes, dim]; zero for a class without images."""
        return self.sums / self.counts.clamp_min(1).unsqueeze(1)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the pooled scatter: images less classes."""
        return int((self.counts - 1).clamp_min(0).sum())

    def rows(self) -> Tensor:
        """The factors of the scatter, one below the other."""
        return torch.cat([self.sums.new_zeros(0, self.dim), *self.factors])

    def pooled(self) -> Tensor:
        """Within-class scatter of all classes [dim, dim]."""
        rows = self.rows()
        return rows.t() @ rows

    def last(self, dim: int) -> "Moments":
        """The statistics of the last `dim` numbers of each feature, to read."""
        other = Moments(dim, self.scatter)
        other.counts, other.sums = self.counts, self.sums[:, -dim:]
        other.factors = [factor[:, -dim:] for factor in self.factors]
        return other

    def state(self) -> dict[str, Tensor]:
        """Its tensors by name, for a checkpoint."""
        lengths = torch.tensor([len(factor) for factor in self.factors], dtype=torch.long)
        return {"counts": self.counts, "sums": self.sums, "rows": self.rows(), "lengths": lengths}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state` returned."""
        counts, sums, rows, lengths = (state.get(name) for name in ("counts", "sums", "rows", "lengths"))
        if counts is None or sums is None or rows is None or lengths is None or sums.shape != (len(counts), self.dim):
            raise UserError("the checkpoint lacks the statistics of images so far; remove its folder and start over")
        self.counts, self.sums = counts.clone(), sums.clone()
        self.factors = [part.clone() for part in rows.split(lengths.tolist())] if len(lengths) else []
        if self.scatter == "bounded" and len(lengths) != len(counts):
            self.scatter = "pooled"
