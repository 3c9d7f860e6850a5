"""EASE: adapters of its own for every task, each a subspace; a class is a prototype in every one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenViT
from pilot_tal.learners.adapters import AdapterConfig, AdapterLearner, named_adapters
from pilot_tal.learners.base import LEARNERS, CosineHead, Images, cosine_similarity
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@dataclass(frozen=True)
class EASEConfig(AdapterConfig):
    """EASE's own settings."""

    recalc_sim: Annotated[bool, Rule("complete all missing prototypes after every task, not the newest alone")] = True
    alpha: Annotated[float, Rule("weight of the subspaces of other tasks, shared among them", 0, 1000)] = 0.1
    use_init_ptm: Annotated[bool, Rule("the ViT without an adapter is one more subspace")] = False
    beta: Annotated[float, Rule("weight of that subspace", 0, 1000)] = 0.0

    former: ClassVar = {"use_diagonal": False, "use_reweight": True}


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
        batches = [(self._subspaces(self.backbone.embed(x.to(self.sigma.device))), y) for x, y in images()]
        features, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        for label in labels.unique().tolist():
            self.prototypes[label] = features[labels == label].mean(dim=0)
        first = 1 if self.config.recalc_sim else self.task.index
        complete_prototypes(self.prototypes[:, self.plain :], self.stops, range(first, len(self.adapters)))

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Cosines with the prototypes, summed over the subspaces; that of a class's own task weighs most."""
        prototypes = self.prototypes[: self.seen]
        features = self._subspaces(self.backbone.embed(x), ids)
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

    def _subspaces(self, tokens: Tensor, ids: Tensor | None = None) -> Tensor:
        """Features [B, subspaces, dim] in every subspace; those of a finished task never change."""
        features = [self.cached_query(tokens, ids)] if self.plain else []
        for task, adapters in enumerate(self.adapters):
            parts, settled = list(adapters.parameters()), ids if task < self.finished else None
            features.append(self.cache.get(f"adapter{task}", settled, tokens, partial(self.features, parts=parts)))
        return torch.stack(features, dim=1)

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
