"""EASE: adapters of its own for every task, each a subspace; a class is a prototype in every one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenViT
from pilot_tal.learners.adapters import AdapterConfig, AdapterLearner, named_adapters
from pilot_tal.learners.base import CosineHead, Images, class_means, cosine_similarity
from pilot_tal.learners.registry import LEARNERS
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@dataclass(frozen=True)
class EASEConfig(AdapterConfig):
    """EASE's own settings."""

    use_diagonal: Annotated[bool, Rule("a class is known in its own task's subspace only")] = False
    recalc_sim: Annotated[bool, Rule("complete all missing prototypes after every task, not the newest alone")] = True
    use_reweight: Annotated[bool, Rule("weigh the subspaces; false: one cosine over all together")] = True
    alpha: Annotated[float, Rule("weight of the subspaces of other tasks, shared among them", 0, 1000)] = 0.1
    use_init_ptm: Annotated[bool, Rule("the ViT without an adapter is one more subspace")] = False
    beta: Annotated[float, Rule("weight of that subspace", 0, 1000)] = 0.0


def complete_prototypes(prototypes: Tensor, stops: Sequence[int], subspaces: range) -> None:
    """Fills in where classes of earlier tasks would lie in later subspaces, whose images they never met.

    In its own task's subspace a class is compared with the classes that came with the later subspace or after it; as
    similar as they are there, so much of each goes into the prototype that is missing (semantic mapping).

    Args:
        prototypes: [classes, tasks, dim]; classes of task i have prototypes of their own in subspaces 0 … i.
        stops: For every task the number of classes seen at its end.
        subspaces: The later subspaces to fill.
    """
    starts = [0, *stops]
    for later in subspaces:
        for task in range(later):
            old, new = slice(starts[task], stops[task]), slice(starts[later], None)
            similarity = cosine_similarity(prototypes[old, task], prototypes[new, task])
            prototypes[old, later] = similarity.softmax(dim=1) @ prototypes[new, later]


@LEARNERS.register
class EASE(AdapterLearner):
    """Expandable Subspace Ensemble (Zhou et al., CVPR 2024)."""

    name, title = "ease", "EASE"
    config_class = EASEConfig

    config: EASEConfig
    prototypes: Tensor
    sigma: Tensor

    def __init__(self, backbone: FrozenViT, config: EASEConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.adapters = nn.ModuleList()
        self.head: CosineHead | None = None  # of the current task
        self.finished = 0
        self.plain = int(config.use_init_ptm)  # subspaces before those of the tasks
        self.register_buffer("prototypes", torch.zeros(0, self.plain, backbone.dim))
        self.register_buffer("sigma", torch.ones(1))  # the original's scale of the scores, never trained

    # Training.

    def begin_task(self, task: TaskInfo) -> None:
        """Add the task's adapters, a classifier to train them with, and its prototypes."""
        super().begin_task(task)
        self.adapters.requires_grad_(False)
        self.adapters.append(self.new_adapters().to(self.sigma.device))
        self.head = CosineHead(self.backbone.dim, task.num_classes).to(self.sigma.device)
        known = self.prototypes
        self.prototypes = known.new_zeros(task.stop, self.plain + len(self.adapters), self.backbone.dim)
        self.prototypes[: task.first, :-1] = known

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; no auxiliary loss."""
        if self.head is None:
            raise UserError("EASE has nothing to train yet: begin_task() must come first")
        features = self.features(self.backbone.embed(x), list(self.adapters[-1].parameters()), dropout=True)
        return self.head(features), features.new_zeros(())

    @torch.no_grad()
    def end_task(self, images: Images) -> None:
        """Learns the task's prototypes in every subspace and completes those of earlier tasks."""
        self.finished = len(self.adapters)
        last = self.plain + len(self.adapters) - 1
        every = not self.config.use_diagonal
        subspaces = [s for s in range(last + 1) if every or s < self.plain or s == last]
        device = self.sigma.device
        batches = []
        for x, y in images():
            tokens = self.backbone.embed(x.to(device))
            features = torch.stack([self._subspace_features(s, tokens, None) for s in subspaces], dim=1)
            batches.append((features, y.to(device)))
        features, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        own = slice(self.task.first, self.task.stop)
        for place, subspace in enumerate(subspaces):
            classes = range(self.task.first, self.task.stop)
            self.prototypes[own, subspace] = class_means(features[:, place], labels, classes)
        if not self.config.use_diagonal:
            first = 1 if self.config.recalc_sim else self.task.index
            complete_prototypes(self.prototypes[:, self.plain :], self.stops, range(first, len(self.adapters)))

    # Evaluation.

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Cosines with the prototypes, summed over the subspaces; that of a class's own task weighs most."""
        prototypes = self.prototypes[: self.seen]
        tokens = self.backbone.embed(x)
        features = torch.stack([self._subspace_features(s, tokens, ids) for s in range(prototypes.shape[1])], dim=1)
        if not self.config.use_reweight:
            return self.sigma * cosine_similarity(features.flatten(1), prototypes.flatten(1))
        pairs = zip(features.unbind(1), prototypes.unbind(1), self._weights().unbind(1), strict=True)
        return self.sigma * sum(weight * cosine_similarity(rows, means) for rows, means, weight in pairs)

    def _weights(self) -> Tensor:
        """Weight of every subspace for every class seen [classes, subspaces]."""
        tasks, config = len(self.stops), self.config
        device = self.sigma.device
        sizes = torch.diff(torch.tensor([0, *self.stops], device=device))
        own = torch.arange(tasks, device=device).repeat_interleave(sizes)
        weights = torch.full((self.seen, self.plain + tasks), config.alpha / max(tasks - 1, 1), device=device)
        weights[:, : self.plain] = config.beta
        weights[torch.arange(self.seen, device=device), self.plain + own] = 1.0
        return weights

    def _subspace_features(self, subspace: int, tokens: Tensor, ids: Tensor | None) -> Tensor:
        """Features in one subspace; those of a finished task never change."""
        task = subspace - self.plain
        if task < 0:
            return self.cached_query(tokens, ids)
        parts = list(self.adapters[task].parameters())
        settled = ids if task < self.finished else None
        return self.cache.get(f"adapter{task}", settled, tokens, lambda rows: self.features(rows, parts))

    # Tensors by name.

    def grow_to(self, stops: Sequence[int]) -> None:
        """Allocate the adapters and prototypes of finished tasks."""
        super().grow_to(stops)
        device, dim = self.sigma.device, self.backbone.dim
        self.adapters = nn.ModuleList(self.new_adapters() for _ in stops).requires_grad_(False).to(device)
        self.finished = len(stops)
        last = stops[-1] - (stops[-2] if len(stops) > 1 else 0) if stops else 0
        self.head = CosineHead(dim, last).requires_grad_(False).to(device) if stops else None
        self.prototypes = self.prototypes.new_zeros(stops[-1] if stops else 0, self.plain + len(stops), dim)

    def named_tensors(self) -> dict[str, Tensor]:
        """Adapters of all tasks (LAMDA-PILOT leaves the earlier ones out of its state dict), classifier, prototypes."""
        named: dict[str, Tensor] = {"fc.weight": self.prototypes.flatten(1), "fc.sigma": self.sigma}
        for task, adapters in enumerate(self.adapters):
            newest = task == len(self.adapters) - 1
            place = "backbone.cur_adapter.{}" if newest else f"backbone.adapter_list.{task}.{{}}"
            named |= named_adapters(adapters, place)
        if self.head is not None:
            named |= {"proxy_fc.weight": self.head.weight, "proxy_fc.sigma": self.head.sigma}
        return named
