"""Trains our learners on recorded runs of the original, one `.npz` file each, and measures the differences."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from data_lt.errors import UserError, sentence
from data_lt.files import check_regular
from pilot_tal.backbone import FrozenViT, build_from_state
from pilot_tal.engine.loop import train_task
from pilot_tal.learners import FIDELITIES, LEARNERS, Learner, MethodConfig
from pilot_tal.losses import TaskLoss, build_loss
from pilot_tal.schema import Rule, build, settings_of
from pilot_tal.stream.task import TaskInfo
from pilot_tal.verify.recorded import RecordedMOS, RecordedTAL, learner_class, new_rows, statistics

LOSS_TOLERANCE = 2e-6
STATE_TOLERANCE = 1e-4
SCORE_TOLERANCE = 2e-5
LOSSES = ("ce", "tal", "none")
"""Losses of recorded runs; `none` is that of a learner that trains nothing."""
LARGEST = 1 << 32  # bytes
Size = Annotated[int, Rule("a size", 1, 10_000)]


@dataclass(frozen=True)
class Meta:
    """What is read of `meta`: `per` is the number of classes per task, `hp` has LAMDA-PILOT's settings."""

    method: Annotated[str, Rule("a method", choices=tuple(LEARNERS))]
    fidelity: Annotated[str, Rule("a fidelity", choices=FIDELITIES)]
    heads: Size
    tasks: Size
    per: Size
    epochs: Size
    bs: Size
    wd: Annotated[float, Rule("weight decay", 0, 100)]
    lam: Annotated[float, Rule("TAL's λ", above=0, below=1)]
    r: Annotated[float, Rule("TAL's r", above=0, high=1000)]
    eps: Annotated[float, Rule("TAL's ε", above=0, below=1)]
    hp: dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """One recorded run: its meta data and its arrays."""

    path: Path
    meta: Meta
    arrays: dict[str, np.ndarray]

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses of the recorded runs."""
        return tuple(loss for loss in LOSSES if any(name.startswith(f"{loss}.task0.") for name in self.arrays))

    def tensor(self, name: str) -> Tensor:
        """One array as a tensor."""
        if name not in self.arrays:
            raise UserError(f"{self.path} lacks the array {name!r}")
        return torch.from_numpy(self.arrays[name])

    def group(self, prefix: str) -> dict[str, Tensor]:
        """All tensors whose names begin with a prefix, without the prefix."""
        return {k.removeprefix(prefix): torch.from_numpy(v) for k, v in self.arrays.items() if k.startswith(prefix)}

    def train_batches(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The training batches of a task."""
        count = len(self.group(f"train{task}.")) // 2
        if count == 0:
            raise UserError(f"{self.path} has no training batch for task {task}")
        for index in range(count):
            yield self.tensor(f"train{task}.{index}.x"), self.tensor(f"train{task}.{index}.y")

    def task(self, index: int) -> TaskInfo:
        """A task as the training loop takes it."""
        size = self.meta.per
        counts = (1,) * size  # no recorded loss reads them
        return TaskInfo(index, self.meta.tasks, index * size, (index + 1) * size, counts)

    def config(self) -> MethodConfig:
        """The learner's settings: those of the recording that it has, defaults for the rest."""
        meta, config = self.meta, LEARNERS[self.meta.method].config_class
        values: dict[str, Any] = {"tuned_epoch": meta.epochs, "batch_size": meta.bs, "weight_decay": meta.wd}
        values["scheduler"] = "cosine"  # of the learners whose original has no such setting
        values["adapter_dropout"] = 0.0  # verification draws no random number
        known = settings_of(config)
        values = {name: value for name, value in (values | meta.hp).items() if name in known}
        return build(config, values, of=str(self.path))


def read_recording(path: str | Path) -> Recording:
    """Reads a recording.

    Raises:
        UserError: the file is not a recording, or its meta data are wrong.
    """
    path = Path(path)
    check_regular(path, "the recording", LARGEST)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        values = dict(json.loads(bytes(arrays.pop("meta")).decode("utf-8")))
    except Exception as error:  # NumPy's own message recommends allow_pickle
        raise UserError(f"{path} is not a recording: it must be an .npz file with a JSON 'meta'") from error
    try:
        meta = build(Meta, {name: value for name, value in values.items() if name in settings_of(Meta)})
    except UserError as error:
        raise UserError(f"{path}: meta: {error}") from error
    return Recording(path, meta, arrays)


@dataclass
class TaskReport:
    """Largest differences between our learner and the recording in one task."""

    method: str
    fidelity: str
    loss: str
    task: int
    losses: float
    states: float
    scores: float
    predictions: bool
    worst_state: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything is within tolerance."""
        within = (self.losses <= LOSS_TOLERANCE, self.states <= STATE_TOLERANCE, self.scores <= SCORE_TOLERANCE)
        return all(within) and self.predictions and not self.problems


def verify_file(path: str | Path) -> Iterator[TaskReport]:
    """Verifies one recording; yields a report per loss and task."""
    recording = read_recording(path)
    if not recording.losses:
        raise UserError(f"{path} holds no recorded run (nothing under ce.task0, tal.task0 or none.task0)")
    backbone = build_from_state(recording.group("vit."), recording.meta.heads, name=str(path))
    try:
        for loss in recording.losses:
            yield from _verify_loss(recording, backbone, loss)
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be verified, its arrays do not fit: {sentence(error)[:150]}") from error


def _verify_loss(recording: Recording, backbone: FrozenViT, loss: str) -> Iterator[TaskReport]:
    meta = recording.meta
    make = learner_class(meta.method, meta.fidelity)
    learner = make(backbone, recording.config(), meta.tasks * meta.per, meta.tasks, meta.fidelity)
    learner.import_tensors({**learner.export_tensors(), **recording.group("init.")})
    for index in range(meta.tasks):
        yield _verify_task(recording, learner, loss, index)


def _verify_task(recording: Recording, learner: Learner, loss: str, index: int) -> TaskReport:
    meta, prefix = recording.meta, f"{loss}.task{index}."
    criterion = build_loss("ce")  # unused by a learner that trains nothing
    if loss == "tal":
        criterion = RecordedTAL(2, lam=meta.lam, r=meta.r, eps=meta.eps, dtype=torch.float64)
    losses: list[Tensor] = []
    train_task(
        learner,
        criterion,
        recording.task(index),
        lambda epoch: recording.train_batches(index),
        epochs=meta.epochs,
        config=learner.config,
        device="cpu",
        on_begin=lambda: _write_new_rows(learner, recording, f"{prefix}begin."),
        on_step=lambda info: losses.append(info.loss),
    )
    if isinstance(learner, RecordedMOS):
        learner.recorded = recording.group(prefix)
    learner.end_task(lambda: recording.train_batches(index))
    return _compare(recording, learner, criterion, loss, index, losses)


@torch.no_grad()
def _write_new_rows(learner: Learner, recording: Recording, prefix: str) -> None:
    """Replaces the rows that our learner has drawn in this task by the recorded ones."""
    own = learner.named_tensors()
    for name, rows in recording.group(prefix).items():
        place = new_rows(learner, own[name], len(rows)) if name in own else None
        if place is None or place.shape != rows.shape:
            raise UserError(f"{recording.path}: {prefix}{name} {list(rows.shape)} does not fit the learner")
        place.copy_(rows)


def _compare(
    recording: Recording, learner: Learner, criterion: TaskLoss, loss: str, index: int, losses: list[Tensor]
) -> TaskReport:
    prefix = f"{loss}.task{index}."
    expected, own = recording.group(f"{prefix}state."), dict(learner.named_tensors())
    problems = [f"not recorded: {name}" for name in sorted(own.keys() - expected.keys())]
    problems += [f"no such tensor: {name}" for name in expected.keys() - own.keys()]
    own |= statistics(learner)
    if isinstance(criterion, RecordedTAL):
        own |= {"Q": criterion.Q, "alpha": torch.as_tensor(criterion.alpha)}
    recorded = recording.group(prefix)
    expected = {**recorded, **expected}
    differences = {name: _distance(own[name], expected[name]) for name in sorted(own.keys() & expected.keys())}
    worst = max(differences, key=lambda name: differences[name], default="")
    tests = [(recording.tensor(f"test{t}.x"), recording.tensor(f"test{t}.y")) for t in range(index + 1)]
    scores = torch.cat([learner.scores(x) for x, _ in tests])
    if not torch.equal(torch.cat([y for _, y in tests]), recording.tensor(f"{prefix}eval.true")):
        problems.append("the recorded true labels are not those of the test batches")
    none = torch.zeros(0)  # a task that trains nothing has no losses
    return TaskReport(
        method=recording.meta.method,
        fidelity=recording.meta.fidelity,
        loss=loss,
        task=index,
        losses=_distance(torch.stack(losses) if losses else none, recorded.get("losses", none)),
        states=differences.get(worst, 0.0),
        scores=_distance(scores, recording.tensor(f"{prefix}eval.scores")),
        predictions=torch.equal(scores.argmax(dim=1), recording.tensor(f"{prefix}eval.pred")),
        worst_state=worst,
        problems=problems,
    )


def _distance(own: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; infinite for other shapes, and for a NaN on either side."""
    if own.shape != expected.shape:
        return float("inf")
    if own.numel() == 0:
        return 0.0
    distance = (own.detach().double() - expected.double()).abs().max().item()
    return distance if distance == distance else float("inf")
