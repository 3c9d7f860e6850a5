"""MOS: an adapter set a task, merged with the earlier ones; at test time each image finds its own adapter."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenViT
from pilot_tal.learners.adapters import AdapterConfig, AdapterLearner, named_adapters
from pilot_tal.learners.base import (
    LEARNERS,
    Images,
    cosine_annealing,
    cosine_similarity,
    named_layer,
    vit_head,
)
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo

HEAD_RATE = 0.1
TEMPERATURE = 0.8
ROUNDS = 4
SAMPLES_PER_IMAGE = 5
JITTER = 1e-4


@dataclass(frozen=True)
class MOSConfig(AdapterConfig):
    """MOS's own settings."""

    reg: Annotated[float, Rule("weight of the term that separates samples", 0, 1000)] = 0.1
    adapter_momentum: Annotated[float, Rule("share of the earlier adapters' mean in a merge", 0, below=1)] = 0.1
    ensemble: Annotated[bool, Rule("join classifier and prototypes")] = True
    crct_epochs: Annotated[int, Rule("epochs of the classifier alignment", 0, 100_000)] = 30
    ca_lr: Annotated[float, Rule("learning rate of the alignment", 0, 1000)] = 0.005
    ffn_num: Annotated[int, Rule("width of an adapter", 1, 10_000)] = 16

    former: ClassVar = {"ca_storage_efficient_method": "covariance", "n_centroids": 10}


@dataclass(frozen=True)
class ClassStatistics:
    """Mean and covariance of the features of a class, ready to draw from.

    Attributes:
        means: The mean [1, dim].
        factor: [r, dim] with covariance = factorᵀ factor + JITTER · I; r is at most the number of images less one
            and at most dim, so a class of few images costs little and nothing is ever decomposed again.
    """

    means: Tensor
    factor: Tensor

    def draw(self, number: int) -> Tensor:
        """`number` features [number, dim] from the normal distribution."""
        noise = torch.randn(number, self.factor.shape[1], device=self.factor.device)
        spread = torch.randn(number, len(self.factor), device=self.factor.device) @ self.factor
        return self.means + spread + JITTER**0.5 * noise

    def covariance(self) -> Tensor:
        """The covariance matrix [dim, dim]."""
        return self.factor.t() @ self.factor + JITTER * torch.eye(self.factor.shape[1], device=self.factor.device)


def class_statistics(features: Tensor) -> ClassStatistics:
    """Statistics of one class from its features [n, dim], n ≥ 1; the covariance of a single image is the jitter."""
    mean = features.mean(dim=0, keepdim=True)
    centred = (features - mean) / max(len(features) - 1, 1) ** 0.5
    factor = torch.linalg.qr(centred, mode="r").R if len(features) > features.shape[1] else centred
    return ClassStatistics(mean, factor if len(features) > 1 else factor[:0])


def self_refined(first: Tensor, task_of: Tensor) -> Tensor:
    """The adapter each sample ends with, in at most four rounds.

    Args:
        first: Adapter to begin with [B].
        task_of: Task of the best class under each adapter [B, adapters].
    """
    adapter = first
    for _ in range(ROUNDS - 1):
        adapter = task_of.gather(1, adapter.unsqueeze(1)).squeeze(1)  # a fixed point stays where it is
    return adapter


@LEARNERS.register
class MOS(AdapterLearner):
    """Model Surgery (Sun et al., AAAI 2025)."""

    name, title = "mos", "MOS"
    recommended = "best mean of the trained methods"
    config_class = MOSConfig
    linear_classifier = True

    config: MOSConfig
    prototypes: Tensor
    sigma: Tensor

    def __init__(self, backbone: FrozenViT, config: MOSConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.cur = self.new_adapters()
        self.finished = nn.ModuleList()
        self.head = vit_head(backbone.dim, num_classes)
        self.register_buffer("prototypes", torch.zeros(0, backbone.dim))
        self.register_buffer("sigma", torch.ones(1))
        self.classes: dict[int, ClassStatistics] = {}
        self._old_means = torch.zeros(0, backbone.dim)
        self._mean_parts: list[Tensor] = []

    def begin_task(self, task: TaskInfo) -> None:
        """Allocate the task's prototypes and fix the mean adapter it is merged with."""
        if task.first > 0 and not self.classes:
            raise UserError("MOS cannot go on from tensors alone: the statistics of the old classes are missing")
        super().begin_task(task)
        self.prototypes = torch.cat((self.prototypes, self.prototypes.new_zeros(task.num_classes, self.backbone.dim)))
        means = [known.means for known in self.classes.values()]
        self._old_means = torch.cat(means) if means else self.prototypes.new_zeros(0, self.backbone.dim)
        self._mean_parts = self.mean_parts(task.index) if task.index > 0 else []

    def param_groups(self) -> list[dict[str, Any]]:
        """Adapters at the full learning rate, the classifier at a tenth."""
        rate = self.config.init_lr
        return [
            {"params": list(self.cur.parameters()), "lr": rate},
            {"params": list(self.head.parameters()), "lr": HEAD_RATE * rate},
        ]

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the task's classes; the auxiliary loss separates features from each other and from old means."""
        merges = self.fidelity == "pilot" and self._mean_parts
        parts = self.contracted(self.cur.parts, self._mean_parts) if merges else list(self.cur.parts)
        features = self.features(self.backbone.embed(x), parts, dropout=True)
        rows = torch.cat((self._old_means, features.float()))
        similarity = rows @ rows.t() / TEMPERATURE
        apart = F.cross_entropy(similarity, torch.arange(len(rows), device=rows.device))
        return self.task_logits(features, self.head), self.config.reg * apart

    def contracted(self, parts: Iterable[Tensor], means: Sequence[Tensor]) -> list[Tensor]:
        """The adapters as the blocks of LAMDA-PILOT see them; `parts` become what its forward pass leaves behind.

        There every block first pulls the stored tensors of all blocks towards the mean of the finished ones. Block
        l so works with mean + (1-μ)^(l+1) (W - mean), its gradient goes to W as it is, and after the last block
        W = mean + (1-μ)^depth (W - mean) is what the optimizer finds.
        """
        keep = 1 - self.config.adapter_momentum
        powers = keep ** torch.arange(1, self.backbone.depth + 1, device=self.sigma.device)
        seen = []
        for part, mean in zip(parts, means, strict=True):
            with torch.no_grad():
                distance = part - mean
                value = mean + powers.view(-1, *[1] * (part.ndim - 1)) * distance
            seen.append(value + (part - part.detach()))  # the value, with the gradient of `part`
            with torch.no_grad():
                part.copy_(mean + keep**self.backbone.depth * distance)
        return seen

    @torch.no_grad()
    def after_step(self) -> None:
        """Merges: pulls the current adapters towards the mean of the finished ones."""
        momentum = self.config.adapter_momentum
        for part, mean in zip(self.cur.parts, self._mean_parts, strict=False):
            part.mul_(1 - momentum).add_(mean, alpha=momentum)

    def end_task(self, images: Images) -> None:
        """Keeps a snapshot, learns the classes' statistics and prototypes, and aligns the classifier."""
        self.finished.append(copy.deepcopy(self.cur).requires_grad_(False))
        if self.fidelity == "pilot" and self._mean_parts:
            # The statistics pass of LAMDA-PILOT contracts the current adapters to their limit.
            with torch.no_grad():
                for part, mean in zip(self.cur.parts, self._mean_parts, strict=True):
                    part.copy_(mean)
        features, prototypes, labels = self.training_features(images)
        for label in range(self.task.first, self.task.stop):
            own = labels == label
            if bool(own.any()):
                self.classes[label] = class_statistics(features[own])
                self.prototypes[label] = prototypes[own].mean(dim=0)
        if self.task.index > 0:
            self._align()

    @torch.no_grad()
    def training_features(self, images: Images) -> tuple[Tensor, Tensor, Tensor]:
        """Features of the task's images for the statistics and for the prototypes, and their labels."""
        device = self.sigma.device
        last, first = self.adapter_parts(self.task.index), self.adapter_parts(0)
        # LAMDA-PILOT computes prototypes in training mode from the second task on.
        dropout = self.fidelity == "pilot" and self.task.index > 0
        collected: list[tuple[Tensor, Tensor, Tensor]] = []
        for x, y in images():
            tokens = self.backbone.embed(x.to(device))
            features = self.features(tokens, last)
            same = self.task.index == 0
            prototypes = features if same else self.features(tokens, first, dropout=dropout)
            collected.append((features, prototypes, y.to(device)))
        features, prototypes, labels = (torch.cat(part) for part in zip(*collected, strict=True))
        return features, prototypes, labels

    def _align(self) -> None:
        """Trains the classifier alone on features drawn for all classes seen; always cross-entropy."""
        config = self.config
        optimizer = torch.optim.SGD(
            self.head.parameters(), lr=config.ca_lr, momentum=0.9, weight_decay=config.weight_decay
        )
        for epoch in range(config.crct_epochs):
            optimizer.param_groups[0]["lr"] = cosine_annealing(config.ca_lr, epoch, config.crct_epochs)
            for features, labels in self.gaussian_batches(epoch):
                logits = F.linear(features, self.head.weight[: self.seen], self.head.bias[: self.seen])
                loss = F.cross_entropy(logits, labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()

    @torch.no_grad()
    def gaussian_batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """As many mini-batches as classes seen, shuffled; each class gives the same number of features."""
        size, device = SAMPLES_PER_IMAGE * self.config.batch_size, self.sigma.device
        chosen = torch.randperm(len(self.classes) * size) // size
        features = torch.cat([known.draw(size) for known in self.classes.values()])
        features = features[chosen.argsort().argsort().to(device)]
        labels = torch.tensor(list(self.classes))[chosen].to(device)
        yield from zip(features.split(size), labels.split(size), strict=True)

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """The classifier under the adapter each image finds, joined with the prototypes under adapter 0."""
        tokens = self.backbone.embed(x)
        adapters = len(self.stops)
        features = torch.stack([self.adapter_features(i, tokens, ids) for i in range(adapters)], dim=1)
        similarity = self.sigma * cosine_similarity(features[:, 0], self.prototypes[: self.seen])
        logits = self.seen_logits(features, self.head)  # [B, adapters, classes]
        stops = torch.tensor(self.stops, device=x.device)
        first, task_of = (torch.bucketize(z.argmax(dim=-1), stops, right=True) for z in (similarity, logits))
        rows = torch.arange(x.shape[0], device=x.device)
        refined = logits[rows, self_refined(first, task_of)]
        if not self.config.ensemble:
            return refined
        return refined.softmax(dim=1) + (adapters * similarity).softmax(dim=1)

    def probabilities(self, scores: Tensor) -> Tensor:
        """The ensemble's scores are sums of two probabilities, those of the classifier alone are logits."""
        return F.normalize(scores, p=1, dim=1) if self.config.ensemble else super().probabilities(scores)

    def adapter_features(self, index: int, tokens: Tensor, ids: Tensor | None) -> Tensor:
        """Test features under one adapter; those of a finished task never change."""
        if index >= len(self.finished):
            return self.features(tokens, list(self.cur.parts))
        if self.fidelity == "pilot" and index == 1:
            index = 0  # the mean of one snapshot
        parts = self.adapter_parts(index)
        return self.cache.get(f"adapter{index}", ids, tokens, lambda rows: self.features(rows, parts))

    def adapter_parts(self, index: int) -> list[Tensor]:
        """The adapters a finished task is represented by: its own, or what LAMDA-PILOT's evaluation makes of them.

        There every pass pulls the snapshot of task i ≥ 1 towards the mean of those before it, and after a few
        batches that mean is all that is left.
        """
        if self.fidelity == "pilot" and index > 0:
            return self.mean_parts(index)
        return list(self.finished[index].parameters())

    def mean_parts(self, count: int) -> list[Tensor]:
        """Mean of the first `count` snapshots."""
        sets = [self.finished[i].parameters() for i in range(count)]
        return [torch.stack(parts).mean(dim=0) for parts in zip(*sets, strict=True)]

    def grow_to(self, stops: Sequence[int]) -> None:
        """Allocate the snapshots and prototypes of finished tasks."""
        super().grow_to(stops)
        self.finished = nn.ModuleList(copy.deepcopy(self.cur).requires_grad_(False) for _ in stops)
        self.prototypes = self.prototypes.new_zeros(stops[-1] if stops else 0, self.backbone.dim)
        self.classes = {}

    def named_tensors(self) -> dict[str, Tensor]:
        """Classifier, snapshots, current adapters and prototypes."""
        named = named_layer("backbone.head", self.head)
        for task, adapters in enumerate(self.finished):
            named |= named_adapters(adapters, f"backbone.adapter_list.{task}.{{}}")
        named |= named_adapters(self.cur, "backbone.cur_adapter.{}")
        return named | {"fc.weight": self.prototypes, "fc.sigma": self.sigma}

    def statistics(self) -> dict[str, Tensor]:
        """Means and covariances of the classes."""
        every = self.classes.items()
        return {f"{label}.{name}": tensor for label, known in every for name, tensor in vars(known).items()}

    def load_statistics(self, known: dict[str, Tensor]) -> None:
        """Takes over what `statistics` returned."""
        labels = sorted(int(name.removesuffix(".means")) for name in known if name.endswith(".means"))
        tensors = {name: tensor.to(self.sigma.device) for name, tensor in known.items()}
        self.classes = {c: ClassStatistics(tensors[f"{c}.means"], tensors[f"{c}.factor"]) for c in labels}
