"""Trains our learners on recorded runs of the original and measures the differences."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from data_lt.errors import UserError, sentence
from pilot_tal.backbone import FrozenViT, build_from_state
from pilot_tal.engine.loop import train_task
from pilot_tal.learners import Learner
from pilot_tal.losses import TaskLoss, build_loss
from pilot_tal.verify.recorded import RecordedMOS, RecordedTAL, learner_class, new_rows, statistics
from pilot_tal.verify.recording import Recording, read_recording

LOSS_TOLERANCE = 2e-6
STATE_TOLERANCE = 1e-4
SCORE_TOLERANCE = 2e-5


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
        return (
            self.losses <= LOSS_TOLERANCE
            and self.states <= STATE_TOLERANCE
            and self.scores <= SCORE_TOLERANCE
            and self.predictions
            and not self.problems
        )


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
        place = own[name][new_rows(learner, own[name], len(rows))] if name in own else None
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
    extra = statistics(learner)
    if isinstance(criterion, RecordedTAL):
        extra |= {"Q": criterion.Q, "alpha": torch.as_tensor(criterion.alpha)}
    recorded = recording.group(prefix)
    pairs = {name: (own[name], expected[name]) for name in expected.keys() & own.keys()}
    pairs |= {name: (value, recorded[name]) for name, value in extra.items() if name in recorded}
    differences = {name: _distance(*pair) for name, pair in sorted(pairs.items())}
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
