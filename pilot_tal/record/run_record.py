"""`RunRecord`: what was run. Every engine writes it, and the report reads nothing else of a run's settings."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from data_lt.errors import UserError

FORMAT = 2
NO_LOSS = "none"  # name of the loss of a learner that trains nothing
_CORRECTIONS = {"sampler": "natural", "posthoc": "none"}  # part of a run's name and stamp only if they are not these


@dataclass(frozen=True)
class EngineRecord:
    """Whose code trained: `native`, or a toolbox; `details` are choices that only this engine has."""

    name: str
    title: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodRecord:
    """The learner with all its settings, under LAMDA-PILOT's names."""

    name: str
    title: str
    fidelity: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class LossRecord:
    """The loss with all its options."""

    name: str
    title: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataRecord:
    """The images: `checksum` of their list, `recipe` of the list, `images` a fingerprint of the image files."""

    name: str
    title: str
    checksum: str | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    images: str | None = None


@dataclass(frozen=True)
class BackboneRecord:
    """The frozen ViT: `weights` is their source, `checksum` of the tensors, `hub` the revision and file SHA-256."""

    name: str
    weights: str
    img_size: int | None = None
    precision: str = "fp32"
    checksum: str | None = None
    hub: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamRecord:
    """Images on their way to the ViT, and classes on theirs through the tasks; classes are in their new order.

    `task_rho` is the factor by which the classes of the last task were made rarer; `train_counts` are those after it.
    """

    transform: str
    normalize: str
    order: str
    task_sizes: tuple[int, ...]
    class_names: tuple[str, ...]
    class_order: tuple[int, ...]
    train_counts: tuple[int, ...]
    task_rho: float = 1.0

    def __post_init__(self):
        if min(self.task_sizes, default=0) < 1:
            raise UserError(f"task_sizes must be whole numbers of at least 1, got {list(self.task_sizes)}")
        for name in ("class_names", "class_order", "train_counts"):
            if (entries := len(getattr(self, name))) != (classes := sum(self.task_sizes)):
                raise UserError(f"{name} has {entries} entries, but the tasks have {classes} classes")
        if len(set(self.class_order)) < len(self.class_order) or min(*self.class_order, *self.train_counts) < 0:
            raise UserError("class_order must name every class once, and no count may be negative")


@dataclass(frozen=True)
class RunRecord:
    """One run.

    `changed` holds the settings that are not defaults (name → [value, default]), `notes` sentences for the report,
    `environment` what is needed to repeat the run, for each process that worked on it.
    """

    engine: EngineRecord
    method: MethodRecord
    loss: LossRecord
    seed: int
    data: DataRecord
    backbone: BackboneRecord
    stream: StreamRecord
    sampler: str = "natural"
    posthoc: str = "none"
    quick: bool = False
    changed: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    environment: tuple[dict[str, Any], ...] = ()
    format: int = FORMAT

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.stream.task_sizes)

    @property
    def is_open(self) -> bool:
        """Whether the stream grows: the record of a model that goes on learning (`pilot-tal learn`)."""
        return "max_tasks" in self.engine.details

    @property
    def capacity(self) -> tuple[int, int]:
        """Classes and tasks that the learner is built for."""
        details, sizes = self.engine.details, self.stream.task_sizes
        return max(details.get("max_classes", 0), sum(sizes)), max(details.get("max_tasks", 0), len(sizes))

    def conditions(self) -> dict[str, Any]:
        """What shaped the result beside dataset, method, fidelity, loss, tasks and seed: flat, by name."""
        return {
            **{f"engine.{key}": value for key, value in self.engine.details.items()},
            **{key: getattr(self.backbone, key) for key in ("weights", "img_size", "precision")},
            "backbone": self.backbone.name,
            **{key: getattr(self.stream, key) for key in ("transform", "normalize", "order")},
            **({"task_rho": self.stream.task_rho} if self.stream.task_rho != 1 else {}),
            "data": self.data.checksum,
            "quick": self.quick,
            **{key: getattr(self, key) for key in _CORRECTIONS},
            **self.method.settings,
        }

    def identity(self) -> dict[str, Any]:
        """Everything that shapes the result: what the run's name stands for."""
        usual = _CORRECTIONS.items()
        return {
            "engine": self.engine.name,
            "method": [self.method.name, self.method.fidelity],
            "loss": [self.loss.name, self.loss.options],
            "seed": self.seed,
            "dataset": self.data.name,
            "task_sizes": self.stream.task_sizes,
            "conditions": {key: value for key, value in self.conditions().items() if (key, value) not in usual},
        }

    @property
    def name(self) -> str:
        """The run's directory."""
        return run_name(self.data, self.method, self.loss, self.seed, self.identity())

    @property
    def stamp(self) -> str:
        """Tells this run from all others, for files that must belong to it."""
        method, loss = self.method, self.loss
        made: tuple[Any, ...] = (self.engine.name, method.name, method.fidelity, loss.name, loss.options)
        if self.is_open:
            return short_hash([made, self.seed])
        made += tuple((key, getattr(self, key)) for key, usual in _CORRECTIONS.items() if getattr(self, key) != usual)
        stream = {key: value for key, value in asdict(self.stream).items() if (key, value) != ("task_rho", 1.0)}
        return short_hash([made, self.seed, self.data.name, self.data.checksum, stream])  # as before task_rho existed

    plain = asdict


def run_name(data: DataRecord, method: MethodRecord, loss: LossRecord, seed: int, identity: Any) -> str:
    """`cub_lt-l2p-tal-s1993-1a2b3c4d`."""
    return f"{data.name}-{method.name}-{loss.name}-s{seed}-{short_hash(identity)}"


def short_hash(value: Any) -> str:
    """Eight hex digits that change with any part of a plain value."""
    return hashlib.sha256(canonical(value)).hexdigest()[:8]


def canonical(value: Any) -> bytes:
    """The one text of a plain value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=True, allow_nan=False).encode()


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(`a.b`, text) for every leaf of nested tables."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)
