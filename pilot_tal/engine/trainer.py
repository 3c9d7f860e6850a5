"""One run: a learner over the tasks of a stream, with a checkpoint after each task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from data_lt import LongTailedSet
from data_lt.errors import UserError
from pilot_tal.backbone import FrozenBackbone
from pilot_tal.backbone.load import given_statistics, load_backbone
from pilot_tal.config.settings import QUICK_STEPS, QUICK_TEST_IMAGES, Hardware, RunConfig
from pilot_tal.engine.callbacks import Callback, Display, Progress, Status, StepInfo, TaskResult
from pilot_tal.engine.checkpoint import Checkpoint, resume, save_checkpoint
from pilot_tal.engine.hardware import MOST_WORKERS, cores, find_eval_batch
from pilot_tal.engine.loggers import make_loggers
from pilot_tal.engine.loop import DIVERGED, check_precision, evaluate, sent, tensor_cores, train_task
from pilot_tal.learners import LEARNERS, Learner, build_learner
from pilot_tal.learners.posthoc import build_posthoc
from pilot_tal.losses import TaskLoss, build_loss
from pilot_tal.metrics import summarize
from pilot_tal.record.run_dir import Labels, is_finished, read_run_record
from pilot_tal.record.run_record import NO_LOSS, RunRecord
from pilot_tal.record.step_log import StepLog
from pilot_tal.record.writer import RunWriter, describe, hub_source, image_fingerprint, open_run
from pilot_tal.stream.batches import Batches, derive_seed
from pilot_tal.stream.store import ImageStore
from pilot_tal.stream.task import TaskInfo, make_tasks
from pilot_tal.stream.transforms import build_transforms


@dataclass(frozen=True)
class Shared:
    """Loaded for one run, and shared by all runs on the same images with the same backbone."""

    data: LongTailedSet
    backbone: FrozenBackbone
    store: ImageStore
    device: torch.device
    workers: int


def load_shared(config: RunConfig, hardware: Hardware, data: LongTailedSet, device: torch.device,
                backbone: FrozenBackbone | None = None) -> Shared:  # fmt: skip
    """Loads the frozen backbone, unless it is given, into the host's memory; a process that uses a GPU cannot fork."""
    settings = config.settings
    backbone = backbone or load_backbone(settings.backbone, settings.weights, settings.img_size)
    store = ImageStore(data.root, data.frame["path"].tolist(), hardware.cache)
    workers = hardware.workers
    if workers is None:  # a CPU is busy with the backbone; a GPU waits for images
        workers = min(MOST_WORKERS, cores()) if device.type == "cuda" else 0
    return Shared(data, backbone, store, device, workers)


class Trainer:
    """Executes one run in its directory, on the images and the ViT that it shares with others."""

    def __init__(self, config: RunConfig, hardware: Hardware, shared: Shared, record: RunRecord, path: Path):
        self.config, self.hardware, self.shared = config, hardware, shared
        self.settings = config.method_config
        check_precision(config.settings.precision, shared.device)
        self.eval_batch_size = find_eval_batch(hardware, config, shared.device)
        self.loggers = make_loggers(hardware.log)
        self.record, self.path = record, path
        self.names = shared.store.paths
        self.limit = QUICK_STEPS if config.quick else None
        size, statistics = shared.backbone.img_size[0], given_statistics(record.stream.normalize)
        self.train_transform, self.test_transform = build_transforms(config.settings.transform, size, statistics)
        # Images by new label, within a class in the order of the list: as LAMDA-PILOT serves its test images.
        frame, counts = shared.data.frame, record.stream.train_counts
        labels = np.argsort(record.stream.class_order)[frame["label"].to_numpy()]
        training = (frame["split"] == "train").to_numpy()
        own = [np.flatnonzero(training & (labels == label)).tolist() for label in range(len(counts))]
        self.train = [_some(images, count, frame["path"]) for images, count in zip(own, counts, strict=True)]
        most = QUICK_TEST_IMAGES if config.quick else None
        self.test = [np.flatnonzero(~training & (labels == label)).tolist()[:most] for label in range(len(counts))]
        self.tasks = [
            replace(task, epoch_steps=self.train_batches(task).steps(self.settings.drop_last, self.limit))
            for task in make_tasks(record.stream.task_sizes, counts)
        ]

    def execute(self, display: Display | None = None, label: str = "", callbacks: Sequence[Callback] = ()) -> Path:
        """Trains what is left, with progress as `label` on `display`; `Busy` if another process works on this run."""
        with open_run(self.path) as writer:
            try:
                if not is_finished(self.path):
                    self._train(display or Display(), label, writer, callbacks)
            except torch.OutOfMemoryError as error:
                words = "the GPU is out of memory; lower jobs_per_gpu, batch_size or eval_batch_size"
                raise UserError(words) from error
        return self.path

    def _train(self, display: Display, label: str, writer: RunWriter, callbacks: Sequence[Callback]) -> None:
        checkpoint, predictions = resume(writer)
        done = 0 if checkpoint is None else checkpoint.tasks_done
        torch.manual_seed(derive_seed("build", self.config.seed))
        learner = self.build()
        if checkpoint is not None:
            self.restore(learner, checkpoint)
        left = sum(self.steps(task) for task in self.tasks[done:])
        self.progress = Progress(display, label, writer, left)
        self.callbacks = [self.progress, *self.loggers, *callbacks]
        self._write_record(writer, resumed=done > 0)
        if not done:
            writer.commit(self.record, 0)
        self.notify("on_run_start")
        if done:
            self.message(f"resumed after task {done} of {len(self.tasks)}")
        for task in self.tasks[done:]:
            self.notify("on_task_start", task)
            labels, logs = self._one_task(learner, task, writer)
            predictions.append(labels)
            save_checkpoint(writer, self.checkpoint(learner, task), only_last=self.record.is_open)
            writer.commit(self.record, task.index + 1)
            stream = self.record.stream
            metrics = summarize(predictions, stream.task_sizes, stream.train_counts, stream.class_order)
            self.notify("on_task_end", task, TaskResult(**logs, metrics=metrics))
        self.notify("on_run_end")

    def notify(self, hook: str, *arguments: Any) -> None:
        """Calls a hook of all callbacks in turn."""
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    def message(self, text: str) -> None:
        """Sends a line to the display, the run's log and the callbacks."""
        self.notify("on_message", text)

    def _write_record(self, writer: RunWriter, resumed: bool) -> None:
        """Writes `run.json`; a resumed run must have the same ViT and images, and keeps its earlier environments."""
        weights = Path(self.config.settings.weights)
        here = describe(str(self.shared.device)) | {
            "images": str(self.shared.data.root.resolve()),  # for those who use the model later on this machine
            "weights": str(weights.resolve()) if weights.is_file() else None,
            "eval_batch_size": self.eval_batch_size,
        }
        if resumed:
            before = read_run_record(self.path).environment
            threads = before[-1].get("threads") if before else here["threads"]
            if threads != here["threads"]:
                self.message(
                    f"this run began with {threads} threads and goes on with {here['threads']}: its last bits, and so "
                    f"perhaps its results, differ from an undisturbed run's; threads={threads} keeps them"
                )
        hub = hub_source(self.record.backbone.name) if self.record.backbone.weights == "hub" else {}
        backbone = replace(self.record.backbone, checksum=self.shared.backbone.checksum, hub=hub)
        # Each session of an open run has its own images.
        images = None if self.record.is_open else image_fingerprint(self.shared.data.root, self.names)
        data = replace(self.record.data, images=images)
        writer.write_record(replace(self.record, backbone=backbone, data=data, environment=(here,)), resumed)

    def train_batches(self, task: TaskInfo) -> Batches:
        """Training images of a task, with random crops."""
        return self._batches(self.train, task.first, task.stop, self.train_transform)

    def test_batches(self, task: TaskInfo) -> Batches:
        """Test images of all classes seen after a task."""
        return self._batches(self.test, 0, task.stop, self.test_transform, self.eval_batch_size)

    def statistics_batches(self, task: TaskInfo) -> Batches:
        """Training images of a task under the test transform, for `end_task`."""
        return self._batches(self.train, task.first, task.stop, self.test_transform)

    def evaluate(
        self, learner: Learner, task: TaskInfo, picks: list[torch.Tensor] | None = None
    ) -> tuple[list[str], np.ndarray, np.ndarray]:
        """Names, true and predicted labels of the test images of all classes seen after a task; `picks` as in loop."""
        precision, device = self.config.settings.precision, self.shared.device
        tested = evaluate(learner, self.test_batches(task).in_order(), device, precision, picks)
        names = [self.names[index] for label in range(task.stop) for index in self.test[label]]
        return names, tested[0].numpy(), tested[1].numpy()

    def steps(self, task: TaskInfo) -> int:
        """Training steps of a task."""
        trained = LEARNERS[self.config.method].trains(self.settings, task.index)
        return self.settings.tuned_epoch * (task.epoch_steps or 0) if trained else 0

    def build(self) -> Learner:
        """A new learner for this run."""
        config = self.config
        shape = (self.shared.backbone, self.settings, *self.record.capacity, config.settings.fidelity)
        learner = build_learner(config.method, *shape)
        record, stream = self.record, self.record.stream
        learner.posthoc = build_posthoc(record.posthoc, stream.task_sizes, stream.train_counts, record.sampler)
        return learner.to(self.shared.device)

    def restore(self, learner: Learner, checkpoint: Checkpoint) -> None:
        """Takes up the state after the last finished task."""
        learner.load_checkpoint_state(checkpoint.learner)
        learner.cache.load_state(checkpoint.cache)

    def criterion(self) -> TaskLoss:
        """A new loss for this run; a learner that trains nothing never asks for it."""
        loss = self.config.loss
        return build_loss("ce" if loss.name == NO_LOSS else loss.name, **loss.options).to(self.shared.device)

    def _one_task(self, learner: Learner, task: TaskInfo, writer: RunWriter) -> tuple[Labels, dict[str, list[dict]]]:
        """Trains, evaluates and writes the files of one task; returns true and predicted labels, and its logs."""
        config, settings, device = self.config, self.settings, self.shared.device
        precision, position = config.settings.precision, f"task {task.index + 1}/{len(self.tasks)}"
        # Seeded anew in every task, so that going on after a checkpoint needs no state of a generator.
        torch.manual_seed(derive_seed("task", config.seed, task.index))
        criterion = self.criterion()
        log = StepLog(criterion)
        seed = derive_seed(config.seed, task.index)
        batches = self.train_batches(task).epochs(
            settings.tuned_epoch, seed, settings.drop_last, self.limit, config.settings.sampler
        )

        def on_step(info: StepInfo) -> None:
            log.add(info.loss, info.aux, info.epoch, info.lr, info.accuracy)
            self.notify("on_step", task, info)

        train_task(learner, criterion, task, batches, epochs=settings.tuned_epoch, config=settings, device=device,
                   precision=precision, on_step=on_step)  # fmt: skip
        steps = log.steps()
        _refuse_divergence(task.index, steps, learner)
        self.progress.show(Status(f"{position}, statistics"))
        statistics = self.statistics_batches(task)
        with tensor_cores(device, precision):  # fp32 has no TF32, here as in evaluation
            learner.end_task(lambda: (sent(device, x, y) for x, y, _ in statistics.in_order()))
        self.progress.show(Status(f"{position}, evaluation"))
        picks: list[torch.Tensor] = []
        images, true, pred = self.evaluate(learner, task, picks)
        logs = {"steps": steps, "states": log.states()}
        prompts = []  # how often the test images of each task's classes picked each prompt of the pool
        for other in self.tasks[: task.index + 1] if picks else ():
            own = torch.cat(picks)[torch.from_numpy((other.first <= true) & (true < other.stop))].cpu()
            counts = own.flatten().bincount(minlength=learner.pool_size).tolist()
            prompts.append({"of_task": other.index, "images": len(own), "counts": counts})
        writer.write_task(task.index, images, true, pred, **logs, prompts=prompts)
        return (true, pred), logs

    def checkpoint(self, learner: Learner, task: TaskInfo) -> Checkpoint:
        """The state after a task; after the last one without the cache, which is not used again."""
        last = task.index + 1 == len(self.tasks)
        return Checkpoint(task.index + 1, learner.checkpoint_state(), {} if last else learner.cache.state())

    def _batches(
        self, images: list[list[int]], first: int, stop: int, transform: Any, batch_size: int | None = None
    ) -> Batches:
        indices = [index for label in range(first, stop) for index in images[label]]
        labels = [label for label in range(first, stop) for _ in images[label]]
        loading = (batch_size or self.settings.batch_size, self.shared.workers, self.shared.device.type == "cuda")
        return Batches(self.shared.store, indices, labels, transform, *loading)


def _some(indices: list[int], count: int, paths: Sequence[str]) -> list[int]:
    """`count` of the images, by a choice that depends on their class and file names alone."""
    if count == len(indices):
        return indices
    keys = {index: derive_seed("task_rho", *PurePosixPath(paths[index]).parts[-2:]) for index in indices}
    return sorted(sorted(indices, key=keys.__getitem__)[:count])


def _refuse_divergence(task: int, steps: list[dict[str, Any]], learner: Learner) -> None:
    """Raises on a non-finite loss or parameter, which would spoil all later tasks."""
    for step in steps:
        if step["loss"] is None or step["aux"] is None:
            place = f"in task {task + 1}, epoch {step['epoch'] + 1}, step {step['step']}"
            raise UserError(f"the loss became NaN or infinite {place}; {DIVERGED}")
    for name, tensor in learner.named_tensors().items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"{name} became NaN or infinite in task {task + 1}; {DIVERGED}")
