"""RanPAC: an adapter learned in the first task, then a ridge regression on random features, over all tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenViT
from pilot_tal.learners.adapters import AdapterConfig, AdapterLearner, named_adapters
from pilot_tal.learners.base import CosineHead, Images, cosine_similarity
from pilot_tal.learners.config import MethodConfig
from pilot_tal.learners.registry import LEARNERS
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo

RIDGES = tuple(10.0**power for power in range(-8, 9))
FITTED_SHARE = 0.8
_STATISTICS = "statistics."


@dataclass(frozen=True)
class RanPACConfig(AdapterConfig):
    """RanPAC's own settings."""

    # The `adam` of LAMDA-PILOT's RanPAC is AdamW, so the name is left out here.
    optimizer: Annotated[str, Rule(choices=("adamw", "sgd"))]
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
    basis, triangle = torch.linalg.qr(rows.double())
    return triangle.to(rows), (basis.t() @ targets.double()).to(targets)


def ridge_weights(rows: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Weights W [classes, M] with W · (rowsᵀ·rows + ridge·I) = targetsᵀ·rows.

    Solved among the rows, which are fewer than the features on a long-tailed set: a second instead of minutes.
    """
    rows, targets = rows.double(), targets.double()
    kernel = rows @ rows.t()
    kernel.diagonal().add_(ridge)
    shares, failed = torch.linalg.solve_ex(kernel, targets)
    if bool(failed):
        raise UserError(f"RanPAC's regression has no solution with the ridge {ridge:g}: are there images twice?")
    return (shares.t() @ rows).float()


@LEARNERS.register
class RanPAC(AdapterLearner):
    """RanPAC (McDonnell et al., NeurIPS 2023)."""

    name, title = "ranpac", "RanPAC"
    config_class = RanPACConfig
    needs = "features"  # without an adapter

    config: RanPACConfig
    projection: Tensor
    weight: Tensor
    sigma: Tensor

    def __init__(self, backbone: FrozenViT, config: RanPACConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.adapters = self.new_adapters() if config.adapter else None
        self.head: CosineHead | None = None  # of the first task, while it trains the adapter
        self.ridge = 0.0
        self.register_buffer("projection", torch.randn(backbone.dim, config.M))
        self.register_buffer("weight", torch.zeros(0, config.M))
        self.register_buffer("sigma", torch.ones(1))
        # The images so far, as far as the regression needs them; it is solved on the host.
        self.rows, self.targets = torch.zeros(0, config.M), torch.zeros(0, num_classes)

    @classmethod
    def needs_vit(cls, config: MethodConfig) -> bool:
        """Only an adapter needs the blocks of a ViT."""
        return isinstance(config, RanPACConfig) and config.adapter

    @classmethod
    def trains(cls, config: MethodConfig, task: int = 0) -> bool:
        """In the first task, if there is an adapter to train."""
        return isinstance(config, RanPACConfig) and config.adapter and task == 0

    # Training.

    def begin_task(self, task: TaskInfo) -> None:
        """Gives the first task the classifier that trains the adapter."""
        if task.first > 0 and not len(self.rows):
            raise UserError("RanPAC cannot go on from tensors alone: its regression knows nothing of the old images")
        super().begin_task(task)
        self.weight = torch.cat((self.weight, self.weight.new_zeros(task.num_classes, self.config.M)))
        if task.index == 0 and self.config.adapter:
            self.head = CosineHead(self.backbone.dim, task.num_classes).to(self.weight.device)

    def param_groups(self) -> list[dict[str, Any]]:
        """Adapter and classifier in the first task, nothing later."""
        return super().param_groups() if self.head is not None else []

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the first task's classes; no auxiliary loss."""
        if self.adapters is None or self.head is None:
            raise UserError("RanPAC trains in its first task alone, and only with an adapter")
        features = self.features(self.backbone.embed(x), list(self.adapters.parts), dropout=True)
        return self.head(features), features.new_zeros(())

    @torch.no_grad()
    def end_task(self, images: Images) -> None:
        """Adds the task's images to the regression and solves for the weights of all classes."""
        self._settle_features()
        device = self.weight.device
        batches = [(self._hidden(self._embedding(x.to(device))).cpu(), y.cpu()) for x, y in images()]
        hidden, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        targets = F.one_hot(labels, self.num_classes).float()
        self.rows, self.targets = compressed(torch.cat((self.rows, hidden)), torch.cat((self.targets, targets)))
        order = self.shuffled(len(hidden))
        self.ridge = RIDGES[int(held_out_losses(hidden[order], targets[order]).argmin())]
        self.weight = ridge_weights(self.rows, self.targets, self.ridge)[: self.seen].to(device)

    def shuffled(self, number: int) -> Tensor:
        """A random order of the task's images: the last fifth of it chooses the ridge."""
        return torch.randperm(number)

    def _settle_features(self) -> None:
        """Ends the training of the adapter: from here on a feature never changes."""
        if self.adapters is not None:
            self.adapters.requires_grad_(False)
        if self.head is not None:
            self.sigma, self.head = self.head.sigma.detach().clone(), None

    # Evaluation.

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """What the regression says; in LAMDA-PILOT the cosine of random features and weights."""
        classes = self.seen
        features = self._embedding(x, ids)
        if self.head is not None:
            return self.head(features)
        with torch.autocast(x.device.type, enabled=False):  # sums over thousands of features
            hidden, weight = self._hidden(features.float()), self.weight[:classes]
            if self.fidelity == "fixed":
                return F.linear(hidden, weight)
            return self.sigma * cosine_similarity(hidden, weight)

    def _embedding(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Features [B, dim] without dropout, from the cache once they are settled."""
        if self.adapters is None:
            return self.cached_features(x, ids)
        tokens = self.backbone.embed(x)
        parts = list(self.adapters.parts)
        settled = ids if self.head is None else None
        return self.cache.get("adapter", settled, tokens, lambda rows: self.features(rows, parts))

    def _hidden(self, features: Tensor) -> Tensor:
        return F.relu(features @ self.projection)

    # Tensors by name.

    def grow_to(self, stops: Sequence[int]) -> None:
        """Takes the shape after the first task: no classifier to train, weights for all classes."""
        super().grow_to(stops)
        if stops:
            self._settle_features()
        self.weight = self.weight.new_zeros(stops[-1] if stops else 0, self.config.M)
        self.rows, self.targets = self.rows[:0], self.targets[:0]

    def named_tensors(self) -> dict[str, Tensor]:
        """Adapter, classifier, and the random projection, which LAMDA-PILOT leaves out of its state dict."""
        named = {} if self.adapters is None else named_adapters(self.adapters, "backbone.blocks.{}.adaptmlp")
        weight, sigma = (self.weight, self.sigma) if self.head is None else (self.head.weight, self.head.sigma)
        return named | {"fc.weight": weight, "fc.sigma": sigma, "W_rand": self.projection}

    def checkpoint_state(self) -> dict[str, Tensor]:
        """Adds what the regression knows of the images so far."""
        known = {f"{_STATISTICS}rows": self.rows.clone(), f"{_STATISTICS}targets": self.targets.clone()}
        return super().checkpoint_state() | known

    def load_checkpoint_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes up the state that `checkpoint_state` gave."""
        super().load_checkpoint_state({k: v for k, v in state.items() if not k.startswith(_STATISTICS)})
        rows, targets = (state.get(f"{_STATISTICS}{name}", torch.zeros(0, 0)).cpu() for name in ("rows", "targets"))
        if rows.shape[1:] != self.rows.shape[1:] or targets.shape != (len(rows), self.num_classes):
            raise UserError("the checkpoint lacks 'statistics.rows' and 'statistics.targets' of RanPAC's regression")
        self.rows, self.targets = rows.clone(), targets.clone()
