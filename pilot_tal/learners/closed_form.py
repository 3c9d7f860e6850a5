"""Learners whose classifier is computed, not trained, from additive statistics of frozen features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_lt.errors import UserError
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.learners.adapters import AdapterConfig, AdapterLearner, named_adapters
from pilot_tal.learners.base import CosineHead, Images
from pilot_tal.learners.config import MethodConfig
from pilot_tal.learners.moments import Moments
from pilot_tal.schema import Rule
from pilot_tal.stream.task import TaskInfo


@dataclass(frozen=True)
class ClosedFormConfig(AdapterConfig):
    """Settings of closed-form learners that may train an adapter in the first task."""

    # The `adam` of LAMDA-PILOT's learners of this kind is AdamW, so the name is left out here.
    optimizer: Annotated[str, Rule(choices=("adamw", "sgd"))]
    adapter: Annotated[bool, Rule("train an adapter in the first task; false: no task trains")] = False


class ClosedForm(AdapterLearner):
    """A closed-form classifier on features of the frozen ViT, or of the ViT with an adapter of the first task.

    Each training image passes the ViT once, after training. A subclass implements `fit`, which computes the
    classifier from `self.moments`, and `classify`. Images of known classes can be added at any time.

    Attributes:
        candidates: Values of hyperparameters to choose from on training images; `validate` scores them.
        validated: Scores of the candidates over the tasks so far, and the number of images behind them at the end.
    """

    needs = "features"
    scatter = "none"
    """What `Moments` keeps of the within-class scatter."""
    candidates: tuple[Any, ...] = ()
    sigma: Tensor

    def __init__(self, backbone: FrozenBackbone, config: MethodConfig, num_classes: int, num_tasks: int, fidelity: str):
        super().__init__(backbone, config, num_classes, num_tasks, fidelity)
        self.adapters = self.new_adapters() if self.trains(config) else None
        self.head: CosineHead | None = None  # of the first task, while it trains the adapter
        self.register_buffer("sigma", torch.ones(1))
        self.moments = self.new_moments()
        self.validated = torch.zeros(len(self.candidates) + 1, dtype=torch.float64)
        self.allocate(0)

    @property
    def feature_dim(self) -> int:
        """Length of the features that `embedding` returns."""
        return self.backbone.dim

    def new_moments(self) -> Moments:
        """Statistics without any image."""
        return Moments(self.feature_dim, self.scatter)

    def shapes(self, classes: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the classifier's buffers for so many classes."""
        raise NotImplementedError

    def allocate(self, classes: int) -> None:
        """Fills the classifier's buffers with zeros."""
        for name, shape in self.shapes(classes).items():
            self.register_buffer(name, torch.zeros(shape, device=self.sigma.device))

    @classmethod
    def trains(cls, config: MethodConfig, task: int = 0) -> bool:
        """In the first task, if there is an adapter to train."""
        return isinstance(config, ClosedFormConfig) and config.adapter and task == 0

    @classmethod
    def needs_vit(cls, config: MethodConfig) -> bool:
        """Only an adapter needs the blocks of a ViT."""
        return cls.trains(config)

    def begin_task(self, task: TaskInfo) -> None:
        """Builds the classifier that trains the adapter in the first task; classes may be more than announced."""
        self.num_classes = max(self.num_classes, task.stop)
        super().begin_task(task)
        if task.index == 0 and self.adapters is not None:
            self.head = CosineHead(self.backbone.dim, task.num_classes).to(self.sigma.device)

    def param_groups(self) -> list[dict[str, Any]]:
        """Adapter and classifier in the first task, nothing later."""
        return super().param_groups() if self.head is not None else []

    def observe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the first task's classes; no auxiliary loss."""
        if self.adapters is None or self.head is None:
            raise UserError(f"{self.title} trains in its first task alone, and only with an adapter")
        features = self.features(self.backbone.embed(x), list(self.adapters.parts), dropout=True)
        return self.head(features), features.new_zeros(())

    @torch.no_grad()
    def end_task(self, images: Images) -> None:
        """Adds the task's images to the statistics and computes the classifier of all classes."""
        self.settle_features()
        batches = [(self.embedding(x.to(self.sigma.device)), y) for x, y in images()]
        features, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        self.add(features, labels)

    @torch.no_grad()
    def add(self, features: Tensor, labels: Tensor) -> None:
        """Learns from features [n, feature_dim] of images of new or known classes.

        A class beyond those of the tasks so far needs a `begin_task` first.
        """
        if self.moments.classes < (known := min(int(labels.min()), self.seen)):
            raise UserError(f"{self.title} has no statistics of its first {known} classes, so it cannot learn more")
        if not 0 <= int(labels.min()) <= int(labels.max()) < self.seen:
            raise UserError(f"labels must be from 0 to {self.seen - 1}; begin a task with further classes first")
        features, labels = features.detach().float(), labels.cpu()
        if self.candidates:
            self.validated += self.validate(features, labels)
        self.moments.add(features, labels)
        self.moments.grow(self.seen)
        self.fit()

    @torch.no_grad()
    def remove(self, label: int) -> None:
        """Removes a class as if its images had never been added; later labels move up by one."""
        self.moments.remove(label)
        stops = [stop - (stop > label) for stop in self.stops]
        self.stops = [stop for place, stop in enumerate(stops) if stop > (stops[place - 1] if place else 0)]
        self.num_classes -= 1
        self.fit()

    def validate(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scores of the candidates on images that are about to be added, and their number [len(candidates) + 1]."""
        raise NotImplementedError

    def fit(self) -> None:
        """Computes the classifier of all classes seen from `self.moments`."""
        raise NotImplementedError

    def classify(self, features: Tensor) -> Tensor:
        """Scores [B, classes seen] of features, in float32."""
        raise NotImplementedError

    def settle_features(self) -> None:
        """Ends the training of the adapter: from here on a feature never changes."""
        if self.adapters is not None:
            self.adapters.requires_grad_(False)
        if self.head is not None:
            self.sigma, self.head = self.head.sigma.detach().clone(), None

    @torch.no_grad()
    def scores(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Scores of the classifier; of the head that trains the adapter while it is trained."""
        classes = self.seen
        if self.head is not None and self.adapters is not None:
            return self.head(self.features(self.backbone.embed(x), list(self.adapters.parts)))
        features = self.cache.get("features", ids, x, self.embedding)
        with torch.autocast(x.device.type, enabled=False):
            scores = self.classify(features.float())
        if scores.shape[1] < classes:  # within a task: its classes are not known yet
            scores = F.pad(scores, (0, classes - scores.shape[1]), value=-torch.inf)
        return scores

    @torch.no_grad()
    def embedding(self, x: Tensor) -> Tensor:
        """Features [B, feature_dim] of images, from one forward pass."""
        return self.block_features(x, 1).flatten(1)

    def block_features(self, x: Tensor, layers: int) -> Tensor:
        """Features of the last blocks [B, layers, dim], with the adapter if there is one."""
        if self.adapters is None:
            return self.backbone.features(x, layers)
        return self.backbone.features(x, layers, self.adapter_extras(list(self.adapters.parts)))

    def grow_to(self, stops: Sequence[int]) -> None:
        """Takes the shape after finished tasks: features are settled, statistics are empty."""
        super().grow_to(stops)
        if stops:
            self.settle_features()
        self.moments = self.new_moments()
        self.validated = torch.zeros_like(self.validated)
        self.allocate(stops[-1] if stops else 0)

    def named_tensors(self) -> dict[str, Tensor]:
        """The adapter, if there is one."""
        return {} if self.adapters is None else named_adapters(self.adapters, "backbone.blocks.{}.adaptmlp")

    def named_head(self, weight: Tensor) -> dict[str, Tensor]:
        """LAMDA-PILOT's classifier: `weight` and its scale, or the head that trains the adapter."""
        weight, sigma = (weight, self.sigma) if self.head is None else (self.head.weight, self.head.sigma)
        return {"fc.weight": weight, "fc.sigma": sigma}

    def statistics(self) -> dict[str, Tensor]:
        """The moments, and the scores of the candidates."""
        return self.moments.state() | ({"validated": self.validated} if self.candidates else {})

    def load_statistics(self, known: dict[str, Tensor]) -> None:
        """Takes over what `statistics` returned."""
        self.moments.load_state({name: tensor.cpu() for name, tensor in known.items()})
        if self.candidates:
            if "validated" not in known or known["validated"].shape != self.validated.shape:
                raise UserError(
                    f"the checkpoint is of a version of pilot_tal in which {self.title} chose among other values; "
                    "remove its folder and start over"
                )
            self.validated = known["validated"].cpu().clone()
