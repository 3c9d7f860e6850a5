"""Runs one session of a model that goes on learning, by the engine's `Trainer`."""

import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from data_lt import CARDS, LongTailedSet
from data_lt.pictures import shortened
from data_lt.prepare import OWN
from pilot_tal.config.settings import Hardware, RunConfig
from pilot_tal.engine.checkpoint import Checkpoint, resume, save_checkpoint
from pilot_tal.engine.hardware import choose_device
from pilot_tal.engine.jobs import native_record
from pilot_tal.engine.loop import sent, tensor_cores
from pilot_tal.engine.trainer import Trainer, load_shared
from pilot_tal.learners import LEARNERS, Learner
from pilot_tal.learners.base import STATISTICS
from pilot_tal.learners.closed_form import ClosedForm
from pilot_tal.model.load import find_vit
from pilot_tal.model.sessions import HELD_OUT, History, Photo, data_name, kept_file
from pilot_tal.record.run_record import RunRecord, short_hash
from pilot_tal.record.writer import RunWriter, open_run
from pilot_tal.schema import Rule
from pilot_tal.stream.batches import Batches, derive_seed
from pilot_tal.stream.task import TaskInfo

FEATURES, LABELS = "held_out.features", "held_out.labels"
_NOTE = "Held-out images"
Tested = tuple[list[str], np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Capacity:
    """What methods that cannot grow are built for."""

    max_tasks: Annotated[int, Rule("sessions among which DualPrompt and CODA-Prompt divide prompts", 1, 100_000)] = 20
    max_classes: Annotated[int, Rule("classes that a classifier has rows for from the start", 1, 100_000)] = 1000


@dataclass(frozen=True)
class Place:
    """A model folder while a session works on it; `record` is None for a new model."""

    folder: Path
    config: RunConfig
    hardware: Hardware
    history: History
    record: RunRecord | None
    capacity: Capacity

    @property
    def closed_form(self) -> bool:
        """Whether the method keeps additive statistics."""
        return self.config.method in closed_forms()

    @property
    def classes(self) -> tuple[str, ...]:
        """Those learned before."""
        return self.record.stream.class_names if self.record else ()

    def recorded(self, record: RunRecord, history: History) -> RunRecord:
        """The record with the classes, tasks and training images of a history."""
        stream = replace(record.stream, order="as learned", **history.stream())
        having = {photo.label for photo in history.held_out}
        without = [label for label in stream.class_names if label not in having]
        what = "by their features, which never change" if self.closed_form else "as copies"
        note = f"{_NOTE} of all sessions are kept in the model's folder {what}, and predicted after each session."
        if without:
            note += f" Classes without a held-out image, so without an accuracy: {shortened(without)}."
        checksum = short_hash(sorted({photo.checksum for photo in history.images}))
        return replace(
            record,
            engine=replace(record.engine, details=asdict(self.capacity)),
            data=replace(record.data, checksum=checksum, recipe={}, **data_name(self.folder)),
            stream=stream,
            notes=(*(text for text in record.notes if not text.startswith(_NOTE)), note),
        )


def closed_forms() -> list[str]:
    """Methods with additive statistics: they learn more images of known classes, and forget, exactly."""
    return [method for method, learner in LEARNERS.items() if issubclass(learner, ClosedForm)]


class SessionTrainer(Trainer):
    """Runs the one task of a session.

    Args:
        place: The model folder.
        history: Its sessions, with the new one.
        photos: The images of the new session; copies of those held out are kept for methods that train.
        path: The copy of the folder in which to work.
    """

    def __init__(self, place: Place, history: History, photos: Sequence[Photo], path: Path):
        config, names = place.config, list(history.stream()["class_names"])
        rows = []
        for photo in () if place.closed_form else place.history.held_out:
            rows.append((str(kept_file(path, photo)), names.index(photo.label), "test", photo.name))
        for photo in photos:
            file, split = photo.file.absolute(), "test" if photo.split == HELD_OUT else "train"
            if split == "test" and not place.closed_form:
                file = kept_file(path, photo)
                file.parent.mkdir(exist_ok=True)
                shutil.copyfile(photo.file, file)
            rows.append((str(file), names.index(photo.label), split, photo.name))
        frame = pd.DataFrame(rows, columns=["path", "label", "split", "name"]).astype({"label": np.int64})
        about = {"checksum": "", "law": {}, "card": CARDS[OWN], **data_name(place.folder)}
        data = LongTailedSet(root=Path(), frame=frame, class_names=names, **about)
        vit = None if place.record is None else find_vit(place.record)
        shared = load_shared(config, place.hardware, data, choose_device(place.hardware.device), vit)
        record = place.recorded(place.record or native_record(config, data), history)
        super().__init__(config, place.hardware, shared, record, path)
        self.names = frame["name"].tolist()
        self.kept = [photo.name for photo in place.history.held_out]

    def statistics_batches(self, task: TaskInfo) -> Batches:
        """All training images of the session, also those of known classes."""
        return self._batches(self.train, 0, task.stop, self.test_transform)

    def restore(self, learner: Learner, checkpoint: Checkpoint) -> None:
        """Also takes up a learner of a smaller capacity: its classifier keeps the rows that it has."""
        state = dict(checkpoint.learner)
        learner.grow_to(state["stops"].tolist())
        for name, own in learner.named_tensors().items():
            rows = state.get(name, own)
            if rows.shape != own.shape and rows.shape[1:] == own.shape[1:] and len(rows) < len(own):
                state[name] = torch.cat((rows, own[len(rows) :].detach().cpu()))
        super().restore(learner, replace(checkpoint, learner=state))


class ClosedFormSession(SessionTrainer):
    """A session of a closed-form learner.

    Features never change, so those of held-out images are kept in place of the images. They and the statistics are
    in the checkpoint's cache, which is kept for the last task alone.
    """

    features = torch.zeros(0)
    labels = torch.zeros(0, dtype=torch.long)

    def restore(self, learner: Learner, checkpoint: Checkpoint) -> None:
        """Takes up the classifier, the statistics and the held-out features."""
        cache = dict(checkpoint.cache)
        self.features, self.labels = cache.pop(FEATURES), cache.pop(LABELS)
        learner.load_checkpoint_state({**checkpoint.learner, **cache})

    def checkpoint(self, learner: Learner, task: TaskInfo) -> Checkpoint:
        """Keeps statistics and held-out features beside the learner."""
        state = learner.checkpoint_state()
        cache = {name: state.pop(name) for name in list(state) if name.startswith(STATISTICS)}
        return Checkpoint(task.index + 1, state, {**cache, FEATURES: self.features, LABELS: self.labels})

    def evaluate(self, learner: Learner, task: TaskInfo, picks: list[Tensor] | None = None) -> Tested:
        """Adds the features of the session's held-out images to those kept, and predicts all."""
        features, labels = self._embedded(cast(ClosedForm, learner), self.test)
        self.features, self.labels = torch.cat((self.features, features)), torch.cat((self.labels, labels))
        self.kept += [self.names[index] for own in self.test for index in own]
        return self._predicted(cast(ClosedForm, learner))

    def add_images(self) -> None:
        """Learns more images of known classes; the number of tasks stays."""
        with self._changed(self.record) as (writer, learner):
            torch.manual_seed(derive_seed("images", self.config.seed, *self.record.stream.train_counts))
            learner.add(*self._embedded(learner, self.train))
            writer.write_task(self.tasks[-1].index, *self.evaluate(learner, self.tasks[-1]))

    def remove_class(self, label: int, record: RunRecord) -> None:
        """Removes a class from the classifier, the statistics, the held-out features and all predictions.

        Args:
            label: The class; later ones move up by one.
            record: The record without the class.
        """
        with self._changed(record) as (writer, learner):
            learner.remove(label)
            own = self.labels == label
            self.kept = [name for name, gone in zip(self.kept, own.tolist(), strict=True) if not gone]
            self.features, self.labels = self.features[~own], self.labels[~own] - (self.labels[~own] > label).long()
            writer.files = {}
            moments, stops = learner.moments, learner.stops
            for task in range(len(stops)):  # the classifier of a task's classes follows from their statistics
                learner.moments, learner.stops = copy.deepcopy(moments), stops[: task + 1]
                while learner.moments.classes > learner.seen:
                    learner.moments.remove(learner.moments.classes - 1)
                learner.fit()
                writer.write_task(task, *self._predicted(learner))

    @contextmanager
    def _changed(self, record: RunRecord) -> Iterator[tuple[RunWriter, ClosedForm]]:
        """The learner of the last checkpoint to change; at the end, it is committed with the record."""
        with open_run(self.path) as writer:
            checkpoint, _ = resume(writer)
            assert checkpoint is not None
            learner = cast(ClosedForm, self.build())
            self.restore(learner, checkpoint)
            yield writer, learner
            done = record.num_tasks
            save_checkpoint(writer, replace(self.checkpoint(learner, self.tasks[0]), tasks_done=done))
            writer.write_record(record)
            writer.commit(record, done, restart=True)

    def _embedded(self, learner: ClosedForm, images: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Features and labels of images by label, from one forward pass each."""
        device, precision = self.shared.device, self.config.settings.precision
        features, labels = [torch.zeros(0, learner.feature_dim)], [self.labels[:0]]
        with torch.no_grad(), tensor_cores(device, precision):
            for x, y, _ in self._batches(images, 0, len(images), self.test_transform).in_order():
                features.append(learner.embedding(sent(device, x, y)[0]).float().cpu())
                labels.append(y)
        return torch.cat(features), torch.cat(labels)

    def _predicted(self, learner: ClosedForm) -> Tested:
        """Names, true and predicted labels of the held-out images of the classes that a learner knows."""
        chosen = self.labels < learner.seen
        names = [name for name, known in zip(self.kept, chosen.tolist(), strict=True) if known]
        scores = learner.classify(self.features[chosen].to(learner.sigma.device))[:, : learner.seen]
        return names, self.labels[chosen].numpy(), scores.argmax(dim=1).cpu().numpy()
