"""Runs one session of a model that goes on learning, by the engine's `Trainer`."""

import copy
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from pilot_tal.engine.checkpoint import Checkpoint, resume, save_checkpoint
from pilot_tal.engine.loop import sent, tensor_cores
from pilot_tal.engine.trainer import Trainer
from pilot_tal.learners import LEARNERS, Learner
from pilot_tal.learners.closed_form import STATISTICS, ClosedForm
from pilot_tal.record.run_record import RunRecord
from pilot_tal.record.writer import RunWriter, open_run
from pilot_tal.stream.batches import Batches, derive_seed
from pilot_tal.stream.task import TaskInfo

FEATURES, LABELS = "held_out.features", "held_out.labels"


def is_closed_form(method: str) -> bool:
    """Whether a method keeps additive statistics: it learns more images of known classes, and forgets, exactly."""
    return issubclass(LEARNERS[method], ClosedForm)


def closed_forms() -> list[str]:
    """Names of these methods."""
    return [method for method in LEARNERS if is_closed_form(method)]


class SessionTrainer(Trainer):
    """Runs the one task of a session on the images that it has; `kept` names the held-out images of earlier ones."""

    kept: list[str]

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

    features: Tensor | None = None
    labels = torch.zeros(0, dtype=torch.long)

    def restore(self, learner: Learner, checkpoint: Checkpoint) -> None:
        """Takes up the classifier, the statistics and the held-out features."""
        cache = dict(checkpoint.cache)
        self.features, self.labels = cache.pop(FEATURES), cache.pop(LABELS)
        learner.load_checkpoint_state({**checkpoint.learner, **cache})

    def evaluate(
        self, learner: Learner, task: TaskInfo, picks: list[Tensor] | None = None
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Adds the session's held-out images to those kept, and predicts all."""
        self.keep(cast(ClosedForm, learner))
        return self.predicted(cast(ClosedForm, learner))

    def keep(self, learner: ClosedForm) -> None:
        """Adds the features of the session's held-out images to those kept."""
        features, labels = self.embedded(learner, self.test)
        self.features = features if self.features is None else torch.cat((self.features, features))
        self.labels = torch.cat((self.labels, labels))
        self.kept += [self.names[index] for own in self.test for index in own]

    def predicted(self, learner: ClosedForm) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Names, true and predicted labels of the held-out images of the classes that a learner knows."""
        assert self.features is not None
        chosen = self.labels < learner.seen
        names = [name for name, known in zip(self.kept, chosen.tolist(), strict=True) if known]
        scores = learner.classify(self.features[chosen].to(learner.sigma.device))[:, : learner.seen]
        return names, self.labels[chosen].numpy(), scores.argmax(dim=1).cpu().numpy()

    def embedded(self, learner: ClosedForm, images: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Features and labels of images by label, from one forward pass each."""
        device, precision = self.shared.device, self.config.settings.precision
        batches = self._batches(images, 0, len(images), self.test_transform).in_order()
        features, labels = [torch.zeros(0, learner.feature_dim)], [self.labels[:0]]
        with torch.no_grad(), tensor_cores(device, precision):
            for x, y, _ in batches:
                features.append(learner.embedding(sent(device, x, y)[0]).float().cpu())
                labels.append(y)
        return torch.cat(features), torch.cat(labels)

    def add_images(self) -> None:
        """Learns more images of known classes; the number of tasks stays."""
        with open_run(self.path) as writer:
            learner = self._restored(writer)
            torch.manual_seed(derive_seed("images", self.config.seed, *self.record.stream.train_counts))
            learner.add(*self.embedded(learner, self.train))
            self.keep(learner)
            writer.write_task(self.tasks[-1].index, *self.predicted(learner))
            self._commit(writer, learner, self.record)

    def remove_class(self, label: int, record: RunRecord) -> None:
        """Removes a class from the classifier, the statistics, the held-out features and all predictions.

        Args:
            label: The class; later ones move up by one.
            record: The record without the class.
        """
        with open_run(self.path) as writer:
            learner = self._restored(writer)
            learner.remove(label)
            own = self.labels == label
            self.kept = [name for name, gone in zip(self.kept, own.tolist(), strict=True) if not gone]
            assert self.features is not None
            self.features, self.labels = self.features[~own], self.labels[~own] - (self.labels[~own] > label).long()
            writer.files = {}
            self._predict_again(writer, learner)
            self._commit(writer, learner, record)

    def _predict_again(self, writer: RunWriter, learner: ClosedForm) -> None:
        """Predicts as after each task: the classifier of its classes follows from their statistics."""
        moments, stops = learner.moments, learner.stops
        for task in range(len(stops)):
            learner.moments, learner.stops = copy.deepcopy(moments), stops[: task + 1]
            while learner.moments.classes > learner.seen:
                learner.moments.remove(learner.moments.classes - 1)
            learner.fit()
            writer.write_task(task, *self.predicted(learner))

    def _restored(self, writer: RunWriter) -> ClosedForm:
        checkpoint, _ = resume(writer)
        assert checkpoint is not None
        learner = self.build()
        self.restore(learner, checkpoint)
        return cast(ClosedForm, learner)

    def _commit(self, writer: RunWriter, learner: ClosedForm, record: RunRecord) -> None:
        save_checkpoint(writer, replace(self.checkpoint(learner, self.tasks[0]), tasks_done=record.num_tasks))
        writer.write_record(record)
        writer.commit(record, record.num_tasks, restart=True)

    def checkpoint(self, learner: Learner, task: TaskInfo) -> Checkpoint:
        """Keeps statistics and held-out features beside the learner."""
        state = learner.checkpoint_state()
        cache = {name: state.pop(name) for name in list(state) if name.startswith(STATISTICS)}
        assert self.features is not None
        return Checkpoint(task.index + 1, state, {**cache, FEATURES: self.features, LABELS: self.labels})
