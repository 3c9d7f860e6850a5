"""Trains our learners on recorded runs of the original and measures the differences."""

from collections.abc import Iterator, Mapping
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

    file: Path
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
    meta = recording.meta
    backbone = build_from_state(recording.group("vit."), meta["heads"], name=str(path))
    shape = {"dim": backbone.dim, "depth": backbone.depth, "img": backbone.img_size[0]}
    for name, value in shape.items():
        if meta[name] != value:
            raise UserError(f"{path}: meta says {name}={meta[name]}, the ViT's tensors say {value}")
    try:
        for loss in recording.losses:
            yield from _verify_loss(recording, backbone, loss)
    except (RuntimeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} cannot be verified, its arrays do not fit: {sentence(error)[:150]}") from error


def _verify_loss(recording: Recording, backbone: FrozenViT, loss: str) -> Iterator[TaskReport]:
    meta, config = recording.meta, recording.config()
    sizes = recording.sizes
    learner = learner_class(meta["method"], meta["fidelity"])(
        backbone, config, sum(sizes), len(sizes), meta["fidelity"]
    )
    learner.import_tensors({**learner.export_tensors(), **recording.group("init.")})
    for index in range(len(sizes)):
        yield _verify_task(recording, learner, loss, index)


def _verify_task(recording: Recording, learner: Learner, loss: str, index: int) -> TaskReport:
    criterion = _criterion(recording, loss)
    losses: list[Tensor] = []
    train_task(
        learner,
        criterion,
        recording.task(index),
        lambda epoch: recording.train_batches(index),
        epochs=recording.meta["epochs"],
        config=learner.config,
        device="cpu",
        on_begin=lambda: _write_new_rows(learner, recording, f"{loss}.task{index}.begin."),
        on_step=lambda info: losses.append(info.loss),
    )
    if isinstance(learner, RecordedMOS):
        learner.recorded = recording.group(f"{loss}.task{index}.")
    learner.end_task(lambda: recording.train_batches(index))
    return _compare(recording, learner, criterion, loss, index, losses)


def _criterion(recording: Recording, loss: str) -> TaskLoss:
    if loss != "tal":
        return build_loss("ce")  # unused by a learner that trains nothing
    meta = recording.meta
    return RecordedTAL(2, lam=meta["lam"], r=meta["r"], eps=meta["eps"], dtype=torch.float64)


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
    problems: list[str] = []
    expected = recording.group(f"{prefix}state.")
    own: dict[str, Tensor] = dict(learner.named_tensors())
    for name in sorted(own.keys() - expected.keys()):
        problems.append(f"not recorded: {name}")
    extra = statistics(learner)
    if isinstance(criterion, RecordedTAL):
        extra |= {"Q": criterion.Q, "alpha": torch.as_tensor(criterion.alpha)}
    for name, value in extra.items():
        if f"{prefix}{name}" in recording.arrays:
            expected[name], own[name] = recording.tensor(f"{prefix}{name}"), value
    differences = {name: _difference(own, name, value, problems) for name, value in expected.items()}
    worst = max(differences, key=lambda name: differences[name], default="")
    scores, predictions, true = _scores(recording, learner, index)
    recorded = {name: recording.tensor(f"{prefix}eval.{name}") for name in ("scores", "pred", "true")}
    if not torch.equal(true, recorded["true"]):
        problems.append("the recorded true labels are not those of the test batches")
    return TaskReport(
        file=recording.path,
        method=recording.meta["method"],
        fidelity=recording.meta["fidelity"],
        loss=loss,
        task=index,
        losses=_loss_distance(losses, recording.group(f"{prefix}losses").get("")),
        states=differences.get(worst, 0.0),
        scores=_distance(scores, recorded["scores"]),
        predictions=torch.equal(predictions, recorded["pred"]),
        worst_state=worst,
        problems=problems,
    )


def _scores(recording: Recording, learner: Learner, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, predictions and labels of the test batches of all tasks so far."""
    tests = [(recording.tensor(f"test{t}.x"), recording.tensor(f"test{t}.y")) for t in range(index + 1)]
    scores = torch.cat([learner.scores(x) for x, _ in tests])
    return scores, scores.argmax(dim=1), torch.cat([y for _, y in tests])


def _difference(own: Mapping[str, Tensor], name: str, expected: Tensor, problems: list[str]) -> float:
    if name not in own:
        problems.append(f"no such tensor: {name}")
        return 0.0
    return _distance(own[name], expected)


def _loss_distance(own: list[Tensor], expected: Tensor | None) -> float:
    """Largest difference of the losses; a task that trains nothing has none."""
    return _distance(torch.stack(own) if own else torch.zeros(0), torch.zeros(0) if expected is None else expected)


def _distance(own: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; infinite for other shapes, and for a NaN on either side."""
    if own.shape != expected.shape:
        return float("inf")
    if own.numel() == 0:
        return 0.0
    distance = (own.detach().double() - expected.double()).abs().max().item()
    return distance if distance == distance else float("inf")
