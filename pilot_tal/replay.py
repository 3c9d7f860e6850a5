"""Plays recorded runs through our learners and measures how far they part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pilot_tal.backbone import FrozenViT, build_from_state
from pilot_tal.errors import PilotTalError
from pilot_tal.learners import Learner, build_learner
from pilot_tal.learners.mos import MOS
from pilot_tal.losses import build_loss
from pilot_tal.recorded import RecordedMOS, RecordedTAL, recorded_centroids
from pilot_tal.recording import Recording, read_recording
from pilot_tal.tal import TAL
from pilot_tal.training import Criterion, train_task

LOSS_TOLERANCE = 1e-4
STATE_TOLERANCE = 1e-3
SCORE_TOLERANCE = 1e-3


@dataclass
class TaskReport:
    """How far our learner and the recording part in one task."""

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


def replay_file(path: str | Path) -> Iterator[TaskReport]:
    """Plays one recording, loss by loss and task by task."""
    recording = read_recording(path)
    if not recording.losses:
        raise PilotTalError(f"{path} holds no recorded losses (ce.task0.losses or tal.task0.losses)")
    meta = recording.meta
    backbone = build_from_state(recording.group("vit."), meta["heads"], name=str(path))
    shape = {"dim": backbone.dim, "depth": backbone.depth, "img": backbone.img_size[0]}
    for name, value in shape.items():
        if meta[name] != value:
            raise PilotTalError(f"{path}: meta says {name}={meta[name]}, the ViT's tensors say {value}")
    for loss in recording.losses:
        yield from _replay_loss(recording, backbone, loss)


def _replay_loss(recording: Recording, backbone: FrozenViT, loss: str) -> Iterator[TaskReport]:
    meta, config = recording.meta, recording.config()
    shape = (backbone, config, sum(recording.sizes), len(recording.sizes), meta["fidelity"])
    recorded_mos = meta["method"] == "mos" and meta["fidelity"] == "fixed"
    learner = RecordedMOS(*shape) if recorded_mos else build_learner(meta["method"], *shape)
    learner.import_tensors({**learner.export_tensors(), **recording.group("init.")})
    for index in range(len(recording.sizes)):
        task = recording.task(index)
        criterion = _criterion(recording, loss)
        seen_losses: list[Tensor] = []
        train_task(
            learner,
            criterion,
            task,
            lambda epoch, index=index: recording.train_batches(index),
            epochs=meta["epochs"],
            config=config,
            device="cpu",
            on_begin=lambda index=index: _write_new_rows(learner, recording, index),
            on_step=lambda info, seen=seen_losses: seen.append(info.loss),
        )
        _inject_draws(learner, recording, loss, index)
        learner.end_task(lambda index=index: recording.train_batches(index))
        yield _compare(recording, learner, criterion, loss, index, torch.stack(seen_losses))


def _criterion(recording: Recording, loss: str) -> Criterion:
    if loss == "ce":
        return build_loss("ce")
    meta = recording.meta
    return RecordedTAL(TAL(2, lam=meta["lam"], r=meta["r"], eps=meta["eps"], dtype=torch.float64))


@torch.no_grad()
def _write_new_rows(learner: Learner, recording: Recording, index: int) -> None:
    """Puts the recorded draws in the place of our own: the rows that are new in this task."""
    own = learner.named_tensors()
    for name, rows in recording.group(f"begin{index}.").items():
        if name not in own or own[name][learner.new_rows()].shape != rows.shape:
            raise PilotTalError(f"{recording.path}: begin{index}.{name} {list(rows.shape)} does not fit the learner")
        own[name][learner.new_rows()] = rows


def _inject_draws(learner: Learner, recording: Recording, loss: str, index: int) -> None:
    """Hands what MOS drew at the end of the task to the learner: centroids, and alignment batches by epoch."""
    if not isinstance(learner, MOS):
        return
    arrays = recording.group(f"{loss}.task{index}.")
    if isinstance(learner, RecordedMOS):
        learner.recorded = recorded_centroids(arrays)
    epochs = learner.config.crct_epochs
    if index == 0 or epochs == 0:
        return
    if "align.features" not in arrays or len(arrays["align.features"]) % epochs:
        raise PilotTalError(f"{recording.path}: {loss}.task{index}.align needs batches for {epochs} epochs")
    by_epoch = zip(arrays["align.features"].chunk(epochs), arrays["align.labels"].chunk(epochs), strict=True)
    epoch_batches = [list(zip(features, labels, strict=True)) for features, labels in by_epoch]
    learner.draws = epoch_batches.__getitem__


def _compare(
    recording: Recording, learner: Learner, criterion: Criterion, loss: str, index: int, losses: Tensor
) -> TaskReport:
    prefix = f"{loss}.task{index}."
    problems: list[str] = []
    expected = recording.group(f"{prefix}state.")
    own: dict[str, Tensor] = dict(learner.named_tensors())
    for name in sorted(own.keys() - expected.keys()):
        problems.append(f"not recorded: {name}")
    extra = {"statistics": learner.statistics(), "loss": {}}
    if isinstance(criterion, RecordedTAL):
        extra["loss"] = {"Q": criterion.tal.Q, "alpha": torch.as_tensor(criterion.tal.alpha)}
    for values in extra.values():
        for name, value in values.items():
            if f"{prefix}{name}" in recording.arrays:
                expected[name], own[name] = recording.tensor(f"{prefix}{name}"), value
    differences = {name: _difference(own, name, value, problems) for name, value in expected.items()}
    worst = max(differences, key=differences.get, default="")
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
        losses=_distance(losses, recording.tensor(f"{prefix}losses")),
        states=differences.get(worst, 0.0),
        scores=_distance(scores, recorded["scores"]),
        predictions=torch.equal(predictions, recorded["pred"]),
        worst_state=worst,
        problems=problems,
    )


def _scores(recording: Recording, learner: Learner, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, first choices and labels over the test batches of all tasks so far, each as its own batch."""
    tests = [(recording.tensor(f"test{t}.x"), recording.tensor(f"test{t}.y")) for t in range(index + 1)]
    scores = torch.cat([learner.scores(x) for x, _ in tests])
    return scores, scores.argmax(dim=1), torch.cat([y for _, y in tests])


def _difference(own: Mapping[str, Tensor], name: str, expected: Tensor, problems: list[str]) -> float:
    if name not in own:
        problems.append(f"no such tensor: {name}")
        return 0.0
    return _distance(own[name], expected)


def _distance(own: Tensor, expected: Tensor) -> float:
    """Largest absolute difference; infinite for other shapes, and for a NaN on either side."""
    if own.shape != expected.shape:
        return float("inf")
    if own.numel() == 0:
        return 0.0
    distance = (own.detach().double() - expected.double()).abs().max().item()
    return distance if distance == distance else float("inf")
